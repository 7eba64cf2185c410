"""The engine's side of a comparison, and the floor under its time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from robattr.bench.counting import operations, size_of
from robattr.bench.results import Roofline
from robattr.bench.subjects import Subject
from robattr.bench.timing import Rates
from robattr.engine import Compiled, Step, layout, precision
from robattr.engine.batch_size import SECOND_ORDER, bytes_per_row
from robattr.formula import PGD, Change, Robust
from robattr.formula.network import bind, second_order
from robattr.formula.network import gradient as gradient_of


@dataclass(frozen=True)
class How:
    """How the engine runs here."""

    arithmetic: str
    compiled: bool

    def describe(self, device: torch.device) -> str:
        if not self.compiled:
            return f"eager, constant parameters, {self.arithmetic}"
        return f"compiled{' + CUDA graph' if device.type == 'cuda' else ''}, {self.arithmetic}"


def laid_out(subject: Subject, how: How) -> Subject:
    """A copy of the subject for the engine, in the layout that training uses as well."""
    own, form = subject.copied(), layout(how.arithmetic, subject.x)
    if form == torch.contiguous_format:
        return own
    x, start = (t.contiguous(memory_format=form) for t in (own.x, own.start))
    return replace(own, model=own.model.to(memory_format=form), x=x, start=start)  # type: ignore[call-overload]


def attack_gradient(subject: Subject, change: Change, how: How) -> tuple[Callable[[], Tensor], float]:
    """() ↦ ∇_{x'} Σ d(x, x') at the start, parameters constant; and the seconds of its first call, when compiled.

    The same construction as inside `robattr.engine.Step`, where it runs once per attack step.
    """
    model, x, y, z = subject.model, subject.x, subject.y, subject.start
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    buffers, bound = dict(model.named_buffers()), bind(model)

    def gradient(parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, z: Tensor, y: Tensor) -> Tensor:
        net = bound.with_parameters(parameters, buffers)
        with torch.no_grad():
            return gradient_of(lambda v: change(net, x, v, y), z)

    fn = Compiled(gradient, name="attack gradient") if how.compiled else gradient

    def run() -> Tensor:
        with second_order(model), precision(how.arithmetic, x.device.type):
            out: Tensor = fn(parameters, buffers, x, z, y)
        return out

    run()
    seconds = fn.seconds if isinstance(fn, Compiled) else 0.0
    return (graphed(run) if how.compiled and x.is_cuda else run), seconds


def graphed(fn: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """fn() captured as a CUDA graph; the call replays it and returns the same tensor, filled anew."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        fn()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = fn()

    def replay() -> Tensor:
        graph.replay()
        return out

    return replay


def training_step(subject: Subject, rho: Robust, how: How) -> tuple[Callable[[], object], Step]:
    """() ↦ one whole step (attack, gradient, optimiser), and the engine's `Step` behind it.

    The learning rate is zero: the same work, and every repeat starts from the same weights.
    """
    step = Step(subject.model, compiled=how.compiled, arithmetic=how.arithmetic)
    optimizer = make_optimizer(subject)

    def run() -> object:
        optimizer.zero_grad()
        out = step(rho, subject.x, subject.y, start=subject.start)
        optimizer.step()
        return out

    return run, step


def make_optimizer(subject: Subject) -> torch.optim.Optimizer:
    """The recipe's optimiser at rate 0, the same for both sides."""
    parameters = list(subject.model.parameters())
    if subject.run.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=0.0)
    return torch.optim.SGD(parameters, lr=0.0, momentum=subject.run.momentum)


@dataclass(frozen=True)
class Work:
    """Operations, least bytes and kept bytes of a piece of work."""

    operations: float
    bytes: float
    kept: float

    def over(self, rates: Rates, *, baseline: float) -> Roofline:
        busy, moved = 1e3 * self.operations / rates.operations, 1e3 * self.bytes / rates.bytes
        return Roofline(
            self.operations,
            self.bytes,
            self.kept,
            baseline,
            floor_ms=max(busy, moved),
            kept_ms=1e3 * self.kept / rates.bytes,
            bound="operations" if busy >= moved else "bytes",
        )


def work_of_gradient(subject: Subject, change: Change, *, m: int, arithmetic: str) -> Work:
    """Of one attack gradient with m nodes: inputs and parameters read, one gradient written."""
    plain, _ = attack_gradient(subject, change, How("fp32", compiled=False))
    parameters = size_of(*subject.model.parameters())
    return Work(operations(plain), parameters + 3 * size_of(subject.x), kept_traffic(subject, m, arithmetic))


def work_of_step(subject: Subject, rho: Robust, *, m: int, m_attack: int, arithmetic: str) -> Work:
    """Of a whole step: the update counted once, one attack step counted and multiplied."""
    step = Step(subject.model, graph=False)  # recording a CUDA graph runs the step three times

    def count(steps: int) -> int:
        few = replace(rho, by=PGD(steps, subject.run.step_size))
        return operations(lambda: step(few, subject.x, subject.y, start=subject.start))

    steps, parameters, images = subject.run.attack_steps, size_of(*subject.model.parameters()), size_of(subject.x)
    update = count(0)
    total = update + steps * (count(1) - update)
    subject.model.zero_grad()
    moved = steps * (parameters + 3 * images) + 4 * parameters + 2 * images  # θ, ∇θ and the optimiser's state
    return Work(total, moved, kept_traffic(subject, m + steps * m_attack, arithmetic))


def kept_traffic(subject: Subject, nodes: int, arithmetic: str) -> float:
    """Bytes to write and read once what the forward passes at `nodes` points of every example keep."""
    width = 0.5 if arithmetic == "bf16" else 1.0
    kept = bytes_per_row(subject.model, subject.x) / SECOND_ORDER  # by one forward pass of one example
    return width * 2 * kept * len(subject.x) * nodes
