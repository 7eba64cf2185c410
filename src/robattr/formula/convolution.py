"""Convolutions whose derivatives, of every order, are convolutions, input gradients and weight gradients.

⟨g, x ∗ W⟩ is linear in each of x, W and g. Its three partial derivatives are

    Convolution(x, W) = x ∗ W        InputGradient(g, W) = ∂/∂x        WeightGradient(x, g) = ∂/∂W

and the derivatives of each of them are the other two. torch instead writes ∂⟨v, InputGradient(g, W)⟩/∂W, which every
step on ‖IG‖₁ needs, as a convolution of v whose kernel is g, as large as an image: GPUs have no fast kernel for that.

`custom_derivatives()` is the mode in which torch's convolutions are these. Three more functions are replaced there:
batch norm with frozen statistics is s·x + t, because torch's takes a dozen operations for its second derivative; hard
sigmoid, whose own has none, is min(max(x + 3, 0), 6)/6; attention is that of `formula.attention`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from robattr.formula.attention import attention, self_attention

aten = torch.ops.aten


class Geometry(NamedTuple):
    """The parameters of a convolution. `padding` has numbers, the same at both ends of an axis."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    transposed: bool
    output_padding: list[int]
    groups: int


class Convolution(torch.autograd.Function):
    """x ∗ W + b."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor | None, geometry: Geometry) -> Tensor:
        # Each operand is kept only for the derivative in the other one.
        ctx.save_for_backward(*_kept(ctx, x, w))
        ctx.geometry, ctx.x_shape, ctx.w_shape = geometry, x.shape, w.shape
        out: Tensor = aten.convolution(x, w, b, *geometry)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, w = ctx.saved_tensors
        return (
            applied(InputGradient, g, w, ctx.x_shape, ctx.geometry) if ctx.needs_input_grad[0] else None,
            applied(WeightGradient, x, g, ctx.w_shape, ctx.geometry) if ctx.needs_input_grad[1] else None,
            g.sum((0, *range(2, g.dim()))) if ctx.needs_input_grad[2] else None,
            None,
        )


class InputGradient(torch.autograd.Function):
    """∂⟨g, x ∗ W⟩/∂x."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, w: Tensor, shape: torch.Size, geometry: Geometry) -> Tensor:
        ctx.save_for_backward(*_kept(ctx, g, w))
        ctx.geometry, ctx.w_shape = geometry, w.shape
        out: Tensor = aten.convolution_backward(g, _blank(shape, g, w), w, None, *geometry, [True, False, False])[0]
        return out

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor | None, ...]:
        g, w = ctx.saved_tensors
        return (
            applied(Convolution, v, w, None, ctx.geometry) if ctx.needs_input_grad[0] else None,
            applied(WeightGradient, v, g, ctx.w_shape, ctx.geometry) if ctx.needs_input_grad[1] else None,
            None,
            None,
        )


class WeightGradient(torch.autograd.Function):
    """∂⟨g, x ∗ W⟩/∂W."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, g: Tensor, shape: torch.Size, geometry: Geometry) -> Tensor:
        ctx.save_for_backward(*_kept(ctx, x, g))
        ctx.geometry, ctx.x_shape = geometry, x.shape
        out: Tensor = aten.convolution_backward(g, x, _blank(shape, x, g), None, *geometry, [False, True, False])[1]
        return out

    @staticmethod
    def backward(ctx: Any, u: Tensor) -> tuple[Tensor | None, ...]:
        x, g = ctx.saved_tensors
        return (
            applied(InputGradient, g, u, ctx.x_shape, ctx.geometry) if ctx.needs_input_grad[0] else None,
            applied(Convolution, x, u, None, ctx.geometry) if ctx.needs_input_grad[1] else None,
            None,
            None,
        )


def applied(function: type[torch.autograd.Function], *args: Any) -> Tensor:
    """`function.apply(*args)`, typed."""
    out: Tensor = function.apply(*args)
    return out


def _kept(ctx: Any, a: Tensor, b: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Two factors, each only if the derivative in the other one is needed."""
    return (a if ctx.needs_input_grad[1] else None), (b if ctx.needs_input_grad[0] else None)


def _blank(shape: torch.Size, *others: Tensor) -> Tensor:
    """An operand whose shape and layout alone are read: its values are not written.

    Its channels lie last where those of another operand do; else cuDNN's kernels are given a copy of it. As a view,
    because the compiler does not keep the layout that `torch.empty` is asked for.
    """
    lasts = {4: torch.channels_last, 5: torch.channels_last_3d}
    like, last = others[0], lasts.get(len(shape))
    if last is None or not any(t.is_contiguous(memory_format=last) and not t.is_contiguous() for t in others):
        return torch.empty(shape, dtype=like.dtype, device=like.device)
    n, channels, *size = shape
    return torch.empty((n, *size, channels), dtype=like.dtype, device=like.device).movedim(-1, 1)


class Replaced(TorchFunctionMode):
    """While active, `table` has the function that runs in the place of each; one that returns None leaves the call."""

    def __init__(self, table: Mapping[Any, Callable[..., Any]]) -> None:
        super().__init__()
        self.table = table

    def __torch_function__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        ours = self.table.get(func)
        out = None if ours is None else ours(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {})) if out is None else out


def custom_derivatives() -> Replaced:
    """While active, torch's convolutions, attention, frozen batch norms and hard sigmoids are those above."""
    return Replaced(REPLACED)


def _conv(n: int) -> Callable[..., Tensor | None]:
    """The replacement of torch.conv{n}d; None for inputs without a batch, intervals and wrong paddings."""

    def conv(
        input: Tensor, weight: Tensor, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
        groups: int = 1,
    ) -> Tensor | None:  # fmt: skip
        if not isinstance(input, Tensor) or input.dim() != n + 2 or weight.dim() != n + 2:
            return None
        stride, dilation = each_axis(stride, n), each_axis(dilation, n)
        if isinstance(padding, str):
            if padding not in ("valid", "same") or (padding == "same" and set(stride) != {1}):
                return None
            total = [d * (k - 1) if padding == "same" else 0 for d, k in zip(dilation, weight.shape[2:], strict=True)]
            padding = [t // 2 for t in total]
            if any(t % 2 for t in total):  # the odd row goes behind the image
                input = F.pad(input, [side for t in reversed(total) for side in (0, t % 2)])
        return _convolve(input, weight, bias, Geometry(stride, each_axis(padding, n), dilation, False, [0] * n, groups))

    return conv


def _conv_transpose(n: int) -> Callable[..., Tensor | None]:
    def conv_transpose(
        input: Tensor, weight: Tensor, bias: Any = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0,
        groups: int = 1, dilation: Any = 1,
    ) -> Tensor | None:  # fmt: skip
        if input.dim() != n + 2 or weight.dim() != n + 2:
            return None
        stride, padding, output_padding, dilation = (
            each_axis(each, n) for each in (stride, padding, output_padding, dilation)
        )
        return _convolve(input, weight, bias, Geometry(stride, padding, dilation, True, output_padding, groups))

    return conv_transpose


def _convolve(x: Tensor, w: Tensor, b: Tensor | None, geometry: Geometry) -> Tensor:
    kind = x.device.type
    if torch.is_autocast_enabled(kind):  # by hand, because autocast does not see the operands of the derivatives
        low = torch.get_autocast_dtype(kind)
        x, w = (t if t.dtype == torch.float64 else t.to(low) for t in (x, w))
        b = b if b is None else b.to(w.dtype)
    return applied(Convolution, x, w, b, geometry)


def each_axis(value: Any, n: int) -> list[int]:
    """One number for each axis."""
    several = [value] if isinstance(value, int) else list(value)
    return several * n if len(several) == 1 else several


def _batch_norm(
    input: Tensor, running_mean: Tensor | None, running_var: Tensor | None, weight: Tensor | None = None,
    bias: Tensor | None = None, training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
) -> Tensor | None:  # fmt: skip
    """s·x + t, s = γ/√(σ² + eps) and t = β − s·μ of each channel; None where the batch has its own statistics."""
    if training or running_mean is None or running_var is None or not isinstance(input, Tensor):
        return None
    s = (running_var + eps).rsqrt() if weight is None else weight * (running_var + eps).rsqrt()
    t = -s * running_mean if bias is None else bias - s * running_mean
    shape = (1, -1, *(1,) * (input.dim() - 2))
    return torch.addcmul(t.view(shape), input.to(s.dtype), s.view(shape)).to(input.dtype)


def _aten_batch_norm(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None, running_var: Tensor | None,
    training: bool, momentum: float, eps: float, _: bool,
) -> Tensor | None:  # fmt: skip
    return _batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)


def _hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    out = F.relu6(input + 3.0) / 6.0
    return input.copy_(out) if inplace else out


REPLACED: dict[Any, Callable[..., Any]] = {
    **{f: _conv(n) for n, f in enumerate((torch.conv1d, torch.conv2d, torch.conv3d), 1)},
    **{f: _conv(n) for n, f in enumerate((aten.conv1d.default, aten.conv2d.default, aten.conv3d.default), 1)},
    **{f: _conv(n) for n, f in enumerate((aten.conv1d.padding, aten.conv2d.padding, aten.conv3d.padding), 1)},
    torch.conv_transpose1d: _conv_transpose(1),
    torch.conv_transpose2d: _conv_transpose(2),
    torch.conv_transpose3d: _conv_transpose(3),
    F.batch_norm: _batch_norm,
    torch.batch_norm: _aten_batch_norm,
    aten.batch_norm.default: _aten_batch_norm,
    F.scaled_dot_product_attention: attention,
    aten.scaled_dot_product_attention.default: attention,
    F.multi_head_attention_forward: self_attention,
    F.hardsigmoid: _hardsigmoid,
    aten.hardsigmoid.default: _hardsigmoid,
}
"""What takes the place of each function; the operators are what an exported module calls."""
