"""What an attribution attack climbs: an objective J(S, r) -> (B,) of the perturbed map S and a reference r.

    topk         J = −Σ_i S_i r_i,      r marks the k largest pixels of the clean map
    mass_center  J = ‖C(S) − r‖²,       C the mass centre, r that of the smooth net's clean map in whole pixels
    target       J = Σ_i S_i r_i,       r the target map
    random       J = 0:                 no walk, x + α·(random signs) at every step

(Ghorbani et al. 2019; the reference's `ig_attack.py`.)
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from robattr.errors import InvalidInput, nearest
from robattr.metrics import mass_center, top_k_mask

Objective = Callable[[Tensor, Tensor], Tensor]


def _against(s: Tensor, mask: Tensor) -> Tensor:
    return -_towards(s, mask)


def _towards(s: Tensor, target: Tensor) -> Tensor:
    if s.shape != target.shape:  # broadcasting would pair pixels of different examples
        raise InvalidInput(
            f"expected the attack to follow a map of the shape of the scored one, {tuple(target.shape[1:])}, got "
            f"{tuple(s.shape[1:])}: give a guide whose maps have that shape"
        )
    return (s * target).flatten(1).sum(dim=1)


def _away(s: Tensor, centre: Tensor) -> Tensor:
    return (mass_center(s) - centre).square().sum(dim=1)


def _nothing(s: Tensor, _: Tensor) -> Tensor:
    return s.new_zeros(len(s))


KINDS: dict[str, Objective] = {"topk": _against, "mass_center": _away, "target": _towards, "random": _nothing}


def objective(kind: str) -> Objective:
    """J of that kind."""
    if kind not in KINDS:
        raise InvalidInput(f"unknown kind of attribution attack {kind!r}: {nearest(kind, KINDS)}")
    return KINDS[kind]


def reference(kind: str, clean: Tensor, twin: Callable[[], Tensor], *, k: int, target: Tensor | None) -> Tensor:
    """r, one row per example; `clean` is the true net's map of x, `twin()` the smooth net's."""
    if kind == "topk":
        return top_k_mask(clean, k).to(clean)
    if kind == "mass_center":
        return mass_center(twin()).trunc()
    if kind == "random":
        return clean
    if target is None or target.shape != clean.shape[1:]:
        got = "none" if target is None else str(tuple(target.shape))
        raise InvalidInput(f"kind 'target' needs target= of the map's shape {tuple(clean.shape[1:])}, got {got}")
    return target.to(clean).expand_as(clean)
