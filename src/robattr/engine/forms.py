"""Equal formulas of operators that generated code runs faster than torch's kernels: in bf16 on a GPU.

docs/tried.md has the milliseconds that they and the pairs of layers (`layer_pairs`) save.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

aten = torch.ops.aten
SHORT = 32  # pixels of a row, at most, whose convolution is a product with a banded matrix; longer ones have more zeros
THIN = 16
ROWS = 4096  # of a product that is computed as sums


def applies(x: Tensor) -> bool:
    """Whether the forms below take the place of the operator at x."""
    return x.is_cuda and x.dtype == torch.bfloat16


def convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: list[int], padding: list[int], dilation: list[int],
    transposed: bool, output_padding: list[int], groups: int,
) -> Tensor:  # fmt: skip
    """Σ_j w_j x_{i+j} of one input channel: rows of x (N·H, k·W) times `_banded` (k·W, W·C), with channels last."""
    if not _one_channel(x, weight, stride, padding, dilation, transposed, groups):
        return NotImplemented  # type: ignore[no-any-return]
    (n, _, h, w), (c, _, high, _) = x.shape, weight.shape
    near = aten.im2col(x, [high, 1], [1, 1], [high // 2, 0], [1, 1]).view(n, high, h, w).transpose(1, 2)
    out = (_padded(near.reshape(n * h, high * w)) @ _banded(weight, w).t()).view(n, h, w, c)
    return (out if bias is None else out + bias).permute(0, 3, 1, 2)


def convolution_backward(
    grad: Tensor, x: Tensor, weight: Tensor, bias_sizes: list[int] | None, stride: list[int], padding: list[int],
    dilation: list[int], transposed: bool, output_padding: list[int], groups: int, mask: list[bool],
) -> tuple[Tensor, None, None]:  # fmt: skip
    """The input gradient of `convolution`: rows of g (N·H, W·C) times `_banded` (W·C, k·W), k rows that are added."""
    one_channel = _one_channel(grad, weight, stride, padding, dilation, transposed, groups)
    if not one_channel or list(mask) != [True, False, False]:
        return NotImplemented  # type: ignore[no-any-return]
    (n, c, h, w), high = grad.shape, weight.shape[2]
    rows = grad.permute(0, 2, 3, 1).reshape(n * h, w * c) @ _banded(weight, w)
    summed = torch.promote_types(grad.dtype, torch.float32)
    around = F.pad(rows[:, : high * w].reshape(n, h, high, w), (0, 0, 0, 0, high // 2, high // 2)).to(summed)
    out = reduce(torch.add, (around[:, high - 1 - i : high - 1 - i + h, i] for i in range(high)))
    return out.to(grad.dtype)[:, None], None, None


def _banded(weight: Tensor, w: int) -> Tensor:
    """T (W·C, k·W) with T[(j, c), (i', i)] = weight[c, 0, i', i − j + k/2]: what pixel i of a row i' adds to pixel j.

    Built by padding and reshaping: a row of the matrix is the one before, moved to the right by one.
    """
    c, _, high, wide = weight.shape
    moved = F.pad(weight[:, 0], (0, w))[:, :, None].expand(c, high, w, w + wide).reshape(c, high, w * (w + wide))
    bands = moved[..., : w * (w + wide - 1)].reshape(c, high, w, w + wide - 1)[..., wide // 2 : wide // 2 + w]
    return _padded(bands.permute(2, 0, 1, 3).reshape(w * c, high * w).contiguous())


def _one_channel(
    x: Tensor, weight: Tensor, stride: list[int], padding: list[int], dilation: list[int], transposed: bool, groups: int
) -> bool:
    """Whether a convolution of one input channel in all keeps the size of its images, whose rows are short."""
    if not applies(x) or not x.dim() == weight.dim() == 4 or not weight.shape[1] == groups == 1 or transposed:
        return False
    if x.shape[3] > SHORT:
        return False
    return {*stride, *dilation} == {1} and [2 * p + 1 for p in padding] == list(weight.shape[2:])


def product(a: Tensor, b: Tensor) -> Tensor:
    """A B with a side of at most `THIN`, as sums that generated code computes within the operations around them."""
    (m, k), n = a.shape, b.shape[1]
    if not applies(a) or m > ROWS or min(k, n) > THIN:
        return NotImplemented  # type: ignore[no-any-return]
    return _sums(a, b).to(a.dtype)


def product_and_sum(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """b + A B, in the same way."""
    if not applies(a) or len(a) > ROWS or b.shape[1] > THIN or beta != 1 or alpha != 1:
        return NotImplemented  # type: ignore[no-any-return]
    return (_sums(a, b) + bias).to(a.dtype)


def _sums(a: Tensor, b: Tensor) -> Tensor:
    summed = torch.promote_types(a.dtype, torch.float32)
    if b.shape[1] <= THIN:
        return (a.to(summed)[:, None] * b.t().to(summed)).sum(dim=2)
    # Term by term: of a sum over so few the compiler makes a block of threads for each element.
    a = a.contiguous()
    return reduce(torch.add, (a[:, i : i + 1].to(summed) * b[i : i + 1].to(summed) for i in range(a.shape[1])))


def _padded(matrix: Tensor) -> Tensor:
    """With columns of 0 up to a multiple of 8, as the units for bf16 take them."""
    return F.pad(matrix, (0, -matrix.shape[1] % 8))


TABLE: dict[Any, Callable[..., Any]] = {
    aten.convolution.default: convolution,
    aten.convolution_backward.default: convolution_backward,
    aten.mm.default: product,
    aten.addmm.default: product_and_sum,
}
"""What takes the place of each operator in a traced graph; NotImplemented leaves the operator."""
