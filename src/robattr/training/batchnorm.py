"""Batch normalisation over the global batch of several processes.

ρ needs the network as a fixed function, so the attack and the path use batch norm in eval mode, with its running
statistics. Only the clean loss ℓ(x, y) uses train mode and updates those statistics.

With several processes, train mode must use the statistics of the *global* batch. `torch.nn.SyncBatchNorm` has no second
derivative, so `over_global_batch` replaces the forward pass of each layer: in train mode it sums over processes
(differentiable once, enough for the clean loss), in eval mode it is the layer's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.modules.batchnorm import _BatchNorm

from robattr.engine.processes import World


@contextmanager
def over_global_batch(model: nn.Module, world: World) -> Iterator[None]:
    """Let batch norm in train mode use the statistics of the global batch, within the context."""
    layers = [module for module in model.modules() if isinstance(module, _BatchNorm)] if world.size > 1 else []
    for layer in layers:
        layer.forward = partial(_forward, layer)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def _forward(layer: _BatchNorm, x: Tensor) -> Tensor:
    if not layer.training:
        return type(layer).forward(layer, x)
    low, x = x.dtype, x.to(torch.promote_types(x.dtype, torch.float32))  # as torch's own: bf16 holds no sum
    axes = [0, *range(2, x.ndim)]
    shape = [1, -1] + [1] * (x.ndim - 2)
    count = _total(x.new_tensor([x.numel() / x.shape[1]]))
    mean = _total(x.sum(axes)) / count
    centred = x - mean.view(shape)
    variance = _total((centred * centred).sum(axes)) / count
    _update_running(layer, mean.detach(), (variance * count / (count - 1)).detach())
    normalised = centred * (variance + layer.eps).rsqrt().view(shape)
    if layer.weight is None:
        return normalised.to(low)
    return (normalised * layer.weight.view(shape) + layer.bias.view(shape)).to(low)


def _update_running(layer: _BatchNorm, mean: Tensor, variance: Tensor) -> None:
    """running ← (1 − a)·running + a·batch, with a the layer's momentum, or 1/n if it is None."""
    assert layer.running_mean is not None
    assert layer.running_var is not None
    assert layer.num_batches_tracked is not None
    layer.num_batches_tracked.add_(1)
    share = 1 / layer.num_batches_tracked.item() if layer.momentum is None else layer.momentum
    layer.running_mean.lerp_(mean, share)
    layer.running_var.lerp_(variance, share)


class _Total(torch.autograd.Function):
    """The sum over processes. Each process uses the sum, so its gradient is the sum of their gradients."""

    @staticmethod
    def forward(values: Tensor) -> Tensor:
        total = values.contiguous().clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return _total(gradients[0])


def _total(values: Tensor) -> Tensor:
    total: Tensor = _Total.apply(values)  # type: ignore[no-untyped-call]
    return total
