"""What an attribution attack climbs: one objective J(S) -> (B,) of the perturbed map S per kind of attack.

    topk         J = −Σ_{i in the k largest of the clean map} S_i
    mass_center  J = ‖C(S) − C₀‖², C the mass centre, C₀ that of the smooth net's clean map truncated to whole pixels
    target       J = Σ S·target
    random       J is not looked at: the walk is random signs

(Ghorbani et al. 2019; the reference's `ig_attack.py`.)
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from robattr.errors import InvalidInput, nearest
from robattr.evaluate.agreement import mass_center, top_k_mask

KINDS = ("topk", "mass_center", "target", "random")

Objective = Callable[[Tensor], Tensor]


def objective(kind: str, clean: Tensor, *, twin: Tensor, k: int, target: Tensor | None = None) -> Objective:
    """J for maps of `clean`'s shape; `clean` is the true net's map of x, `twin` the smooth net's."""
    if kind == "topk":
        mask = top_k_mask(clean, k)
        return lambda s: -(s * mask).flatten(1).sum(dim=1)
    if kind == "mass_center":
        centre = mass_center(twin).trunc()
        return lambda s: (mass_center(s) - centre).square().sum(dim=1)
    if kind == "target":
        goal = _target(clean, target)
        return lambda s: (s * goal).flatten(1).sum(dim=1)
    if kind == "random":
        return lambda s: s.new_zeros(len(s))
    raise InvalidInput(f"unknown kind of attribution attack {kind!r}: {nearest(kind, KINDS)}")


def _target(clean: Tensor, target: Tensor | None) -> Tensor:
    """One target map for all examples."""
    if target is None or target.shape != clean.shape[1:]:
        got = "none" if target is None else str(tuple(target.shape))
        raise InvalidInput(f"kind 'target' needs target= of the map's shape {tuple(clean.shape[1:])}, got {got}")
    return target.to(clean)
