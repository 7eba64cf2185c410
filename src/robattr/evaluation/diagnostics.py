"""Diagnostics of an evaluation: signs of gradient masking, convergence, and scores against ε and iterations.

An attack that fails because gradients are masked looks like robustness. Signs of it: the gradient vanishes, random
noise or a gradient-free search does more harm, and the attack fails even when ε covers the whole pixel range.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from robattr.attacks import per_example_rng
from robattr.attacks.ifia import IFIA
from robattr.attacks.maps import AttributionMap, in_parts, saliency
from robattr.attacks.pgd import PGDAttack
from robattr.engine import exactly
from robattr.evaluation.scores import COMPARED, SATURATED
from robattr.formula.ascent import Best, RandomSearch
from robattr.formula.neighbourhoods import LinfBall
from robattr.formula.network import bind, gradient, second_order
from robattr.formula.scalars import cross_entropy, logit, margin
from robattr.metrics import cosine, intervals
from robattr.models.smooth import smooth

RADII = (0.5, 1.0, 2.0, 4.0)  # of the curve over ε, in units of the protocol's ε
QUERIES = 200  # of the gradient-free search


def completeness_gap(map: AttributionMap, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """|Σ_i A_i(x) − (logit_y(x) − logit_y(0))| / |logit_y(x) − logit_y(0)|, (B,).

    For most nets this is the error of the quadrature. A net that standardises its input is constant along the ray and
    jumps at black: its attribution sums to 0, and the gap is 1 for every N.
    """
    with second_order(model), torch.no_grad():
        net = bind(model).detach()
        summed = in_parts(lambda a, b: map.of(net, a, b).flatten(1).sum(dim=1), map, model, x, y)
        change = logit(net, x, y) - logit(net, torch.zeros_like(x), y)
        return (summed - change).abs() / change.abs()


def vanishing(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """(B,) bool: whether the gradient of the loss, which the prediction attack uses, is exactly zero at x."""
    with second_order(model), torch.no_grad():
        net = bind(model).detach()
        return (gradient(lambda z: cross_entropy(net, z, y), x) == 0).flatten(1).all(dim=1)


def curve_attack(attack: IFIA) -> IFIA:
    """The attack of the curve over ε: one run of half the iterations (docs/evaluation.md says what that loses).

    It starts at a random point of the ball: from x itself black pixels would not move, because the gradient of
    |x_i·g_i| is zero at x_i = 0.
    """
    measures = {name: attack.measures[name] for name in ("kendall", "topk")}
    return replace(attack, steps=-(-attack.steps // 2), restarts=1, start="ball", measures=measures)


def curve_passes(attack: IFIA) -> int:
    """Passes of the network for one example of the curve over ε; the protocol's own radius is recorded already."""
    return (len(RADII) - 1) * curve_attack(attack).cost


def score_against_eps(
    attack: IFIA,
    x: Tensor,
    y: Tensor,
    records: Sequence[Mapping[str, Any]],
    *,
    passed: Callable[[int], None] = lambda passes: None,
) -> dict[str, list[float | None]]:
    """Mean scores of the paper's attack with 95% intervals at increasing radii, until they stop falling.

    At the attack's own radius they are those of the `records` of the examples. A larger ball contains the smaller ones,
    so no example has a higher score in it: beyond that radius it keeps its lowest score so far, and below it is scored
    at least as high as there. The step scales with the radius. `passed` is told the passes at each radius.
    """
    low, high = attack.bounds
    once, ids = curve_attack(attack), [int(r["id"]) for r in records]
    cost = (once.shortened() if once.can_shorten(x).double().mean() > 0.5 else once).cost
    clean = in_parts(partial(saliency, attack.map, attack.model), attack.map, attack.model, x, y)
    own, strict = _paper_scores(records, x.device), "attacks" in records[0]
    curve: dict[str, list[float | None]] = {"eps": [0.0]}
    lowest = {name: torch.ones(len(x), dtype=torch.float64, device=x.device) for name in COMPARED}
    for name in COMPARED:
        curve |= {name: [1.0], f"{name}_low": [1.0], f"{name}_high": [1.0]}
    for scale in RADII:
        eps = min(attack.eps * scale, high - low)
        if scale == 1:
            found = own
        else:
            reached = replace(once, eps=eps, alpha=attack.alpha * eps / attack.eps)(x, y, ids=ids, clean=clean)
            at_point = {name: measure(clean, reached.map) for name, measure in once.measures.items()}
            found = reached.worst if strict else at_point
            passed(len(x) * cost)
        if scale < 1:
            found = {name: torch.maximum(found[name], own[name]) for name in COMPARED}
        curve["eps"].append(eps)
        before = float(lowest["kendall"].mean())
        for name in COMPARED:
            lowest[name] = torch.minimum(lowest[name], found[name])
            e = intervals.mean(lowest[name].tolist()).plain()  # a single example has no interval
            for key, value in ((name, e["value"]), (f"{name}_low", e["low"]), (f"{name}_high", e["high"])):
                curve[key].append(value)
        if eps >= high - low or (scale > 1 and before - float(lowest["kendall"].mean()) < SATURATED):
            break
    return curve


def _paper_scores(records: Sequence[Mapping[str, Any]], device: torch.device) -> dict[str, Tensor]:
    """The scores that the paper's attack gave; under `strict` it is one of several."""
    pairs = [r["attacks"]["paper"] if "attacks" in r else [r[name] for name in COMPARED] for r in records]
    scores = torch.tensor([[1.0 if v is None else v for v in pair] for pair in pairs], dtype=torch.float64)
    return dict(zip(COMPARED, scores.to(device).unbind(dim=1), strict=True))


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


def other_attacks(attack: PGDAttack) -> dict[str, PGDAttack]:
    """The protocol's attack on the prediction, and two variants that expose masked gradients.

    margin: on the margin, which does not saturate;  unbounded: the pixel range as radius, which no model withstands.
    """
    whole = attack.bounds[1] - attack.bounds[0]
    longer = replace(attack, eps=whole, alpha=whole / 10, steps=max(attack.steps, 20))
    return {"pgd": attack, "margin": replace(attack, loss=margin), "unbounded": longer}


def accuracies(attack: PGDAttack, x: Tensor, y: Tensor, *, ids: Sequence[int]) -> dict[str, float]:
    """Accuracy on correctly classified examples under `other_attacks` and a gradient-free search.

    Masked gradients make them differ.
    """
    points = {name: each(x, y, ids=ids) for name, each in other_attacks(attack).items()}
    points["search"] = random_search(attack.model, x, y, eps=attack.eps, bounds=attack.bounds, ids=ids, queries=QUERIES)
    with second_order(attack.model), torch.no_grad():
        logits = exactly(attack.model)
        return {name: float((logits(z).argmax(dim=1) == y).double().mean()) for name, z in points.items()}


def twin_cosine(map: AttributionMap, model: nn.Module, x: Tensor, y: Tensor, *, beta: float) -> Tensor:
    """(B,) the cosine of the maps of the network and of its relative twin: an attack on a twin far away misses."""
    with second_order(model), torch.no_grad():
        nets = bind(model).detach(), bind(smooth(model, beta, relative=True)).detach()
        return cosine(*(in_parts(partial(map, net), map, model, x, y) for net in nets))
