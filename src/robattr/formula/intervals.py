"""Interval bounds of a network over a box of inputs, forward and backward: what no attack in the box can exceed.

    forward    low ≤ u(x') ≤ high       for every activation u and every x' in the box (Gowal et al. 2018)
    backward   low ≤ ∂f/∂u(x') ≤ high   in the reverse order, from the range of ∂f/∂z at the logits (Wicker et al. 2023)

This file has the rule of each operation, forward and backward; docs/certificates.md proves them. All are differentiable
in θ.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from robattr.errors import UnsupportedModel, shape_of
from robattr.formula.convolution import custom_derivatives
from robattr.formula.network import Bound
from robattr.formula.ranges import IN_PLACE, RULES, Interval, Linear, Range, Rule, Tape, affine, monotone, refused


def propagate(net: Bound, box: Range, *, unit: float = 0.0) -> tuple[Interval, Interval]:
    """A box of inputs (B, ...), and the logits (B, C) on it, as intervals of one tape.

    `unit` is 0 where roundings are ignored, as in training. With the machine epsilon every range is widened by more
    than its rounding error.
    """
    inputs = Interval(box.widened(unit), Tape(unit))
    net = net if torch.is_grad_enabled() else net.detach()
    with torch.enable_grad():  # so that what the network does without it is noticed (`ranges.apply`)
        logits: Any = net.run(inputs)
    if not isinstance(logits, Interval) or logits.dim() != 2:
        raise UnsupportedModel(
            f"expected logits of shape (B, classes) that depend on the input, got {shape_of(logits)}"
        )
    return inputs, logits


def _convolution(func: Any) -> Rule:
    def rule(input: Interval, weight: Tensor, bias: Tensor | None = None, *args: Any, **kwargs: Any) -> Interval:
        def by(w: Tensor) -> Linear:
            def convolve(z: Tensor) -> Tensor:
                with custom_derivatives():
                    out: Tensor = func(z, w, None, *args, **kwargs)
                return out

            return convolve

        b = None if bias is None else bias.reshape(-1, *(1,) * (weight.dim() - 2))
        return affine(input, by(weight), by(weight.abs()), b, terms=weight.numel())

    return rule


def _linear(input: Interval, weight: Tensor, bias: Tensor | None = None) -> Interval:
    a, size = (lambda z, w=w: F.linear(z, w) for w in (weight, weight.abs()))
    out = affine(input, a, size, bias, terms=weight.numel())
    out.linear = copy(input), weight, bias  # as it is now: a later operation in place changes `input`
    return out


def _leaky_relu(input: Interval, negative_slope: float = 0.01) -> Interval:
    """max(u, a·u) is monotone; its slope at x' is that of one of the two ends. At 0 it is a, as in autograd."""
    if not 0 <= negative_slope <= 1:
        raise UnsupportedModel(f"interval bounds expect a leaky ReLU with a slope in [0, 1], got {negative_slope}")
    share = input.tape.unit if 0 < negative_slope < 1 else 0.0
    least, most = (torch.full_like(end, negative_slope).masked_fill(end > 0, 1.0) for end in input.range)

    def back(g: Range) -> Range:
        low, high = torch.minimum(g.low * least, g.low * most), torch.maximum(g.high * least, g.high * most)
        return Range(low, high).widened(share)

    low, high = (F.leaky_relu(end, negative_slope) if negative_slope else end.relu() for end in input.range)
    return Interval(Range(low, high).widened(share), input.tape, (input, back))


def _scaled(x: Interval, by: Tensor, bias: Tensor | None = None) -> Interval:
    """by ⊙ x + bias, broadcast."""
    return affine(x, lambda z: z * by, lambda z: z * by.abs(), bias, terms=by.numel())


def _batch_norm(
    input: Interval, running_mean: Tensor | None, running_var: Tensor | None, weight: Tensor | None = None,
    bias: Tensor | None = None, training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
) -> Interval:  # fmt: skip
    """(u − mean)·w/√(var + eps) + b with the running statistics."""
    if training or running_mean is None or running_var is None:
        raise refused("batch norm in train mode")
    shape = (-1, *(1,) * (input.dim() - 2))
    mean, scale = running_mean.reshape(shape), (running_var + eps).rsqrt().reshape(shape)
    scale = scale if weight is None else scale * weight.reshape(shape)
    return _scaled(_add(input, -mean), scale, None if bias is None else bias.reshape(shape))


def _add(x: Any, y: Any, *, alpha: float = 1) -> Interval:
    y = y if alpha == 1 else alpha * y
    if not (isinstance(x, Interval) and isinstance(y, Interval)):
        x, constant = (x, _like(y, x)) if isinstance(x, Interval) else (y, _like(x, y))
        return _scaled(x, torch.ones_like(constant), constant)
    low, high = x.range.low + y.range.low, x.range.high + y.range.high
    share = x.tape.slack(low.numel())
    backs = [(each, partial(_summed_to, shape=each.shape, share=share)) for each in (x, y)]
    return Interval(Range(low, high).widened(x.tape.unit), x.tape, *backs)


def _summed_to(g: Range, *, shape: torch.Size, share: float) -> Range:
    """The sum over the axes along which the operand was broadcast."""
    return g if g.low.shape == shape else Range(*(end.sum_to_size(shape) for end in g)).widened(share)


def _sub(x: Any, y: Any, *, alpha: float = 1) -> Interval:
    return _add(x, -alpha * y)


def _mul(x: Any, y: Any) -> Interval:
    if isinstance(x, Interval) and isinstance(y, Interval):
        raise refused("the product of two activations")
    return _scaled(x, _like(y, x)) if isinstance(x, Interval) else _scaled(y, _like(x, y))


def _div(x: Any, y: Any) -> Interval:
    if isinstance(y, Interval):
        raise refused("a division by an activation")
    return _scaled(x, 1 / _like(y, x))


def _like(constant: Any, x: Interval) -> Tensor:
    return torch.as_tensor(constant, dtype=x.dtype, device=x.device)


def _averaged(func: Any) -> Rule:
    """Means and sums."""

    def rule(input: Interval, *args: Any, **kwargs: Any) -> Interval:
        return monotone(input, lambda z: func(z, *args, **kwargs), terms=input.numel())

    return rule


def _moved(func: Any) -> Rule:
    """Views, and copies that only move entries."""

    def rule(input: Interval, *args: Any, **kwargs: Any) -> Interval:
        out = monotone(input, lambda z: func(z, *args, **kwargs))
        input.shared = out.shared = True
        return out

    return rule


def _pad(input: Interval, pad: Any, mode: str = "constant", value: float | None = None) -> Interval:
    if value:
        raise UnsupportedModel(f"interval bounds expect padding with 0, got {value}")
    return monotone(input, lambda z: F.pad(z, pad, mode=mode), terms=input.numel())


def _clone(input: Interval, *, memory_format: Any = None) -> Interval:
    return monotone(input, torch.clone)


def _dropout(input: Interval, p: float = 0.5, training: bool = True) -> Interval:
    if training and p > 0:
        raise refused("dropout in train mode")
    return input


def _spelled(rule: Rule, *functions: Any) -> dict[Any, Rule]:
    return dict.fromkeys(functions, rule)


def _each(make: Callable[[Any], Rule], *functions: Any) -> dict[Any, Rule]:
    return {func: make(func) for func in functions}


RULES |= {
    F.linear: _linear,
    F.batch_norm: _batch_norm,
    F.pad: _pad,
    **_each(_convolution, torch.conv1d, torch.conv2d, torch.conv3d),
    **_each(_averaged, F.avg_pool1d, F.avg_pool2d, F.avg_pool3d),
    **_each(_averaged, F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d),
    **_each(_averaged, torch.mean, torch.sum, Tensor.mean, Tensor.sum),
    **_each(_moved, torch.flatten, torch.reshape, torch.permute, torch.transpose, torch.squeeze, torch.unsqueeze),
    **_each(_moved, Tensor.flatten, Tensor.reshape, Tensor.permute, Tensor.transpose, Tensor.squeeze),
    **_each(_moved, Tensor.unsqueeze, Tensor.view, Tensor.unflatten, Tensor.contiguous, Tensor.__getitem__),
    **_spelled(partial(_leaky_relu, negative_slope=0.0), F.relu, torch.relu, Tensor.relu),
    **_spelled(_leaky_relu, F.leaky_relu),
    **_spelled(_dropout, F.dropout, F.dropout1d, F.dropout2d, F.dropout3d),
    **_spelled(_add, torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__),
    **_spelled(_sub, torch.sub, Tensor.sub, Tensor.__sub__),
    **_spelled(_mul, torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__),
    **_spelled(_div, torch.div, Tensor.div, Tensor.__truediv__),
    Tensor.__rsub__: lambda x, y: _sub(y, x),
    **_spelled(lambda x: _mul(x, -1.0), torch.neg, Tensor.neg, Tensor.__neg__),
    **_spelled(_clone, torch.clone, Tensor.clone),
}
for _plain, _spellings in (
    (F.relu, (torch.relu_, Tensor.relu_)),
    (F.leaky_relu, (F.leaky_relu_,)),
    (torch.add, (Tensor.add_, Tensor.__iadd__)),
    (torch.sub, (Tensor.sub_, Tensor.__isub__)),
    (torch.mul, (Tensor.mul_, Tensor.__imul__)),
    (torch.div, (Tensor.div_, Tensor.__itruediv__)),
):
    IN_PLACE |= dict.fromkeys(_spellings, _plain)
