"""What a training step will cost, measured on one example before hours are spent.

second-order passes per example and step = attack_steps · m_attack + m
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from robattr.auditing.wrapped_model import WrappedModel
from robattr.engine.batch_size import bytes_per_row
from robattr.formula.attribution import IG
from robattr.formula.network import bind, gradient, second_order
from robattr.formula.quadrature import midpoint
from robattr.formula.sizes import l1

SHARE = 0.6  # of the memory, left to the nodes of the path
NODES = 2  # of the gradient that is timed
ENOUGH = 0.25  # seconds after which one example has told enough


@dataclass(frozen=True)
class Cost:
    """Of one update with a batch: bytes at the peak and bytes there are, seconds, and those of a second-order pass."""

    peak: int
    available: int
    seconds: float
    per_pass: float

    @property
    def fits(self) -> bool:
        return self.peak <= SHARE * self.available


def cost(model: WrappedModel, x: Tensor, y: Tensor, *, m: int, m_attack: int, attack_steps: int, batch: int) -> Cost:
    """Extrapolated from a small batch; a large one on a GPU is faster than this."""
    fixed = 4 * sum(p.numel() * p.element_size() for p in model.parameters())  # weights, gradient, Adam's two moments
    with second_order(model):
        peak = fixed + bytes_per_row(model, x) * batch * max(m, m_attack)
    passes = attack_steps * m_attack + m
    each = _seconds_per_row(model, x, y)
    return Cost(peak, memory(x.device), each * passes * batch, each)


def chunk_that_fits(model: WrappedModel, x: Tensor, *, m: int, batch: int) -> int | None:
    """How many nodes of a batch fit in memory together; None where all m do."""
    with second_order(model):
        fits = int(SHARE * memory(x.device)) // (bytes_per_row(model, x) * batch)
    return None if fits >= m else max(1, fits)


def memory(device: torch.device) -> int:
    """Bytes of memory the device has."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not a POSIX system
        return 8 * 2**30


def _seconds_per_row(model: WrappedModel, x: Tensor, y: Tensor) -> float:
    """Of the gradient of ‖IG(x, x')‖₁, per example and node: by a batch, which hides overheads, where one is cheap."""
    slow = _seconds(model, x, y, examples=1)
    return slow / NODES if slow > ENOUGH else _seconds(model, x, y, examples=32) / (32 * NODES)


def _seconds(model: WrappedModel, x: Tensor, y: Tensor, *, examples: int) -> float:
    """The faster of two tries: the first also pays for what torch sets up."""
    change = l1 @ IG(rule=midpoint(NODES))
    x, y = x[:1].expand(examples, *x.shape[1:]), y[:1].expand(examples)
    times = []
    with second_order(model), torch.no_grad():
        net = bind(model).detach()
        for _ in range(2):
            began = time.perf_counter()
            gradient(lambda z: change(net, x, z, y), x + 0.01)
            if x.is_cuda:
                torch.cuda.synchronize(x.device)
            times.append(time.perf_counter() - began)
    return min(times)
