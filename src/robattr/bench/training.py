"""The attack gradient and the whole training step: the eager port of the reference against the engine."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from robattr.bench import naive
from robattr.bench.agree import ALLOWED, agree, distance
from robattr.bench.counting import operations, peak_bytes
from robattr.bench.engine import (
    How,
    attack_gradient,
    laid_out,
    make_optimizer,
    training_step,
    work_of_gradient,
    work_of_step,
)
from robattr.bench.profiling import spent
from robattr.bench.quadrature import Accuracy, Quadrature, fine_penalty
from robattr.bench.results import Case, Comparison, Side, Table
from robattr.bench.subjects import Subject, subject
from robattr.bench.timing import Rates, side_by_side
from robattr.engine import Step, precision
from robattr.formula import PGD, Robust
from robattr.formula.attribution import IG
from robattr.formula.objective import Rho
from robattr.formula.quadrature import midpoint, right
from robattr.objectives import spread

MEMORY_VALUES = 40_000  # pixels of all examples in the memory table: 100 nodes of them must fit on any GPU
CPU = torch.device("cpu")


def measure(name: str, device: torch.device, arithmetic: str, *, rates: Rates, quick: bool) -> Case:
    """One net of the paper (or the small one): both sides checked against each other, then timed."""
    it = subject(name, device, quick=quick)
    ways = [How(arithmetic, compiled=True)] if device.type == "cuda" else [How(arithmetic, compiled=False)]
    if device.type == "cpu" and not quick:
        ways.append(How(arithmetic, compiled=True))  # not always faster on a CPU: both are tried
    quadrature = Quadrature(it)
    levels = [quadrature.equal("IG"), quadrature.equal("‖IG‖₁")]
    gradients = [compare_gradients(it, how, rates) for how in ways]
    fastest = min(gradients, key=lambda comparison: comparison.engine.times.ms)
    steps = [
        min((compare_steps(it, how, level, rates) for how in ways), key=lambda step: step[0].engine.times.ms)
        for level in levels
    ]
    return Case(
        name,
        it.setting,
        comparisons=(fastest, *(comparison for comparison, _ in steps)),
        tables=(
            *([_ways(ways, gradients)] if len(ways) > 1 else []),
            quadrature.table(levels),
            strength(it, [(level, rho) for level, (_, rho) in zip(levels, steps, strict=True)]),
            precisions(it),
            memory(it, quick=quick),
        ),
    )


def _ways(ways: list[How], gradients: list[Comparison]) -> Table:
    """The attack gradient in every way that was tried; each row of the table above has its own fastest."""
    rows = tuple((how.describe(CPU), c.engine.times.ms, c.compile_s) for how, c in zip(ways, gradients, strict=True))
    return Table("Ways the engine can run here, attack gradient", ("way", "ms", "compile s"), rows)


def compare_gradients(it: Subject, how: How, rates: Rates) -> Comparison:
    """∇_{x'} ‖IG‖₁ with the reference's right ends on both sides."""
    m = it.run.m_attack
    points, change = naive.right_ends(m), spread(m, rule=right)

    def port() -> Tensor:
        with precision("fp32", it.device.type):
            return naive.attack_gradient(it.model, it.x, it.start, it.y, points)

    theirs, ours = port(), laid_out(it, how)
    plain, _ = attack_gradient(it, change, How("fp32", compiled=False))
    fast, seconds = attack_gradient(ours, change, how)
    agreement = (
        agree("attack gradient, eager fp32", plain(), theirs, allowed=ALLOWED["fp32"]),
        agree(f"attack gradient, as timed ({how.arithmetic})", fast(), theirs, allowed=ALLOWED[how.arithmetic]),
    )
    work = work_of_gradient(it, change, m=m, arithmetic=how.arithmetic)
    slow, quick = side_by_side([port, fast], it.device)
    return Comparison(
        "attack gradient",
        Side(f"eager port, right({m}), fp32", slow),
        Side(f"{how.describe(it.device)}, right({m})", quick),
        agreement,
        work.over(rates, baseline=operations(port)),
        seconds,
        spent=spent(fast, it.device),
    )


def compare_steps(it: Subject, how: How, accuracy: Accuracy, rates: Rates) -> tuple[Comparison, Rho]:
    """Attack, gradient and optimiser; the reference's right ends against as many midpoints as are as accurate."""
    run, m, m_attack = it.run, accuracy.m, accuracy.m_attack
    theirs, ours = it.copied(), laid_out(it, how)
    optimizer, attack, ends = make_optimizer(theirs), it.naive_attack(), naive.right_ends(run.m)

    def port() -> None:
        with precision("fp32", it.device.type):
            optimizer.zero_grad()
            worst = attack(theirs.model, it.x, it.y, it.start)
            naive.update(theirs.model, it.x, worst, it.y, weight=run.weight, points=ends)
            optimizer.step()

    rho = it.objective(midpoint, m=m, m_attack=m_attack)
    fast, step = training_step(ours, rho, how)
    out = fast()
    assert isinstance(out, Rho)
    still = replace(it.objective(), by=PGD(0, 0.0))
    checks = (
        ("eager fp32", "fp32", Step(it.copied().model), still, ends),
        (f"as timed ({how.arithmetic})", how.arithmetic, step, rho, list(midpoint(m).nodes)),
    )
    agreement = tuple(
        agree(f"parameter gradient, {what}", *same_update(it, each, of, points), allowed=ALLOWED[kind])
        for what, kind, each, of, points in checks
    )
    work = work_of_step(it, rho, m=m, m_attack=m_attack, arithmetic=how.arithmetic)
    one = replace(attack, steps=1)
    first = operations(lambda: one(theirs.model, it.x, it.y, it.start))
    last = operations(lambda: naive.update(theirs.model, it.x, it.start, it.y, weight=run.weight, points=ends))
    slow, quick = side_by_side([port, fast], it.device, repeats=7)
    comparison = Comparison(
        f"training step, equal error of {accuracy.by}",
        Side(f"eager port, right({run.m}/{run.m_attack}), fp32", slow),
        Side(f"{how.describe(it.device)}, midpoint({m}/{m_attack})", quick),
        agreement,
        work.over(rates, baseline=run.attack_steps * first + last),
        step.seconds,
        spent=spent(fast, it.device),
    )
    return comparison, out


def same_update(it: Subject, step: Step, rho: Robust, points: list[float]) -> tuple[Tensor, Tensor]:
    """The engine's parameter gradient at its own x*, and the port's at the same x* with the same points, flat."""
    step.model.zero_grad()
    out = step(rho, it.x, it.y, start=it.start)
    port = it.copied().model
    with precision("fp32", it.device.type):
        naive.update(port, it.x, out.worst, it.y, weight=float(rho.weight), points=points)
    ours, theirs = (torch.cat([_gradient(p) for p in model.parameters()]) for model in (step.model, port))
    return ours, theirs


def _gradient(p: Tensor) -> Tensor:
    return torch.zeros_like(p).flatten() if p.grad is None else p.grad.reshape(-1)


def strength(it: Subject, found: list[tuple[Accuracy, Rho]]) -> Table:
    """Does the engine's adversary, with fewer nodes, find as large a change as the reference's?"""
    worst = it.naive_attack()(it.model, it.x, it.y, it.start)
    rows: list[tuple[str | float, ...]] = [
        ("start", "–", fine_penalty(it, it.start)),
        ("eager port", f"right({it.run.m_attack})", fine_penalty(it, worst)),
    ]
    rows += [("engine", f"midpoint({level.m_attack})", fine_penalty(it, rho.worst)) for level, rho in found]
    title = "Mean ‖IG(x, x*)‖₁ by the fine rule, at the x* each adversary found"
    return Table(title, ("who", "saw", "found"), tuple(rows))


def precisions(it: Subject) -> Table:
    """What reduced precision does to IG, to its norm, and to the adversary's gradient, against fp32; all eager."""
    few, m = it.first(16), it.run.m_attack
    change = spread(m, rule=midpoint)

    def values(arithmetic: str) -> tuple[Tensor, Tensor]:
        gradient, _ = attack_gradient(few, change, How(arithmetic, compiled=False))
        with precision(arithmetic, it.device.type), torch.no_grad():
            return IG(rule=midpoint(m))(few.model, few.x, few.start, few.y), gradient()

    ig, gradient = values("fp32")
    rows = []
    for arithmetic in ("tf32", "bf16") if it.device.type == "cuda" else ("bf16",):
        low, toward = values(arithmetic)
        norms = [a.flatten(1).abs().sum(1) for a in (low, ig)]
        alike = float((toward.sign() == gradient.sign()).float().mean())
        rows.append((arithmetic, distance(low, ig), distance(*norms), distance(toward, gradient), alike))
    columns = ("precision", "error of IG", "error of ‖IG‖₁", "error of the attack gradient", "equal signs")
    return Table("Reduced precision against fp32", columns, tuple(rows))


def memory(it: Subject, *, quick: bool) -> Table:
    """Peak memory of one gradient of ‖IG‖₁ against m: all nodes at once, and five at a time."""
    few = it.first(max(1, min(8, MEMORY_VALUES // it.x[0].numel()))).copied()

    def megabytes(m: int, chunk: int | None) -> float:
        def gradient() -> None:
            few.model.zero_grad()
            spread(m, chunk=chunk)(few.model, few.x, few.start, few.y).sum().backward()

        gradient()  # once outside, so that .grad and workspaces are there already
        return peak_bytes(gradient, it.device) / 1e6

    counts = (5, 10, 20) if quick else (5, 10, 20, 50, 100)
    rows = tuple((m, megabytes(m, None), megabytes(m, 5)) for m in counts)
    columns = ("m", "whole (MB)", "chunks of 5 (MB)")
    return Table(f"Peak memory of the gradient step, {len(few.x)} examples", columns, rows)
