"""How many examples of a twice differentiated network fit in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from robattr.formula.network import second_order

SECOND_ORDER = 3
"""Peak of a double reverse pass, in units of what a forward pass keeps.

Measured: 1.3 to 2.4 on ResNets and ViTs, in attacks and updates, on a CPU and a GPU; 5 in an attack on MNIST's CNN, on
a CPU."""
CPU_BUDGET = 3 * 2**22  # about a core's cache: larger batches are slower on a CPU
CUDA_SHARE = 0.5  # of the card's whole memory, so that equal cards cut equal batches


@dataclass
class Division:
    """The divisor of `rows_that_fit`, and the most rows that it found; 1 is not divided further."""

    by: int
    most: int = 1


_division: ContextVar[Division | None] = ContextVar("division", default=None)


@contextmanager
def divided(by: int) -> Iterator[Division]:
    """While open, `rows_that_fit` finds `by` times fewer rows, because memory ran out."""
    division = Division(by)
    token = _division.set(division)
    try:
        yield division
    finally:
        _division.reset(token)


def rows_that_fit(model: nn.Module, x: Tensor, *, passes: int, least: int = 1) -> int:
    """How many examples fit in memory, each at `passes` points at once; the same on equal machines.

    A multiple of `least`, as long as memory has not run out (`divided`); then at least 1.
    """
    budget = CPU_BUDGET
    if x.is_cuda:
        budget = int(CUDA_SHARE * torch.cuda.get_device_properties(x.device).total_memory)
    rows = max(least, budget // (passes * bytes_per_row(model, x)) // least * least)
    if division := _division.get():
        rows = max(1, rows // division.by)
        division.most = max(division.most, rows)
    return rows


def bytes_per_row(model: nn.Module, x: Tensor) -> int:
    """The memory of one example in a double reverse pass.

    It counts what autograd saves in a forward pass, without the parameters, which all examples share.
    """
    kept: dict[int, int] = {}
    shared = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def count(t: Tensor) -> Tensor:
        if t.untyped_storage().data_ptr() not in shared:
            kept[t.data_ptr()] = t.numel() * t.element_size()
        return t

    probe = x[:1].detach().clone().requires_grad_()
    hooks = torch.autograd.graph.saved_tensors_hooks(count, lambda t: t)
    with second_order(model), torch.enable_grad(), hooks:
        model(probe)
    return SECOND_ORDER * max(1, sum(kept.values()))
