"""Equal formulas of operators that generated code runs faster than torch's kernels: in bf16 on a GPU.

docs/tried.md has the milliseconds that they and the pairs of layers (`layer_pairs`) save.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

aten = torch.ops.aten


def applies(x: Tensor) -> bool:
    """Whether the forms below take the place of the operator at x."""
    return x.is_cuda and x.dtype == torch.bfloat16


def convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: list[int], padding: list[int], dilation: list[int],
    transposed: bool, output_padding: list[int], groups: int,
) -> Tensor:  # fmt: skip
    """Σ_j w_j x_{i+j} of one input channel: patches of x (N·H·W, k²) times w (k², C), with channels last."""
    if not _one_channel(x, weight, stride, padding, dilation, transposed, groups):
        return NotImplemented  # type: ignore[no-any-return]
    n, _, h, w = x.shape
    c, taps = len(weight), weight[0].numel()
    patches = aten.im2col(x, list(weight.shape[2:]), dilation, padding, stride).transpose(1, 2).reshape(-1, taps)
    out = _padded(patches) @ _padded(weight.reshape(c, taps)).t()
    return (out if bias is None else out + bias).view(n, h, w, c).permute(0, 3, 1, 2)


def convolution_backward(
    grad: Tensor, x: Tensor, weight: Tensor, bias_sizes: list[int] | None, stride: list[int], padding: list[int],
    dilation: list[int], transposed: bool, output_padding: list[int], groups: int, mask: list[bool],
) -> tuple[Tensor, None, None]:  # fmt: skip
    """The input gradient of `convolution`: w (k², C) times g (C, N·H·W), an image for each tap, moved and added."""
    one_channel = _one_channel(grad, weight, stride, padding, dilation, transposed, groups)
    if not one_channel or list(mask) != [True, False, False]:
        return NotImplemented  # type: ignore[no-any-return]
    n, c, h, w = grad.shape
    high, wide = weight.shape[2:]
    images = _padded(weight.reshape(c, -1)).t() @ grad.permute(0, 2, 3, 1).reshape(-1, c).t()
    summed = torch.promote_types(grad.dtype, torch.float32)
    around = F.pad(images.view(-1, n, h, w), (wide // 2, wide // 2, high // 2, high // 2)).to(summed)
    taps = [(i, j) for i in range(high) for j in range(wide)]
    out = sum(
        around[i * wide + j, :, high - 1 - i : high - 1 - i + h, wide - 1 - j : wide - 1 - j + w] for i, j in taps
    )
    return torch.as_tensor(out).to(grad.dtype)[:, None], None, None


def _one_channel(
    x: Tensor, weight: Tensor, stride: list[int], padding: list[int], dilation: list[int], transposed: bool, groups: int
) -> bool:
    """Whether a convolution of one input channel in all keeps the size of its images."""
    if not applies(x) or not x.dim() == weight.dim() == 4 or not weight.shape[1] == groups == 1 or transposed:
        return False
    return {*stride, *dilation} == {1} and [2 * p + 1 for p in padding] == list(weight.shape[2:])


def _padded(matrix: Tensor) -> Tensor:
    """With columns of 0 up to a multiple of 8, as the units for bf16 take them."""
    return F.pad(matrix, (0, -matrix.shape[1] % 8))


TABLE: dict[Any, Callable[..., Any]] = {
    aten.convolution.default: convolution,
    aten.convolution_backward.default: convolution_backward,
}
"""What takes the place of each operator in a traced graph; NotImplemented leaves the operator."""
