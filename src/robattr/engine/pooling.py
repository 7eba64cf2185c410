"""Max-pools as pointwise operations, which a compiler fuses with what is around them.

Pools that tile the image (kernel = stride, as in the paper's MNIST network) become comparisons of the tile's pixels;
their derivatives select among the pixels by the number k of the winner. What is four times as large as the pool's
result is then never stored:

    value = max_k x_k      derivative: g at the winner, else 0      its derivative: v at the winner
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from robattr.formula.convolution import applied, each_axis

TILED_POOLS = True
"""Whether `PointwisePools` does anything. A switch for benchmarks."""


class PointwisePools(TorchFunctionMode):
    """While active, max-pools that tile the image are pointwise."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        tiled = TILED_POOLS and func in (F.max_pool2d, torch.max_pool2d)
        out = _max_pool2d(*args, **(kwargs or {})) if tiled else None
        return func(*args, **(kwargs or {})) if out is None else out


def _max_pool2d(
    input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor | None:  # fmt: skip
    """The pool by tiles where kernel and stride are one and whole tiles of up to nine pixels fill the image."""
    tile = each_axis(kernel_size, 2)
    moves = tile if stride is None or stride == [] else each_axis(stride, 2)
    plain = (
        moves == tile and each_axis(padding, 2) == [0, 0] and each_axis(dilation, 2) == [1, 1] and not return_indices
    )
    if not plain or prod(tile) > 9 or any(size % k for size, k in zip(input.shape[-2:], tile, strict=True)):
        return None
    return applied(TiledMaxPool, input, tuple(tile))


class TiledMaxPool(torch.autograd.Function):
    """max_k x_k over the pixels x_k of each tile, row by row; of equal ones the first wins, as in torch."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, tile: tuple[int, int]) -> Tensor:
        value, *others = _corners(x, tile)
        winner = torch.zeros_like(value, dtype=torch.int8)
        for k, corner in enumerate(others, 1):
            winner = torch.where(corner > value, k, winner)
            value = torch.maximum(value, corner)
        ctx.save_for_backward(winner)
        ctx.tile = tile
        return value

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return applied(ToWinner, g, *ctx.saved_tensors, ctx.tile), None


class ToWinner(torch.autograd.Function):
    """g at the winner of each tile, zero elsewhere: the derivative of the pool."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, winner: Tensor, tile: tuple[int, int]) -> Tensor:
        ctx.save_for_backward(winner)
        ctx.tile = tile
        down, across = (torch.arange(n, dtype=torch.int8, device=g.device) for n in tile)
        number = down.view(-1, 1, 1) * tile[1] + across
        here = winner[..., :, None, :, None] == number
        return torch.where(here, g[..., :, None, :, None], 0.0).flatten(-4, -3).flatten(-2)

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor, None, None]:
        return applied(FromWinner, v, *ctx.saved_tensors, ctx.tile), None, None


class FromWinner(torch.autograd.Function):
    """v at the winner of each tile: the transpose of `ToWinner`."""

    @staticmethod
    def forward(ctx: Any, v: Tensor, winner: Tensor, tile: tuple[int, int]) -> Tensor:
        ctx.save_for_backward(winner)
        ctx.tile = tile
        picked, *others = _corners(v, tile)
        for k, corner in enumerate(others, 1):
            picked = torch.where(winner == k, corner, picked)
        return picked

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        return applied(ToWinner, g, *ctx.saved_tensors, ctx.tile), None, None


def _corners(x: Tensor, tile: tuple[int, int]) -> list[Tensor]:
    """x_k: the pixels at place k of every tile, row by row."""
    return [x[..., i :: tile[0], j :: tile[1]] for i in range(tile[0]) for j in range(tile[1])]
