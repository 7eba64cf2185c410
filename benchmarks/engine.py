"""The engine's side of a comparison. Everything that knows how `robattr.engine` is called is in this file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from benchmarks.measure import Work, operations, size_of
from benchmarks.workloads import Workload
from robattr.engine import Compiled, Step, layout, precision
from robattr.engine.batch_size import SECOND_ORDER, bytes_per_row
from robattr.engine.cuda_graph import Graphed
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


EAGER = Mode("fp32", compiled=False)


def laid_out(work: Workload, mode: Mode) -> Workload:
    """A copy of the workload in the memory layout that training uses."""
    own, form = work.copied(), layout(mode.arithmetic, work.x)
    if form == torch.contiguous_format:
        return own
    x, start = (t.contiguous(memory_format=form) for t in (own.x, own.start))
    return replace(own, model=own.model.to(memory_format=form), x=x, start=start)  # type: ignore[call-overload]


def attack_gradient(work: Workload, change: Change, mode: Mode) -> tuple[Callable[[], Tensor], float]:
    """() ↦ ∇_{x'} Σ d(x, x') at the start, as one attack step of `Step` takes it; and the seconds of compilation."""
    model, x, y, z = work.model, work.x, work.y, work.start
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    buffers, bound = dict(model.named_buffers()), bind(model)

    def of(parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, z: Tensor, y: Tensor) -> Tensor:
        net = bound.with_parameters(parameters, buffers)
        with torch.no_grad():
            return gradient(lambda v: change(net, x, v, y), z)

    fn = Compiled(of, name="attack gradient") if mode.compiled else of
    replayed = Graphed(partial(fn, parameters, buffers)) if mode.compiled else partial(fn, parameters, buffers)

    def run() -> Tensor:
        with second_order(model), precision(mode.arithmetic, x.device.type):
            out: Tensor = replayed(x, z, y)
        return out

    run()
    return run, fn.seconds if isinstance(fn, Compiled) else 0.0


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


def work_of_gradient(work: Workload, change: Change, *, m: int, arithmetic: str) -> Work:
    """One attack gradient with m nodes: inputs and parameters read, one gradient written."""
    eager, _ = attack_gradient(work, change, EAGER)
    parameters = size_of(*work.model.parameters())
    return Work(operations(eager), parameters + 3 * size_of(work.x), kept_traffic(work, m, arithmetic))


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
