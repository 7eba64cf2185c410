"""One iteration of the attribution attack, per example: the reference's loop over single examples against a batch."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import nan

import torch
from torch import Tensor, nn

from robattr._extras import need
from robattr.attacks import passes
from robattr.attacks.ifia import IFIA, AttackResult
from robattr.attacks.maps import integrated_gradients, saliency
from robattr.bench import naive
from robattr.bench.agree import ALLOWED, LOST, agree, within
from robattr.bench.counting import operations, size_of
from robattr.bench.engine import Work, kept_traffic
from robattr.bench.profiling import spent
from robattr.bench.quadrature import fewest, norm
from robattr.bench.results import Agreement, Case, Comparison, Side, Table
from robattr.bench.subjects import DATASETS, Subject, subject
from robattr.bench.timing import Rates, once, side_by_side
from robattr.engine import precision
from robattr.evaluation.protocol import Protocol, paper
from robattr.formula.network import second_order
from robattr.formula.quadrature import Rule, midpoint, right
from robattr.metrics import top_k_mask

N = 100  # points of a map, in the reference and here
CHECKED = 3  # examples
EXAMPLES, FINE = 16, 1000  # that choose the midpoints
STEPPED = 8  # examples whose first step is compared as timed


def measure(name: str, device: torch.device, arithmetic: str, *, rates: Rates, quick: bool) -> Case:
    """The paper's attack on that net: maps and directions of both sides agree, then a few iterations are timed.

    Twice, where it is worth it: with the reference's points on both sides, and with as few midpoints as give a map that
    is no less accurate. A net whose map needs one point (see `IFIA.shortened`) has nothing to gain from that.
    """
    need("scipy.stats", extra="eval")
    batch = 1000 if device.type == "cuda" else 32
    it = subject(name, device, quick=quick, batch=batch // 4 if quick else batch)
    protocol, steps = paper(DATASETS.get(name, name)), 2 if quick else 10
    ours, theirs = _attack(it, protocol, steps, right(N))
    same = _compare(it, ours, theirs, theirs, arithmetic, rates=rates)
    found = _run(it, ours, arithmetic).score[:CHECKED].tolist()
    soft = naive.twin(it.model)
    scores = tuple((i, _port(it, soft, theirs, i), score) for i, score in enumerate(found))
    tables = [Table(f"Lowest Kendall after {steps} iterations", ("example", "one at a time", "batch"), scores)]
    comparisons = [same]
    if not bool(ours.can_shorten(it.x[:CHECKED]).all()):
        error = partial(_error, it.first(EXAMPLES), _map(it.first(EXAMPLES), midpoint(FINE)))
        few = midpoint(fewest(error, N))
        equal = _compare(it, *_attack(it, protocol, steps, few), theirs, arithmetic, rates=rates)
        comparisons.append(replace(equal, what="IFIA iteration, equal error of the map"))
        rows = ((f"right({N})", error(right(N))), (f"midpoint({len(few)})", error(few)))
        tables.append(Table(f"Relative error of the map, fine rule midpoint({FINE})", ("rule", "error"), rows))
    return Case(f"ifia {name}", _setting(it, protocol), tuple(comparisons), tuple(tables))


def _compare(
    it: Subject, ours: IFIA, same: naive.Fragility, theirs: naive.Fragility, arithmetic: str, *, rates: Rates
) -> Comparison:
    """`ours` timed against `theirs`, and checked against `same`: the port with the engine's points."""
    agreement = [agree(what, a, b, allowed=ALLOWED["fp32"]) for what, a, b in _maps_and_directions(it, ours, same)]
    begun = once(lambda: _run(it, ours, arithmetic), it.device)  # compiles, where it does
    agreement.append(_first_step(it, _run(it, replace(ours, steps=1), arithmetic), same, arithmetic))
    soft = naive.twin(it.model)
    ways = [lambda: _port(it, soft, theirs), lambda: _run(it, ours, arithmetic)]
    slow, quicker = side_by_side(ways, it.device, repeats=5)
    compiled = "" if ours.batch is None else "compiled, "
    points = "" if same is theirs else f", midpoint({len(same.points)})"
    return Comparison(
        "IFIA iteration",
        Side(f"one example at a time, N = {len(theirs.points)}, SciPy's Kendall, fp32", slow.per(theirs.steps)),
        Side(f"{compiled}batch of {len(it.x)}, {arithmetic}{points}", quicker.per(ours.steps * len(it.x))),
        tuple(agreement),
        _work(it, ours, arithmetic).over(rates, baseline=_port_operations(it, theirs)),
        compile_s=0.0 if ours.batch is None else max(0.0, begun - quicker.ms / 1e3),
        per="example and iteration",
        spent=spent(lambda: _run(it, ours, arithmetic), it.device),
    )


def _run(it: Subject, attack: IFIA, arithmetic: str) -> AttackResult:
    with precision(arithmetic, it.device.type):
        return attack(it.x, it.y)


def _port(it: Subject, soft: nn.Module, attack: naive.Fragility, i: int = 0) -> float:
    with precision("fp32", it.device.type):
        return attack(it.model, soft, it.x[i : i + 1], it.y[i : i + 1])


def _attack(it: Subject, p: Protocol, steps: int, rule: Rule) -> tuple[IFIA, naive.Fragility]:
    """The attack on the maps of one rule, by the engine and by the port."""
    k = min(p.k, it.x[0, 0].numel())
    batch = len(it.x) if it.device.type == "cuda" else None
    map = integrated_gradients(rule=rule)
    ours = IFIA(it.model, p.eps, p.alpha, steps, k=k, map=map, bounds=p.bounds, batch=batch)
    return ours, naive.Fragility(p.eps, p.alpha, steps, k, p.bounds, rule.nodes)


def _map(few: Subject, rule: Rule) -> Tensor:
    with precision("fp32", few.device.type):
        return saliency(integrated_gradients(rule=rule), few.model, few.x, few.y)


def _error(few: Subject, fine: Tensor, rule: Rule) -> float:
    """How far maps by a rule are from those by a fine one: mean over examples of ‖S − S_fine‖₁ / ‖S_fine‖₁."""
    return float((norm(_map(few, rule) - fine) / norm(fine)).mean())


def _maps_and_directions(it: Subject, ours: IFIA, theirs: naive.Fragility) -> list[tuple[str, Tensor, Tensor]]:
    """What every iteration is made of, on a few examples in fp32: (name, engine, port)."""
    few = it.first(CHECKED)
    with precision("fp32", it.device.type), second_order(few.model):
        ports = [_port_direction(few, i, theirs) for i in range(len(few.x))]
        clean, directions = torch.stack([m for m, _ in ports]), torch.stack([d for _, d in ports])
        attack = ours.shortened() if bool(ours.can_shorten(few.x).all()) else ours
        climb = passes.climb(few.model, attack.map, kind="topk", beta=1.0, keep=0.0)
        toward, _ = climb(few.x, few.y, top_k_mask(clean, ours.k).to(clean), few.y)
        map = saliency(ours.map, few.model, few.x, few.y)
    return [("attribution map, fp32", map, clean), ("attack direction, fp32", toward, directions)]


def _port_direction(it: Subject, i: int, theirs: naive.Fragility) -> tuple[Tensor, Tensor]:
    """The port's clean map of example i, and its direction per pixel there."""
    x, y = it.x[i : i + 1], it.y[i : i + 1]
    clean = naive.saliency(it.model, x, y, theirs.points)
    top = clean.flatten().argsort()[-theirs.k :]
    return clean, theirs.direction(naive.twin(it.model), x, y, top)[0] / clean.numel()


def _work(it: Subject, ours: IFIA, arithmetic: str) -> Work:
    """Of one iteration of one example: the second derivative of the twin's map, and the true net's map."""
    few = it.first(CHECKED)
    attack = replace(ours, batch=None, measures={"none": lambda a, _: a.new_zeros(len(a))})
    one, two = (operations(lambda n=n: replace(attack, steps=n)(few.x, few.y)) for n in (1, 2))  # type: ignore[misc]
    nodes = ours.shortened().map.nodes if bool(ours.can_shorten(few.x).all()) else ours.map.nodes
    moved = 3 * size_of(it.x[:1]) + size_of(*it.model.parameters()) / len(it.x)
    return Work((two - one) / len(few.x), moved, 2 * kept_traffic(it.first(1), nodes, arithmetic))


def _port_operations(it: Subject, theirs: naive.Fragility) -> float:
    soft = naive.twin(it.model)
    counts = [
        operations(lambda n=n: replace(theirs, steps=n)(it.model, soft, it.x[:1], it.y[:1]))  # type: ignore[misc]
        for n in (1, 2)
    ]
    return float(counts[1] - counts[0])


def _first_step(it: Subject, found: AttackResult, theirs: naive.Fragility, arithmetic: str) -> Agreement:
    """The whole batch as timed: the share of Σ|∇J|, what a step by sign(∇J) gains, that its first step forgoes."""
    lost = gain = 0.0
    for i in range(min(STEPPED, len(it.x))):
        if found.score[i] < 1:  # else the prediction changed and there is no first iterate to look at
            with precision("fp32", it.device.type):
                _, direction = _port_direction(it, i, theirs)
            port = (it.x[i] + theirs.alpha * direction.sign()).clamp(*theirs.bounds)
            apart = (found.perturbed[i] - port).abs() > 0.5 * theirs.alpha
            lost, gain = lost + float(direction.abs()[apart].sum()), gain + float(direction.abs().sum())
    share = lost / gain if gain else nan  # nothing to compare is no agreement
    return within(f"gain lost by the first step, as timed ({arithmetic})", share, allowed=LOST[arithmetic])


def _setting(it: Subject, p: Protocol) -> str:
    shape = "×".join(map(str, it.x.shape[1:]))
    return f"{len(it.x)} images of {shape}, N = {N} points, top {p.k}, ε = {p.eps:g}, α = {p.alpha:g}"
