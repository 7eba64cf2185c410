"""The engine's side of a comparison. Everything that knows how `robattr.engine` is called is in this file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from benchmarks.measure import Work, operations, size_of
from benchmarks.workloads import Workload
from robattr.engine import Step, layout, precision
from robattr.engine.batch_size import SECOND_ORDER, bytes_per_row
from robattr.formula import PGD, Change, Robust
from robattr.formula.network import bind, gradient, second_order


@dataclass(frozen=True)
class Mode:
    """How the engine runs: precision, and compiled or eager."""

    arithmetic: str
    compiled: bool

    def describe(self, device: torch.device) -> str:
        if not self.compiled:
            return f"eager, constant parameters, {self.arithmetic}"
        return f"compiled{' + CUDA graph' if device.type == 'cuda' else ''}, {self.arithmetic}"


def laid_out(work: Workload, mode: Mode) -> Workload:
    """A copy of the workload in the memory layout that training uses."""
    own, form = work.copied(), layout(mode.arithmetic, work.x)
    if form == torch.contiguous_format:
        return own
    x, start = (t.contiguous(memory_format=form) for t in (own.x, own.start))
    return replace(own, model=own.model.to(memory_format=form), x=x, start=start)  # type: ignore[call-overload]


def attack_gradient(work: Workload, change: Change, arithmetic: str) -> Tensor:
    """∇_{x'} Σ d(x, x') at the start, as one attack step of `Step` takes it."""
    net, x, y = bind(work.model).detach(), work.x, work.y
    with second_order(work.model), precision(arithmetic, x.device.type), torch.no_grad():
        return gradient(lambda v: change(net, x, v, y), work.start)


def training_step(work: Workload, rho: Robust, mode: Mode) -> tuple[Callable[[], object], Step]:
    """() ↦ one whole step (attack, gradient, optimiser), and the engine's `Step`."""
    step, optimizer = Step(work.model, compiled=mode.compiled, arithmetic=mode.arithmetic), make_optimizer(work)

    def run() -> object:
        optimizer.zero_grad()
        out = step(rho, work.x, work.y, start=work.start)
        optimizer.step()
        return out

    return run, step


def make_optimizer(work: Workload) -> torch.optim.Optimizer:
    """The recipe's optimiser at learning rate 0: the same work, and every repeat starts from the same weights."""
    parameters = list(work.model.parameters())
    if work.config.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=0.0)
    return torch.optim.SGD(parameters, lr=0.0, momentum=work.config.momentum)


def work_of_step(work: Workload, rho: Robust, *, m: int, m_attack: int, arithmetic: str) -> Work:
    """A whole step: the update counted once, one attack step counted and multiplied."""
    step, steps = Step(work.model, graph=False), work.config.attack_steps

    def count(n: int) -> int:
        few = replace(rho, by=PGD(n, work.config.step_size))
        return operations(lambda: step(few, work.x, work.y, start=work.start))

    parameters, images, update = size_of(*work.model.parameters()), size_of(work.x), count(0)
    total = update + steps * (count(1) - update)
    work.model.zero_grad()
    moved = steps * (parameters + 3 * images) + 4 * parameters + 2 * images  # θ, ∇θ and the optimiser's state
    return Work(total, moved, kept_traffic(work, m + steps * m_attack, arithmetic))


def kept_traffic(work: Workload, nodes: int, arithmetic: str) -> float:
    """Bytes to write and read once what the forward passes at `nodes` points of every example keep."""
    width = 0.5 if arithmetic == "bf16" else 1.0
    kept = bytes_per_row(work.model, work.x) / SECOND_ORDER  # one forward pass of one example
    return width * 2 * kept * len(work.x) * nodes
