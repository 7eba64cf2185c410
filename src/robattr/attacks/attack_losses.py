"""Losses that an attribution attack maximises: J(S, r) -> (B,) of the perturbed map S and a reference r.

    topk         J = −Σ_i S_i r_i,      r marks the k largest pixels of the clean map
    mass_center  J = ‖C(S) − r‖²,       C the mass centre, r that of the smooth net's clean map in whole pixels
    target       J = Σ_i S_i r_i,       r the target map
    random       J = 0:                 no ascent, x + α·(random signs) at every step

(Ghorbani et al. 2019; the reference's `ig_attack.py`.)
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from robattr.errors import InvalidInput, nearest
from robattr.metrics import mass_center, top_k_mask

AttackLoss = Callable[[Tensor, Tensor], Tensor]


def _inner_product(s: Tensor, reference: Tensor) -> Tensor:
    if s.shape != reference.shape:  # broadcasting would pair pixels of different examples
        raise InvalidInput(
            f"expected the attacked map to have the shape of the scored one, {tuple(reference.shape[1:])}, got "
            f"{tuple(s.shape[1:])}: give a guide whose maps have that shape"
        )
    return (s * reference).flatten(1).sum(dim=1)


LOSSES: dict[str, AttackLoss] = {
    "topk": lambda s, mask: -_inner_product(s, mask),
    "mass_center": lambda s, centre: (mass_center(s) - centre).square().sum(dim=1),
    "target": _inner_product,
    "random": lambda s, _: s.new_zeros(len(s)),
}


def attack_loss(kind: str) -> AttackLoss:
    """J of that kind."""
    if kind not in LOSSES:
        raise InvalidInput(f"unknown kind of attribution attack {kind!r}: {nearest(kind, LOSSES)}")
    return LOSSES[kind]


def loss_reference(kind: str, clean: Tensor, twin: Callable[[], Tensor], *, k: int, target: Tensor | None) -> Tensor:
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
