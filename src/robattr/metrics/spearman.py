"""Spearman's rank correlation and the cosine between two maps."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.linalg import vector_norm

from robattr.metrics._validation import by_rows, check_pair, counted, rows, spoiled

EXACT = 3_000_000  # pixels up to which a sum of squared ranks, n³/3, is an int64


def spearman(a: Tensor, b: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Spearman's ρ: Pearson's correlation of the ranks, ties sharing their average rank. (B,) float64.

    Equal to `scipy.stats.spearmanr`. Shapes, `mask` and nan as in `kendall`.
    """
    return by_rows(_rho, a, b, mask)


def cosine(a: Tensor, b: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """⟨a, b⟩ / (‖a‖₂ ‖b‖₂) of each pair of maps, (B,) float64; nan for a map that is zero or has NaN."""
    check_pair(a, b)
    u, v = (rows(m, mask).double().nan_to_num(0.0, torch.inf, -torch.inf) for m in (a, b))
    angle: Tensor = (u * v).sum(1) / vector_norm(u, dim=1) / vector_norm(v, dim=1)
    return angle.clamp(-1, 1).masked_fill(spoiled(a, mask) | spoiled(b, mask), float("nan"))


def _rho(a: Tensor, b: Tensor) -> Tensor:
    r, s = _centred_ranks(a), _centred_ranks(b)
    if a.shape[1] > EXACT:
        r, s = r.double(), s.double()
    spread = (r * r).sum(1).double().sqrt() * (s * s).sum(1).double().sqrt()
    return ((r * s).sum(1) / spread).clamp(-1, 1)  # a constant map: 0/0 = nan


def _centred_ranks(a: Tensor) -> Tensor:
    """Twice (average rank − mean rank): integers (B, n), so that sums are exact; 0 outside the mask."""
    ordered, pixel = a.sort(1)
    new = torch.ones_like(ordered, dtype=torch.bool)
    new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    place = torch.arange(a.shape[1], device=a.device)
    first = torch.where(new, place, 0).cummax(1).values
    # The run of a place ends right before the next run starts.
    ends = torch.where(new, place, a.shape[1]).roll(-1, 1)
    ends[:, -1] = a.shape[1]
    last = ends.flip(1).cummin(1).values.flip(1) - 1
    centred = first + last - (counted(a)[:, None] - 1)
    return torch.zeros_like(centred).scatter_(1, pixel, centred).masked_fill_(a.isnan(), 0)
