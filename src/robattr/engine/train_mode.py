"""Whether train mode changes what a model answers or keeps: dropout, batch statistics, counters."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from robattr.formula.network import second_order


def train_mode_differs(model: nn.Module, x: Tensor) -> bool:
    """Whether parts in train mode change the outputs or the buffers; then only eager steps are right."""
    if not any(part.training for part in model.modules()):
        return False
    if any(p.training and isinstance(p, nn.modules.batchnorm._BatchNorm) for p in model.modules()):
        return True
    kept = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []), torch.no_grad():
        before = _generators(x)
        own = model(x)
        drawn = not torch.equal(before, _generators(x))
        now = dict(model.named_buffers())
        moved = now.keys() != kept.keys() or not all(_untouched(now[name], kept[name]) for name in kept)
        for name in now.keys() & kept.keys():
            _restore(model, name, kept[name])
        with second_order(model):
            return drawn or moved or not _same(own, model(x))


def _generators(x: Tensor) -> Tensor:
    """The states of the random generators that a model at x may draw from."""
    return torch.cat([torch.get_rng_state(), *([torch.cuda.get_rng_state(x.device)] if x.is_cuda else [])])


def _untouched(a: Tensor, b: Tensor) -> bool:
    """Equal to the last bit: an average or a counter may move by little."""
    return a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())


def _restore(model: nn.Module, name: str, was: Tensor) -> None:
    """Give a buffer its earlier value: in place, unless the model has put one of another shape there."""
    owner, _, leaf = name.rpartition(".")
    buffer = model.get_buffer(name)
    if buffer.shape == was.shape:
        buffer.copy_(was)
    else:
        setattr(model.get_submodule(owner), leaf, was)


def _same(a: Tensor, b: Tensor) -> bool:
    """Equal but for the rounding of other kernels."""
    a, b = a.double(), b.double()
    largest = b.nan_to_num(0.0, 0.0, 0.0).abs().max() if b.numel() else 0.0
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-3, atol=1e-3 * float(largest), equal_nan=True)
