"""Equal formulas of operators that generated code runs faster than torch's kernels: in bf16 on a GPU.

They make a training step of the paper's CNN on MNIST a fifth shorter; docs/tried.md has the milliseconds of each.
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


def pool_gradient(
    grad: Tensor, x: Tensor, kernel: list[int], stride: list[int], padding: list[int], dilation: list[int],
    ceil_mode: bool, indices: Tensor,
) -> Tensor:  # fmt: skip
    """∂ of a max-pool without overlap: the element that is the largest of its window has its gradient, the others 0.

    A comparison with the index of that element; the compiler calls torch's kernel where channels come last.
    """
    by_h, by_w = kernel[0], kernel[-1]
    n, c, h, w = x.shape if x.dim() == 4 else (0, 0, 1, 1)
    plain = list(stride) in ([], [by_h, by_w]) and not any(padding) and {*dilation} == {1}
    if not applies(x) or not n or not plain or h % by_h or w % by_w:
        return NotImplemented  # type: ignore[no-any-return]

    def of_window(t: Tensor) -> Tensor:
        windows = t[:, :, :, None, :, None].expand(n, c, h // by_h, by_h, w // by_w, by_w)
        return windows.reshape(n, c, h, w)

    place = torch.arange(h * w, device=x.device).view(h, w)
    out = torch.where(of_window(indices) == place, of_window(grad), 0)
    last = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    return out.contiguous(memory_format=torch.channels_last) if last else out


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
    """The input gradient of `convolution`: g (N·H·W, C) times w (C, k²), and each patch added where it was taken."""
    one_channel = _one_channel(grad, weight, stride, padding, dilation, transposed, groups)
    if not one_channel or list(mask) != [True, False, False]:
        return NotImplemented  # type: ignore[no-any-return]
    n, c, h, w = grad.shape
    high, wide = weight.shape[2:]
    patches = grad.permute(0, 2, 3, 1).reshape(-1, c) @ _padded(weight.reshape(c, -1))
    summed = torch.promote_types(grad.dtype, torch.float32)
    around = F.pad(patches.view(n, h, w, -1), (0, 0, wide // 2, wide // 2, high // 2, high // 2)).to(summed)
    taps = [(i, j) for i in range(high) for j in range(wide)]
    out = sum(
        around[:, high - 1 - i : high - 1 - i + h, wide - 1 - j : wide - 1 - j + w, i * wide + j] for i, j in taps
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
    aten.max_pool2d_with_indices_backward.default: pool_gradient,
    aten.convolution.default: convolution,
    aten.convolution_backward.default: convolution_backward,
}
"""What takes the place of each operator in a traced graph; NotImplemented leaves the operator."""
