"""Batch normalisation in training, on one process or many.

The formula of ρ needs the network as one fixed function, so the attack and the path see batch norm in
evaluation mode, with its running statistics; only the clean loss ℓ(x, y) sees the module in training mode,
and moves those statistics.

On many processes the statistics of training mode must be those of the *global* batch.
`torch.nn.SyncBatchNorm` would give them but has no second derivative, so `over_global_batch` lends each layer
a forward pass that sums over processes in training mode (differentiable once, which is all the clean loss
needs) and is the layer's own in evaluation mode.
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


def layers(model: nn.Module) -> list[_BatchNorm]:
    """The batch-norm layers of `model`."""
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]


@contextmanager
def over_global_batch(model: nn.Module, world: World) -> Iterator[None]:
    """Within: the batch-norm layers of `model` in training mode normalise by the statistics of the global batch."""
    found = layers(model) if world.size > 1 else []
    for layer in found:
        layer.forward = partial(_forward, layer)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for layer in found:
            del layer.forward


def _forward(layer: _BatchNorm, x: Tensor) -> Tensor:
    if not layer.training:
        return type(layer).forward(layer, x)
    axes = [0, *range(2, x.ndim)]
    shape = [1, -1] + [1] * (x.ndim - 2)
    count = _total(x.new_tensor([x.numel() / x.shape[1]]))
    mean = _total(x.sum(axes)) / count
    centred = x - mean.view(shape)
    variance = _total((centred * centred).sum(axes)) / count
    _move(layer, mean.detach(), (variance * count / (count - 1)).detach())
    normal = centred * (variance + layer.eps).rsqrt().view(shape)
    if layer.weight is None:
        return normal
    return normal * layer.weight.view(shape) + layer.bias.view(shape)


def _move(layer: _BatchNorm, mean: Tensor, variance: Tensor) -> None:
    """running ← (1 − a)·running + a·batch, with a the layer's momentum, or 1/n for the plain average (None)."""
    assert layer.running_mean is not None
    assert layer.running_var is not None
    assert layer.num_batches_tracked is not None
    layer.num_batches_tracked.add_(1)
    share = 1 / layer.num_batches_tracked.item() if layer.momentum is None else layer.momentum
    layer.running_mean.lerp_(mean, share)
    layer.running_var.lerp_(variance, share)


class _Total(torch.autograd.Function):
    """The sum over processes. Each of them uses the sum, so the gradient is the sum of theirs."""

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
