"""The k largest pixels of a map.

Of equal pixels the one with the lower flat index (row by row) comes first, as in TensorFlow's `top_k` and in a
stable descending sort. The reference code takes the last k of NumPy's ascending argsort, which is unstable: its choice
among equal pixels depends on the NumPy version and the processor. That matters on MNIST, where a tenth of the
integrated-gradients maps have fewer than k = 100 non-zero pixels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from robattr.errors import InvalidInput
from robattr.metrics._validation import check_maps, check_pair, rows, spoiled


def top_k_mask(a: Tensor, k: int | Tensor, *, mask: Tensor | None = None) -> Tensor:
    """The k largest pixels of each map, as a bool tensor of `a`'s shape.

    `k`: one number, or one per example as an integer tensor (B,). `mask` restricts the choice to some pixels. A map
    with NaN on such a pixel has no largest pixels: its row is False.
    """
    check_maps(a)
    falling = rows(-rows(a), mask)  # the largest first, NaN (outside the mask) last
    need = _check_k(k, falling, available=None if mask is None else mask.flatten(1).sum(1))
    if isinstance(k, int):
        threshold = falling.topk(k, dim=1, largest=False).values[:, -1:]
    else:
        threshold = falling.sort(1).values.gather(1, need[:, None] - 1)
    above, level = falling < threshold, falling == threshold
    room = need[:, None] - above.sum(1, keepdim=True)
    chosen = above | (level & (level.cumsum(1) <= room))
    return (chosen & ~spoiled(a, mask)[:, None]).view(a.shape)


def topk_intersection(a: Tensor, b: Tensor, k: int | Tensor, *, mask: Tensor | None = None) -> Tensor:
    """|top-k of a ∩ top-k of b| / k for each pair of maps, (B,) float64; nan where a map has NaN.

    `k`, `mask` and the order of ties as in `top_k_mask`.

    >>> topk_intersection(torch.tensor([[4.0, 3.0, 2.0, 1.0]]), torch.tensor([[4.0, 1.0, 2.0, 3.0]]), k=2)
    tensor([0.5000], dtype=torch.float64)
    """
    check_pair(a, b)
    common = top_k_mask(a, k, mask=mask) & top_k_mask(b, k, mask=mask)
    share = common.flatten(1).sum(1).double() / k
    return share.masked_fill(spoiled(a, mask) | spoiled(b, mask), float("nan"))


def _check_k(k: int | Tensor, a: Tensor, *, available: Tensor | None) -> Tensor:
    """k as (B,) int64, if 1 ≤ k ≤ the pixels available to every example."""
    need = torch.as_tensor(k)
    if need.is_floating_point() or need.dtype == torch.bool or need.shape not in ((), (len(a),)):
        raise InvalidInput(f"expected k as a whole number, or one per example, got {k!r}")
    most = a.shape[1] if available is None else available.to(need.device)
    if bool(((need < 1) | (need > most)).any()):  # plain numbers are compared without waiting for the device
        raise InvalidInput(
            f"expected 1 ≤ k ≤ the number of pixels ({_bounds(most)}), got k = {_bounds(need)}: choose another k"
        )
    return need.to(a.device, torch.int64).expand(len(a))


def _bounds(numbers: int | Tensor) -> str:
    if isinstance(numbers, int):
        return str(numbers)
    low, high = int(numbers.min()), int(numbers.max())
    return str(low) if low == high else f"{low} to {high} by example"
