"""The training step: the eager port of the reference against the engine."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from benchmarks import port
from benchmarks.bars import schedule
from benchmarks.engine import Mode, attack_gradient, laid_out, make_optimizer, training_step, work_of_step
from benchmarks.measure import (
    ALLOWED,
    Rates,
    agree,
    compiling,
    distance,
    generated_kernels,
    operations,
    profiled,
    timed,
)
from benchmarks.quadrature import Accuracy, Quadrature, fine_penalty
from benchmarks.results import Case, Comparison, Side, Table, Times
from benchmarks.workloads import RECIPES, Workload, workload
from robattr.engine import Step, precision
from robattr.formula import PGD, Rho, Robust
from robattr.formula.attribution import IG
from robattr.formula.quadrature import midpoint, right
from robattr.objectives import spread

MEMORY_VALUES = 40_000  # pixels of all examples in the memory table: 100 nodes of them must fit on any GPU


def measure(name: str, device: torch.device, arithmetic: str, *, rates: Rates, quick: bool) -> Case:
    """One network: the two sides checked against each other, then timed; in fp32 where nothing else is said."""
    with precision("fp32", device.type):  # torch's own convolutions on a GPU are in tf32
        return _measured(name, device, arithmetic, rates=rates, quick=quick)


def _measured(name: str, device: torch.device, arithmetic: str, *, rates: Rates, quick: bool) -> Case:
    work = workload(name, device, quick=quick)
    modes = [Mode(arithmetic, compiled=device.type == "cuda")]
    if device.type == "cpu" and not quick:
        modes.append(Mode(arithmetic, compiled=True))  # not always faster on a CPU
    quadrature = Quadrature(work)
    levels = [quadrature.equal("IG"), quadrature.equal("‖IG‖₁")]
    plan = [(level, modes, "") for level in levels]
    if device.type == "cuda" and not quick:  # rounding in bf16 costs less accuracy of ‖IG‖₁ than the reference's sums
        plan = [plan[0], *((level, [Mode("bf16", compiled=True)], ", bf16") for level in levels)]
    steps: list[tuple[Comparison, Rho]] = []
    for level, ways, what in plan:
        known = steps[0][0].baseline.times if steps else None
        found = [compare_steps(work, mode, level, rates, what=what, known=known) for mode in ways]
        steps.append(min(found, key=lambda step: step[0].engine.times.ms))
    tables = [
        quadrature.table(levels),
        strength(work, [(level, rho) for (level, *_), (_, rho) in zip(plan, steps, strict=True)]),
        precisions(work),
    ]
    if device.type == "cuda":
        tables.append(memory(work, quick=quick))
        best = min((step for step, _ in steps), key=lambda step: step.engine.times.ms)
        tables.append(schedule(RECIPES[name], best.engine.times.ms, best.engine.what))
    return Case(name, work.setting, tuple(comparison for comparison, _ in steps), tuple(tables))


def compare_steps(
    work: Workload, mode: Mode, accuracy: Accuracy, rates: Rates, *, what: str = "", known: Times | None = None
) -> tuple[Comparison, Rho]:
    """Attack, gradient and optimiser: the reference's right ends against equally accurate midpoints.

    known   the times of the port, if they were measured; where it takes more than a second it is not timed again
    """
    config, m, m_attack = work.config, accuracy.m, accuracy.m_attack
    theirs, ours = work.copied(), laid_out(work, mode)
    optimizer, attack, ends = make_optimizer(theirs), work.port_attack(), port.right_ends(config.m)

    def baseline() -> None:
        with precision("fp32", work.device.type):
            optimizer.zero_grad()
            worst = attack(theirs.model, work.x, work.y, work.start)
            port.update(theirs.model, work.x, worst, work.y, weight=config.weight, points=ends)
            optimizer.step()

    rho = work.objective(midpoint, m=m, m_attack=m_attack)
    fast, step = training_step(ours, rho, mode)
    before = generated_kernels()
    with compiling() as phases:
        out = fast()
    generated = generated_kernels() - before
    assert isinstance(out, Rho)
    unattacked = replace(work.objective(), by=PGD(0, 0.0))
    checks = (
        ("eager fp32", "fp32", Step(work.copied().model), unattacked, ends),
        (f"as timed ({mode.arithmetic})", mode.arithmetic, step, rho, list(midpoint(m).nodes)),
    )
    few = port.attack_gradient(work.model, work.x, work.start, work.y, port.right_ends(config.m_attack))
    direction = attack_gradient(work, spread(config.m_attack, rule=right), "fp32")
    agreement = (
        agree("attack gradient, eager fp32", direction, few, allowed=ALLOWED["fp32"]),
        *(
            agree(f"parameter gradient, {what}", *same_update(work, each, of, points), allowed=ALLOWED[arithmetic])
            for what, arithmetic, each, of, points in checks
        ),
    )
    counted = work_of_step(work, rho, m=m, m_attack=m_attack, arithmetic=mode.arithmetic)
    one = replace(attack, steps=1)
    first = operations(lambda: one(theirs.model, work.x, work.y, work.start))
    last = operations(lambda: port.update(theirs.model, work.x, work.start, work.y, weight=config.weight, points=ends))
    if known is not None and known.ms > 1e3:
        slow, (quick,) = known, timed(fast, device=work.device, repeats=7)
    else:
        slow, quick = timed(baseline, fast, device=work.device, repeats=7)
    seen = profiled(fast, work.device)
    comparison = Comparison(
        f"training step, equal error of {accuracy.by}{what}",
        Side(f"eager port, right({config.m}/{config.m_attack}), fp32", slow),
        Side(f"{mode.describe(work.device)}, midpoint({m}/{m_attack})", quick),
        agreement,
        counted.roofline(rates, baseline=config.attack_steps * first + last),
        step.seconds,
        spent=seen.shares,
        slowest=seen.slowest,
        busy_ms=seen.ms,
        kernels=generated,
        compiling=phases,
    )
    return comparison, out


def same_update(work: Workload, step: Step, rho: Robust, points: list[float]) -> tuple[Tensor, Tensor]:
    """The engine's parameter gradient at its own x*, and the port's at the same x* with the same points, flat."""
    step.model.zero_grad()
    out = step(rho, work.x, work.y, start=work.start)
    theirs = work.copied().model
    with precision("fp32", work.device.type):
        port.update(theirs, work.x, out.worst, work.y, weight=float(rho.weight), points=points)
    ours, wanted = (
        torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in model.parameters()])
        for model in (step.model, theirs)
    )
    return ours, wanted


def strength(work: Workload, found: list[tuple[Accuracy, Rho]]) -> Table:
    """The change that each adversary finds: the engine's, with fewer nodes, and the reference's."""
    worst = work.port_attack()(work.model, work.x, work.y, work.start)
    rows: list[tuple[str | float, ...]] = [
        ("start", "–", fine_penalty(work, work.start)),
        ("eager port", f"right({work.config.m_attack})", fine_penalty(work, worst)),
    ]
    rows += [("engine", f"midpoint({level.m_attack})", fine_penalty(work, rho.worst)) for level, rho in found]
    title = "Mean ‖IG(x, x*)‖₁ by the fine rule, at the x* each adversary found"
    return Table(title, ("who", "saw", "found"), tuple(rows))


def precisions(work: Workload) -> Table:
    """The effect of reduced precision on IG, its norm and the attack gradient, against fp32; all eager."""
    few, m = work.first(16), work.config.m_attack

    def values(arithmetic: str) -> tuple[Tensor, Tensor]:
        with precision(arithmetic, work.device.type), torch.no_grad():
            ig = IG(rule=midpoint(m))(few.model, few.x, few.start, few.y)
        return ig, attack_gradient(few, spread(m, rule=midpoint), arithmetic)

    ig, gradient = values("fp32")
    rows = []
    for arithmetic in ("tf32", "bf16") if work.device.type == "cuda" else ("bf16",):
        low, toward = values(arithmetic)
        norms = [a.flatten(1).abs().sum(1) for a in (low, ig)]
        same = float((toward.sign() == gradient.sign()).float().mean())
        rows.append((arithmetic, distance(low, ig), distance(*norms), distance(toward, gradient), same))
    columns = ("precision", "error of IG", "error of ‖IG‖₁", "error of the attack gradient", "equal signs")
    return Table("Reduced precision against fp32", columns, tuple(rows))


def memory(work: Workload, *, quick: bool) -> Table:
    """Peak GPU memory of one gradient of ‖IG‖₁ against m: all nodes at once, and five at a time."""
    few = work.first(max(1, min(8, MEMORY_VALUES // work.x[0].numel()))).copied()

    def megabytes(m: int, chunk: int | None) -> float:
        def gradient() -> None:
            few.model.zero_grad()
            spread(m, chunk=chunk)(few.model, few.x, few.start, few.y).sum().backward()
            torch.cuda.synchronize()

        gradient()  # allocates .grad and workspaces
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        gradient()
        return (torch.cuda.max_memory_allocated() - before) / 1e6

    rows = tuple((m, megabytes(m, None), megabytes(m, 5)) for m in ((5, 10, 20) if quick else (5, 10, 20, 50, 100)))
    columns = ("m", "whole (MB)", "chunks of 5 (MB)")
    return Table(f"Peak memory of the gradient step, {len(few.x)} examples", columns, rows)
