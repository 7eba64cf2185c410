"""Validation of maps and masks, ties, and slabs of memory: shared by the metrics.

Shapes: B examples, n pixels of a flattened map, C channels, H rows, W columns. Inside the metrics NaN marks pixels
outside the mask: it sorts after every number and equals nothing, so that those pixels are at the end of each row and
tied with none.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from robattr.errors import InvalidInput

# Pixels processed at once, each with about a hundred bytes of scratch memory. Larger slabs do not help a CPU; a GPU
# wants few and large launches, and this needs a gigabyte.
CPU_SLAB = 1 << 18
GPU_SLAB = 1 << 23


def check_pair(a: Tensor, b: Tensor) -> None:
    """Reject two batches that cannot be compared pixel by pixel."""
    check_maps(a)
    check_maps(b)
    if a.shape != b.shape:
        raise InvalidInput(
            f"expected two batches of maps of one shape, got {tuple(a.shape)} and {tuple(b.shape)}: "
            "compute both with the same map function on the same examples"
        )
    if a.device != b.device:
        raise InvalidInput(f"expected maps on one device, got {a.device} and {b.device}: move one with .to()")


def check_maps(a: Tensor) -> None:
    """Reject anything but a batch of real maps (B, ...), each with at least one pixel."""
    if not isinstance(a, Tensor):
        raise InvalidInput(f"expected a tensor of maps, got {type(a).__name__}: use torch.as_tensor")
    if a.dim() < 2 or a[:1].numel() == 0 < len(a):
        raise InvalidInput(
            f"expected a batch of maps (B, n), (B, H, W) or (B, C, H, W), got shape {tuple(a.shape)}: "
            "add the batch dimension with map[None]"
        )
    if a.is_complex():
        raise InvalidInput("expected real maps, got complex ones: an order of pixels needs real numbers")


def rows(a: Tensor, mask: Tensor | None = None) -> Tensor:
    """Maps as contiguous rows (B, n) of floats in which the pixels outside `mask` are NaN; -0 becomes 0."""
    a = a.detach().flatten(1)
    if not a.is_floating_point():
        a = a.double()
    elif a.element_size() < 4:
        a = a.float()
    a = a + 0.0  # -0 becomes 0: some sorts tell them apart
    if mask is None:
        return a
    if mask.dtype != torch.bool or mask.shape[0] != a.shape[0] or mask[:1].numel() != a[:1].numel():
        raise InvalidInput(
            f"expected a boolean mask with the {tuple(a.shape)} pixels of the maps, got {mask.dtype} of shape "
            f"{tuple(mask.shape)}: build it from the maps or images, for instance x > 0"
        )
    return a.masked_fill(~mask.flatten(1), float("nan"))


def spoiled(a: Tensor, mask: Tensor | None = None) -> Tensor:
    """(B,) bool: whether the map has NaN on a pixel inside the mask."""
    bad = a.detach().flatten(1).isnan()
    return (bad if mask is None else bad & mask.flatten(1)).any(1)


def counted(a: Tensor) -> Tensor:
    """(B,) int64: the number of pixels inside the mask, for each of `rows`."""
    return a.isnan().logical_not_().sum(1)


def tied_pairs(same: Tensor) -> Tensor:
    """Pairs within runs of equal values, (B,) int64, from `same` (B, n-1): is sorted pixel i+1 equal to pixel i?

    The j-th pixel of a run (from 0) closes j pairs, so the count is Σ (position − start of its run).
    """
    position = torch.arange(1, same.shape[1] + 1, device=same.device)
    start = torch.where(same, 0, position).cummax(1).values
    return (position - start).sum(1)


def by_rows(measure: Callable[[Tensor, Tensor], Tensor], a: Tensor, b: Tensor, mask: Tensor | None) -> Tensor:
    """`measure` (B,) of each pair of maps, on as many `rows` at a time as fit a slab of memory; nan for NaN."""
    check_pair(a, b)
    u, v = rows(a, mask), rows(b, mask)
    if not len(a):
        return torch.zeros(0, dtype=torch.float64, device=a.device)
    size = max(1, (CPU_SLAB if a.device.type == "cpu" else GPU_SLAB) // u.shape[1])
    found = torch.cat([measure(*pair) for pair in zip(u.split(size), v.split(size), strict=True)])
    return found.masked_fill(spoiled(a, mask) | spoiled(b, mask), float("nan"))
