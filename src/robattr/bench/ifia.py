"""One iteration of the attribution attack, per example: the reference's loop over single examples against a batch."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from robattr._extras import need
from robattr.bench import naive
from robattr.bench.agree import ALLOWED, agree, within
from robattr.bench.counting import operations, size_of
from robattr.bench.engine import Work, kept_traffic
from robattr.bench.results import Agreement, Case, Comparison, Side, Table
from robattr.bench.subjects import DATASETS, Subject, subject
from robattr.bench.timing import Rates, once, side_by_side
from robattr.engine import precision
from robattr.evaluate import passes
from robattr.evaluate.agreement import top_k_mask
from robattr.evaluate.ifia import IFIA, Found
from robattr.evaluate.maps import integrated_gradients, saliency
from robattr.evaluate.protocol import Protocol, paper
from robattr.formula.network import second_order

N = 100  # points of a map, in the reference and here
CHECKED = 3  # examples
FLIPPED = {"fp32": 0.01, "tf32": 0.05, "bf16": 0.2}  # share of pixels whose sign rounding may turn


def measure(name: str, device: torch.device, arithmetic: str, *, rates: Rates, quick: bool) -> Case:
    """The paper's attack on that net: maps and directions of both sides agree, then a few iterations are timed."""
    need("scipy.stats", extra="eval")
    batch = 1000 if device.type == "cuda" else 32
    it = subject(name, device, quick=quick, batch=batch // 4 if quick else batch)
    protocol, steps = paper(DATASETS.get(name, name)), 2 if quick else 4
    ours, theirs = _both(it, protocol, steps)
    soft = naive.twin(it.model)

    def port(i: int = 0) -> float:
        with precision("fp32", device.type):
            return theirs(it.model, soft, it.x[i : i + 1], it.y[i : i + 1])

    def engine(attack: IFIA = ours) -> Found:
        with precision(arithmetic, device.type):
            return attack(it.x, it.y)

    agreement = [agree(what, a, b, allowed=ALLOWED["fp32"]) for what, a, b in _maps_and_directions(it, ours, theirs)]
    begun = once(engine, device)  # compiles, where it does
    agreement.append(_first_step(it, engine(replace(ours, steps=1)), theirs, arithmetic))
    slow, quicker = side_by_side([port, engine], device, repeats=5)
    compiled = "" if ours.batch is None else "compiled, "
    comparison = Comparison(
        "IFIA iteration",
        Side(f"one example at a time, N = {N}, SciPy's Kendall, fp32", slow.per(steps)),
        Side(f"{compiled}batch of {len(it.x)}, {arithmetic}", quicker.per(steps * len(it.x))),
        tuple(agreement),
        _work(it, ours, arithmetic).over(rates, baseline=_port_operations(it, theirs)),
        compile_s=0.0 if ours.batch is None else max(0.0, begun - quicker.ms / 1e3),
        per="example and iteration",
    )
    found = engine().score[:CHECKED].tolist()
    rows = tuple((i, port(i), score) for i, score in enumerate(found))
    table = Table(f"Lowest Kendall after {steps} iterations", ("example", "one at a time", "batch"), rows)
    return Case(f"ifia {name}", _setting(it, protocol), (comparison,), (table,))


def _both(it: Subject, p: Protocol, steps: int) -> tuple[IFIA, naive.Fragility]:
    k = min(p.k, it.x[0, 0].numel())
    batch = len(it.x) if it.device.type == "cuda" else None
    ours = IFIA(it.model, p.eps, p.alpha, steps, k=k, map=integrated_gradients(N), bounds=p.bounds, batch=batch)
    return ours, naive.Fragility(p.eps, p.alpha, steps, k, p.bounds, N)


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
    clean = naive.saliency(it.model, x, y, N)
    top = clean.flatten().argsort()[-theirs.k :]
    return clean, theirs.direction(naive.twin(it.model), x, y, top)[0] / clean.numel()


def _work(it: Subject, ours: IFIA, arithmetic: str) -> Work:
    """Of one iteration of one example: the second derivative of the twin's map, and the true net's map."""
    few = it.first(CHECKED)
    attack = replace(ours, batch=None, measures={"none": lambda a, _: a.new_zeros(len(a))})
    one, two = (operations(lambda n=n: replace(attack, steps=n)(few.x, few.y)) for n in (1, 2))  # type: ignore[misc]
    nodes = ours.shortened().map.nodes if bool(ours.can_shorten(few.x).all()) else N
    moved = 3 * size_of(it.x[:1]) + size_of(*it.model.parameters()) / len(it.x)
    return Work((two - one) / len(few.x), moved, 2 * kept_traffic(it.first(1), nodes, arithmetic))


def _port_operations(it: Subject, theirs: naive.Fragility) -> float:
    soft = naive.twin(it.model)
    counts = [
        operations(lambda n=n: replace(theirs, steps=n)(it.model, soft, it.x[:1], it.y[:1]))  # type: ignore[misc]
        for n in (1, 2)
    ]
    return float(counts[1] - counts[0])


def _first_step(it: Subject, found: Found, theirs: naive.Fragility, arithmetic: str) -> Agreement:
    """The whole batch as timed: the share of pixels that its first step moves another way than the port's."""
    shares = []
    for i in range(CHECKED):
        if found.score[i] < 1:  # else the prediction changed and there is no first iterate to look at
            with precision("fp32", it.device.type):
                _, direction = _port_direction(it, i, theirs)
            x = it.x[i]
            port = (x + theirs.alpha * direction.sign()).clamp(*theirs.bounds)
            apart = (found.perturbed[i] - port).abs() > 0.5 * theirs.alpha
            shares.append(float(apart.double().mean()))
    share = sum(shares) / max(1, len(shares))
    return within(f"first step, as timed ({arithmetic})", share, allowed=FLIPPED[arithmetic])


def _setting(it: Subject, p: Protocol) -> str:
    shape = "×".join(map(str, it.x.shape[1:]))
    return f"{len(it.x)} images of {shape}, N = {N} points, top {p.k}, ε = {p.eps:g}, α = {p.alpha:g}"
