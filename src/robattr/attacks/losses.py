"""The losses that an attribution attack maximises: J(S, r) -> (B,), of the perturbed map S and a reference r.

    topk         J = −mean_i S_i r_i,       r marks the k largest pixels of the clean map
    soft_topk    J = −mean_{i: r_i = 1} σ((S_i − t)/t),   t the k-th largest value of S, a constant: the share of the k
                 pixels that are still above the threshold
    mass_center  J = ‖C(S) − r‖² / n,       C the mass centre, r that of the smooth net's clean map in whole pixels
    target       J = mean_i S_i r_i,        r the target map
    frame, corners   the same, r marks the border of the map, a tenth of it wide, or its four corners, a quarter
    cosine       J = 1 − cos(S, r),         r the clean map
    kendall      J = 1 − τ_α(S, r), α = 10: `formula.distances.kendall`, quadratic in the number n of pixels
    rank         J = −mean_i S_i r_i,       r the ranks of the clean map, centred, of unit deviation: linear in n
    score        J = −(mean of the attack's first two measures): not differentiable, for a search without gradients
    random       J = 0: no ascent, random signs at every step

Maps have mean 1. topk, mass_center and target are Ghorbani et al. 2019, as in the reference's `ig_attack.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from robattr.errors import InvalidInput, nearest
from robattr.formula.distances import cosine, kendall
from robattr.metrics import mass_center, top_k_mask

Loss = Callable[[Tensor, Tensor], Tensor]

FRAME, CORNER = 0.1, 0.25  # of the side of a map


def _mean_product(s: Tensor, reference: Tensor) -> Tensor:
    _check_shapes(s, reference)
    return (s * reference).flatten(1).mean(dim=1)


def _soft_topk(s: Tensor, mask: Tensor) -> Tensor:
    _check_shapes(s, mask)
    values, chosen = s.flatten(1), mask.flatten(1)
    k = chosen.sum(dim=1, keepdim=True)  # a tensor: compiled code cannot depend on a value
    last = (k.long() - 1).clamp_min(0)  # none is chosen in a map that is undefined
    t = values.detach().sort(dim=1, descending=True).values.gather(1, last).clamp_min(torch.finfo(s.dtype).tiny)
    return -(torch.sigmoid(values / t - 1) * chosen).sum(dim=1) / k[:, 0]


def _mass_center(s: Tensor, centre: Tensor) -> Tensor:
    return (mass_center(s) - centre).square().sum(dim=1) / s[0].numel()


LOSSES: dict[str, Loss] = {
    "topk": lambda s, mask: -_mean_product(s, mask),
    "soft_topk": _soft_topk,
    "mass_center": _mass_center,
    "target": _mean_product,
    "frame": _mean_product,
    "corners": _mean_product,
    "cosine": cosine,
    "kendall": kendall(10.0),
    "rank": lambda s, ranks: -_mean_product(s, ranks),
    "random": lambda s, _: s.new_zeros(len(s)),
}
LINEAR = {"topk": -1.0, "rank": -1.0, "target": 1.0, "frame": 1.0, "corners": 1.0}
"""The losses J = ±mean_i S_i r_i, with their sign."""
GRADIENT_FREE = ("random", "score")
IMAGES_ONLY = ("mass_center", "frame", "corners")


def check_kind(kind: object) -> None:
    """Reject what is neither a name of a loss nor a change."""
    known = (*LOSSES, "score")
    if kind not in known if isinstance(kind, str) else not callable(kind) or isinstance(kind, type):
        raise InvalidInput(f"unknown kind of attribution attack {kind!r}: {nearest(kind, known)}")


def loss_reference(kind: str, clean: Tensor, twin: Callable[[], Tensor], *, k: int, target: Tensor | None) -> Tensor:
    """r, one row per example; `clean` is the true net's map of x, `twin()` the smooth net's."""
    if kind in IMAGES_ONLY and clean.dim() != 3:
        raise InvalidInput(f"kind {kind!r} needs maps of images (B, H, W), got {tuple(clean.shape)}: choose another")
    match kind:
        case "topk" | "soft_topk":
            return top_k_mask(clean, k).to(clean)
        case "mass_center":
            return mass_center(twin()).trunc()
        case "frame" | "corners":
            return _region(kind, clean).expand_as(clean)
        case "rank":
            return _ranks(clean)
        case "cosine" | "kendall" | "random" | "score":
            return clean
    if target is None or target.shape != clean.shape[1:]:
        got = "none" if target is None else str(tuple(target.shape))
        raise InvalidInput(f"kind 'target' needs target= of the map's shape {tuple(clean.shape[1:])}, got {got}")
    return target.to(clean).expand_as(clean)


def _region(kind: str, clean: Tensor) -> Tensor:
    """(H, W): 1 on the border or in the corners of a map, 0 elsewhere."""
    near = []
    for length in clean.shape[1:]:
        width = max(1, round((FRAME if kind == "frame" else CORNER) * length))
        place = torch.arange(length, device=clean.device)
        near.append((place < width) | (place >= length - width))
    rows, columns = near[0][:, None], near[1][None, :]
    return (rows | columns if kind == "frame" else rows & columns).to(clean)


def _ranks(clean: Tensor) -> Tensor:
    """The ranks of the pixels, centred, of unit deviation; of equal pixels the lower index is the larger one."""
    flat = clean.flatten(1)
    order = (-flat).argsort(dim=1, stable=True)
    n = flat.shape[1]
    falling = torch.arange(n, 0, -1, device=clean.device, dtype=clean.dtype).expand_as(flat)
    ranks = torch.empty_like(flat).scatter_(1, order, falling)
    return ((ranks - (n + 1) / 2) / ranks.std(dim=1, keepdim=True)).view_as(clean)


def _check_shapes(s: Tensor, reference: Tensor) -> None:
    if s.shape != reference.shape:  # broadcasting would pair pixels of different examples
        raise InvalidInput(
            f"expected the attacked map to have the shape of the scored one, {tuple(reference.shape[1:])}, got "
            f"{tuple(s.shape[1:])}: give a guide whose maps have that shape"
        )
