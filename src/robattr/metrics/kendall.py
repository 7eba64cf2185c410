"""Kendall's τ-b between two maps, exactly, and its upper bound given the ties.

    τ-b = (C − D) / √((n₀ − T_a)(n₀ − T_b)),   n₀ = n(n−1)/2,

C and D the concordant and discordant pairs of pixels, T_a and T_b the pairs tied in a and in b (Kendall 1945). All
counts are integers. Time is O(n log n), memory O(n).
"""

from __future__ import annotations

import torch
from torch import Tensor

from robattr.metrics._validation import by_rows, check_maps, counted, rows, spoiled, tied_pairs

_SMALL = 16  # blocks of positions this short are compared pair by pair: cheaper than four more partitions


def kendall(a: Tensor, b: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Kendall's τ-b of each pair of maps, (B,) float64, equal to `scipy.stats.kendalltau`.

    `a`, `b`: (B, n), (B, H, W) or (B, C, H, W). `mask` (bool, as many pixels) restricts each example to some of its
    pixels, for instance the foreground. Maps that are constant or have NaN on those pixels give nan.

    >>> kendall(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[3.0, 2.0, 1.0]]))
    tensor([-1.], dtype=torch.float64)
    """
    return by_rows(_tau_b, a, b, mask)


def tie_ceiling(a: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """The highest τ-b of `a` with a map without ties: √(1 − T_a/n₀), (B,) float64.

    A pair tied in `a` is neither concordant nor discordant, so C − D ≤ n₀ − T_a. Every map that keeps the order of `a`
    and breaks all its ties attains it. Constant maps or NaN: nan.
    """
    check_maps(a)
    flat = rows(a, mask)
    pairs, ties = _pairs(counted(flat)), _ties(flat)
    bound = ((pairs - ties).double() / pairs.double()).sqrt()
    return bound.masked_fill(spoiled(a, mask) | (ties == pairs), float("nan"))


def _pairs(n: Tensor) -> Tensor:
    return n * (n - 1) // 2


def _ties(a: Tensor) -> Tensor:
    ordered = a.sort(1).values
    return tied_pairs(ordered[:, 1:] == ordered[:, :-1])


def _tau_b(a: Tensor, b: Tensor) -> Tensor:
    """τ-b of rows (B, n).

    Sort the pixels by (a, b): then a pair is discordant exactly if b decreases along this order. `line` lists the
    positions in it by increasing b, equal b by position. Its inversions are the discordant pairs; ties give none.
    """
    b_sorted, by_b = b.sort(dim=1, stable=True)
    a_sorted, by_a = a.gather(1, by_b).sort(dim=1, stable=True)
    b_lined = b_sorted.gather(1, by_a)
    line = b_lined.sort(dim=1, stable=True).indices

    same_a = a_sorted[:, 1:] == a_sorted[:, :-1]
    ties_a = tied_pairs(same_a)
    ties_b = tied_pairs(b_sorted[:, 1:] == b_sorted[:, :-1])
    ties_both = tied_pairs(same_a & (b_lined[:, 1:] == b_lined[:, :-1]))
    pairs = _pairs(counted(a))
    balance = pairs - ties_a - ties_b + ties_both - 2 * inversions(line)
    untied_a, untied_b = pairs - ties_a, pairs - ties_b
    tau = balance / untied_a.double().sqrt() / untied_b.double().sqrt()
    return tau.clamp(-1, 1).masked_fill((untied_a == 0) | (untied_b == 0), float("nan"))


def inversions(line: Tensor) -> Tensor:
    """Pairs i < j with line_i > line_j in each row, (B,) int64; every row of `line` (B, n) permutes 0 … n−1.

    A stable partition splits a row into the values below and above the middle. An inversion between the halves is an
    upper value before a lower one; the others are within a half, where the same is repeated. The values are a
    permutation, so that each half has exactly half the size, and one cumulative sum and one scatter over the whole
    batch do all partitions of a level.
    """
    B, n = line.shape
    size = 1 << (n - 1).bit_length()
    values = torch.arange(size, device=line.device, dtype=torch.int32).repeat(B, 1)
    values[:, :n] = line  # the padding ascends behind the row: it inverts nothing
    count = torch.zeros(B, dtype=torch.int64, device=line.device)
    while size > _SMALL:
        half = size // 2
        values = values.view(-1, size)
        upper = values >= half
        before = torch.arange(len(values), device=line.device, dtype=torch.int32)[:, None] * half
        uppers = upper.flatten().cumsum(0, dtype=torch.int32).view(-1, size) - before  # up to this value, in its part
        # Over a lower value this is its inversions; over the upper ones it runs 1 … half.
        count += uppers.view(B, -1).sum(1) - len(values) // B * (half * (half + 1) // 2)
        place = torch.arange(size, device=line.device, dtype=torch.int32)
        target = torch.where(upper, uppers + (half - 1), place - uppers).long()
        values = torch.empty_like(values).scatter_(1, target, values & (half - 1))
        size = half
    return count + _inversions_within(values.view(-1, size)).view(B, -1).sum(1)


def _inversions_within(blocks: Tensor) -> Tensor:
    """Inversions of short rows (M, size), each a permutation, by comparing every pair: (M,)."""
    columns = blocks.T.to(torch.int8).contiguous()
    count = torch.zeros_like(columns)  # at most size − 1 each
    for distance in range(1, len(columns)):
        count[distance:] += (columns[:-distance] > columns[distance:]).view(torch.int8)
    return count.sum(0)
