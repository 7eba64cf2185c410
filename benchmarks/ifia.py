"""One iteration of the attribution attack, per example: the reference's loop over examples against a batch."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import nan

import torch
from torch import Tensor, nn

from benchmarks import port
from benchmarks.engine import kept_traffic
from benchmarks.measure import (
    ALLOWED,
    LOST,
    Rates,
    Work,
    agree,
    operations,
    profiled,
    seconds_of,
    size_of,
    timed,
    within,
)
from benchmarks.quadrature import fewest, norm
from benchmarks.results import Agreement, Case, Comparison, Side, Table
from benchmarks.workloads import DATASETS, Workload, workload
from robattr.attacks import IFIA, AttackResult, integrated_gradients
from robattr.attacks.maps import saliency
from robattr.attacks.passes import compiled_once
from robattr.engine import precision
from robattr.evaluation import Protocol, paper
from robattr.formula.quadrature import Rule, midpoint, right

N = 100  # points of a map, in the reference and here
CHECKED = 3  # examples whose maps and scores are compared
EXAMPLES, FINE = 16, 1000  # examples and fine rule that choose the number of midpoints
STEPPED = 8  # examples whose first step is compared as timed


def measure(name: str, device: torch.device, arithmetic: str, *, rates: Rates, quick: bool) -> Case:
    """The paper's attack: the maps and the first steps of the two sides agree, then a few iterations are timed.

    Measured with the reference's points on both sides, and with the fewest midpoints that give an equally accurate map.
    The second is left out where the map of the network needs one point only (`IFIA.can_shorten`).
    """
    batch = 1000 if device.type == "cuda" else 32
    work = workload(name, device, quick=quick, batch=batch // 4 if quick else batch)
    protocol, steps = paper(DATASETS.get(name, name)), 2 if quick else 10
    ours, theirs = attacks(work, protocol, steps, right(N))
    comparisons = [compare(work, ours, theirs, theirs, arithmetic, rates=rates)]
    twin, found = port.twin(work.model), run(work, ours, arithmetic).score[:CHECKED].tolist()
    scores = tuple((i, run_port(work, twin, theirs, i), score) for i, score in enumerate(found))
    tables = [Table(f"Lowest Kendall after {steps} iterations", ("example", "one at a time", "batch"), scores)]
    if nodes_of(ours, work.x) > 1:
        few = work.first(EXAMPLES)
        error = partial(map_error, few, map_by(few, midpoint(FINE)))
        rule = midpoint(fewest(error, N))
        equal = compare(work, *attacks(work, protocol, steps, rule), theirs, arithmetic, rates=rates)
        comparisons.append(replace(equal, what="IFIA iteration, equal error of the map"))
        rows = ((f"right({N})", error(right(N))), (f"midpoint({len(rule)})", error(rule)))
        tables.append(Table(f"Relative error of the map, fine rule midpoint({FINE})", ("rule", "error"), rows))
    shape = "×".join(map(str, work.x.shape[1:]))
    setting = f"{len(work.x)} images of {shape}, N = {N} points, top {protocol.k}, "
    setting += f"ε = {protocol.eps:g}, α = {protocol.alpha:g}"
    return Case(f"ifia {name}", setting, tuple(comparisons), tuple(tables))


def attacks(work: Workload, p: Protocol, steps: int, rule: Rule) -> tuple[IFIA, port.Fragility]:
    """The attack on the maps of one rule, by robattr and by the port."""
    k = min(p.k, work.x[0, 0].numel())
    batch = len(work.x) if work.device.type == "cuda" else None
    ours = IFIA(
        work.model, p.eps, p.alpha, steps, k=k, map=integrated_gradients(rule=rule), bounds=p.bounds, batch=batch
    )
    return ours, port.Fragility(p.eps, p.alpha, steps, k, p.bounds, rule.nodes)


def nodes_of(attack: IFIA, x: Tensor) -> int:
    """The points of the map that the attack really evaluates."""
    return (attack.shortened() if bool(attack.can_shorten(x[:CHECKED]).all()) else attack).map.nodes


def run(work: Workload, attack: IFIA, arithmetic: str) -> AttackResult:
    with precision(arithmetic, work.device.type):
        return attack(work.x, work.y)


def run_port(work: Workload, twin: nn.Module, attack: port.Fragility, i: int = 0) -> float:
    with precision("fp32", work.device.type):
        return attack(work.model, twin, work.x[i : i + 1], work.y[i : i + 1])


@compiled_once()
def compare(
    work: Workload, ours: IFIA, same: port.Fragility, theirs: port.Fragility, arithmetic: str, *, rates: Rates
) -> Comparison:
    """Time `ours` against `theirs`, and check it against `same`: the port with the points of `ours`."""
    few, twin = work.first(CHECKED), port.twin(work.model)
    with precision("fp32", work.device.type):
        clean = [port.saliency(few.model, few.x[i : i + 1], few.y[i : i + 1], same.points) for i in range(len(few.x))]
        map = saliency(ours.map, few.model, few.x, few.y)
    agreement = [agree("attribution map, fp32", map, torch.stack(clean), allowed=ALLOWED["fp32"])]
    first = seconds_of(lambda: run(work, ours, arithmetic), work.device)  # compiles
    agreement.append(first_step(work, run(work, replace(ours, steps=1), arithmetic), same, arithmetic))
    ways = (lambda: run_port(work, twin, theirs), lambda: run(work, ours, arithmetic))
    slow, quicker = timed(*ways, device=work.device, repeats=5)
    compiled = "" if ours.batch is None else "compiled, "
    points = "" if same is theirs else f", midpoint({len(same.points)})"
    one, two = (operations(lambda n=n: run_port(work, twin, replace(theirs, steps=n))) for n in (1, 2))  # type: ignore[misc]
    seen = profiled(lambda: run(work, ours, arithmetic), work.device)
    return Comparison(
        "IFIA iteration",
        Side(f"one example at a time, N = {len(theirs.points)}, SciPy's Kendall, fp32", slow.per(theirs.steps)),
        Side(f"{compiled}batch of {len(work.x)}, {arithmetic}{points}", quicker.per(ours.steps * len(work.x))),
        tuple(agreement),
        work_of_iteration(work, ours, arithmetic).roofline(rates, baseline=float(two - one)),
        compile_s=0.0 if ours.batch is None else max(0.0, first - quicker.ms / 1e3),
        per="example and iteration",
        spent=seen.shares,
        slowest=seen.slowest,
        busy_ms=seen.ms,
    )


def first_step(work: Workload, found: AttackResult, theirs: port.Fragility, arithmetic: str) -> Agreement:
    """The share of Σ|∇J|, the gain of a step by sign(∇J), that the first step as timed loses."""
    lost, gain, twin = 0.0, 0.0, port.twin(work.model)
    for i in range(min(STEPPED, len(work.x))):
        if found.score[i] < 1:  # else the prediction changed, and there is no first iterate to compare
            x, y = work.x[i : i + 1], work.y[i : i + 1]
            with precision("fp32", work.device.type):
                top = port.saliency(work.model, x, y, theirs.points).flatten().argsort()[-theirs.k :]
                direction = theirs.direction(twin, x, y, top)[0]
            expected = (work.x[i] + theirs.alpha * direction.sign()).clamp(*theirs.bounds)
            apart = (found.perturbed[i] - expected).abs() > 0.5 * theirs.alpha
            lost, gain = lost + float(direction.abs()[apart].sum()), gain + float(direction.abs().sum())
    share = lost / gain if gain else nan  # no example to compare counts as a disagreement
    return within(f"gain lost by the first step, as timed ({arithmetic})", share, allowed=LOST[arithmetic])


def map_by(few: Workload, rule: Rule) -> Tensor:
    with precision("fp32", few.device.type):
        return saliency(integrated_gradients(rule=rule), few.model, few.x, few.y)


def map_error(few: Workload, fine: Tensor, rule: Rule) -> float:
    """The error of the maps of a rule: mean over examples of ‖S − S_fine‖₁ / ‖S_fine‖₁."""
    return float((norm(map_by(few, rule) - fine) / norm(fine)).mean())


def work_of_iteration(work: Workload, ours: IFIA, arithmetic: str) -> Work:
    """One iteration of one example: the second derivative of the twin's map, and the network's own map."""
    few = work.first(CHECKED)
    attack = replace(ours, batch=None, measures={"none": lambda a, _: a.new_zeros(len(a))})
    one, two = (operations(lambda n=n: replace(attack, steps=n)(few.x, few.y)) for n in (1, 2))  # type: ignore[misc]
    moved = 3 * size_of(work.x[:1]) + size_of(*work.model.parameters()) / len(work.x)
    return Work((two - one) / len(few.x), moved, 2 * kept_traffic(work.first(1), nodes_of(ours, few.x), arithmetic))
