"""Diagnostics of an evaluation: signs of gradient masking, convergence, and scores against ε and iterations.

An attack that fails because gradients are masked looks like robustness. Signs of it: the gradient vanishes, random
noise or a gradient-free search does more harm, and the attack fails even when ε covers the whole pixel range.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from robattr.attacks import per_example_rng
from robattr.attacks.ifia import IFIA
from robattr.attacks.maps import AttributionMap
from robattr.attacks.pgd import PGDAttack
from robattr.engine.batch_size import rows_that_fit
from robattr.evaluation.scores import SATURATED
from robattr.formula.ascent import Best, RandomSearch
from robattr.formula.neighbourhoods import LinfBall
from robattr.formula.network import bind, gradient, second_order
from robattr.formula.scalars import cross_entropy, logit, margin
from robattr.metrics import cosine, intervals
from robattr.metrics.faithfulness import completeness_gap as gap
from robattr.models.smooth import smooth

RADII = (0.5, 1.0, 2.0, 4.0, 8.0)  # of the curve over ε, in units of the protocol's ε
QUERIES = 200  # of the gradient-free search


def completeness_gap(map: AttributionMap, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """|Σ_i A_i(x) − (logit_y(x) − logit_y(0))| / |logit_y(x) − logit_y(0)|, (B,).

    For most nets this is the error of the quadrature. A net that standardises its input is constant along the ray and
    jumps at black: its attribution sums to 0, and the gap is 1 for every N.
    """
    with second_order(model), torch.no_grad():
        net = bind(model).detach()
        size = rows_that_fit(model, x, passes=map.together)
        parts = zip(x.split(size), y.split(size), strict=True)
        summed = torch.cat([map.of(net, a, b).flatten(1).sum(dim=1) for a, b in parts])
        change = logit(net, x, y) - logit(net, torch.zeros_like(x), y)
        return gap(summed, change)


def vanishing(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """(B,) bool: whether the gradient of the loss, which the prediction attack uses, is exactly zero at x."""
    with second_order(model), torch.no_grad():
        net = bind(model).detach()
        return (gradient(lambda z: cross_entropy(net, z, y), x) == 0).flatten(1).all(dim=1)


def spread(points: Sequence[int], count: int) -> list[int]:
    """Places in `count` scored iterates that correspond to the iterations `points`, the last to the last."""
    return [round((t - 1) * (count - 1) / max(1, points[-1] - 1)) for t in points]


def score_against_eps(attack: IFIA, x: Tensor, y: Tensor, *, ids: Sequence[int]) -> dict[str, Sequence[float | None]]:
    """Mean scores with 95% intervals at increasing radii, until they stop falling or the ball covers the pixel range.

    One restart from a random point of each ball: from x itself black pixels would not move, because the gradient of
    |x_i·g_i| is zero at x_i = 0. The step scales with the radius. A larger ball contains the smaller ones, so each
    example keeps its lowest score so far.
    """
    low, high = attack.bounds
    curve: dict[str, list[float]] = {"eps": [0.0], **{name: [1.0] for name in attack.measures}}
    ends: dict[str, list[float | None]] = {
        f"{name}_{end}": [1.0] for name in attack.measures for end in ("low", "high")
    }
    lowest = dict.fromkeys(attack.measures, torch.ones((), dtype=torch.float64, device=x.device))
    first = next(iter(attack.measures))
    for scale in RADII:
        eps = min(attack.eps * scale, high - low)
        wider = replace(attack, eps=eps, alpha=attack.alpha * eps / attack.eps, restarts=1, start="ball")
        found = wider(x, y, ids=ids)
        curve["eps"].append(eps)
        for name in attack.measures:
            lowest[name] = torch.minimum(lowest[name], found.worst[name])
            curve[name].append(float(lowest[name].mean()))
            e = intervals.mean(lowest[name].tolist())
            for end, value in (("low", e.low), ("high", e.high)):
                ends[f"{name}_{end}"].append(None if value != value else value)  # a single example has no interval
        if eps >= high - low or (scale > 1 and curve[first][-2] - curve[first][-1] < SATURATED):
            break
    return {**curve, **ends}


def random_search(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    eps: float,
    bounds: tuple[float, float],
    ids: Sequence[int],
    queries: int,
) -> Tensor:
    """Adversarial points found without gradients: the highest margin of a random search."""
    within, best = LinfBall(eps, bounds), x
    rand = per_example_rng.rand_like([(i,) for i in ids], 7)
    with second_order(model), torch.no_grad():

        def value(z: Tensor) -> tuple[Tensor, Tensor]:
            return torch.zeros_like(z), margin(model, z, y)

        for best in Best(RandomSearch(queries, eps)).iterates(value, x, within, start=x, rand=rand):  # noqa: B007
            pass
    return best


def accuracies(attack: PGDAttack, x: Tensor, y: Tensor, *, ids: Sequence[int]) -> dict[str, float]:
    """Accuracy on the same correctly classified examples under four attacks; masked gradients make them differ.

    pgd: the protocol's;  margin: the same on the margin, which does not saturate;  search: gradient-free;
    unbounded: the protocol's with a radius that covers the pixel range, which no model withstands.
    """
    low, high = attack.bounds
    whole = high - low
    steps = max(attack.steps, 20)
    points = {
        "pgd": attack(x, y, ids=ids),
        "margin": replace(attack, loss=margin)(x, y, ids=ids),
        "search": random_search(attack.model, x, y, eps=attack.eps, bounds=attack.bounds, ids=ids, queries=QUERIES),
        "unbounded": replace(attack, eps=whole, alpha=whole / 10, steps=steps)(x, y, ids=ids),
    }
    with second_order(attack.model), torch.no_grad():
        return {name: float((attack.model(z).argmax(dim=1) == y).double().mean()) for name, z in points.items()}


def twin_cosine(map: AttributionMap, model: nn.Module, x: Tensor, y: Tensor, *, beta: float) -> Tensor:
    """(B,) the cosine of the maps of the network and of its relative twin: an attack on a twin far away misses."""
    with second_order(model), torch.no_grad():
        nets = bind(model).detach(), bind(smooth(model, beta, relative=True)).detach()
        size = rows_that_fit(model, x, passes=map.together)
        parts = [[map(net, a, b) for a, b in zip(x.split(size), y.split(size), strict=True)] for net in nets]
        return cosine(*(torch.cat(part) for part in parts))
