"""The attacks of a protocol in order, on one batch: the worst case per score, what each attack found, what it cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from math import nan
from typing import Any

import torch
from torch import Tensor, nn

from robattr.attacks.ifia import IFIA
from robattr.attacks.losses import IMAGES_ONLY
from robattr.attacks.maps import AttributionMap
from robattr.attacks.pgd import PGDAttack
from robattr.attacks.result import AttackResult, Measure
from robattr.evaluation.diagnostics import spread
from robattr.evaluation.protocol import Attack, Protocol
from robattr.evaluation.scores import COMPARED, curve_points
from robattr.formula.scalars import margin
from robattr.metrics import cosine, kendall, mass_center_displacement, spearman, ssim, topk_intersection

NOISE_TRIES = 10
QUERIES = 50  # of the search without gradients
MARGIN_RESTARTS = 3
EVERY = 4  # iterates of the strict attacks per scored one


def measures(protocol: Protocol, *, images: bool) -> dict[str, Measure]:
    """The scores of a (clean, perturbed) pair of maps, 1 = equal; the first, Kendall, selects the iterate.

    The score of the mass centre is minus its displacement in pixels.
    """
    plain: dict[str, Measure] = {
        "kendall": kendall,
        "topk": partial(topk_intersection, k=protocol.eval_k),
        "spearman": spearman,
        "cosine": cosine,
    }
    if not images:
        return plain
    return {**plain, "ssim": ssim, "mass_center": lambda a, b: -mass_center_displacement(a, b)}


def prediction_attacks(protocol: Protocol, model: nn.Module) -> list[PGDAttack]:
    """The attacks behind Adv Acc, with the gradients of `model`; a robust example withstands all of them."""
    p = protocol
    base = PGDAttack(model, p.eps, p.pgd_alpha, p.pgd_steps, bounds=p.bounds, seed=p.seed)
    if not p.strict:
        return [base]
    return [base, replace(base, loss=margin, adaptive=True, best=True, restarts=MARGIN_RESTARTS)]


def schedule(protocol: Protocol, *, images: bool) -> list[Attack]:
    """The attacks after the paper's that apply to the data, in order."""
    return [a for a in protocol.attacks if images or a.kind not in IMAGES_ONLY]


def attribution_attacks(
    protocol: Protocol,
    model: nn.Module,
    map: AttributionMap,
    *,
    images: bool,
    source: nn.Module | None = None,
    batch: int | None = None,
    directions: str | None = None,
    frames: int = 0,
) -> list[IFIA]:
    """The attacks behind the attribution columns; with `batch`, compiled for that many examples.

    The paper's attack is the first in both protocols, with the same starts. So the candidates of `strict` include those
    of `paper`, and its scores cannot be higher. All differentiate the map's coarse version; scores are of the map.
    """
    p = protocol
    scores = measures(p, images=images)
    base = IFIA(
        model,
        p.eps,
        p.alpha,
        p.steps,
        k=p.k,
        restarts=p.repeats,
        map=map,
        bounds=p.bounds,
        window=p.window,
        source=source,
        measures=scores if p.strict else {name: scores[name] for name in ("kendall", "topk")},
        seed=p.seed,
        frames=frames,
        batch=batch,
        directions=directions,
    )
    harder = replace(
        base,
        map=replace(map, guide=map.guide or map.coarse),
        k=p.eval_k,
        restarts=1,
        start="ball",
        adaptive=True,
        relative=True,
        keep=p.keep,
        window=1,
    )
    return [base, *(_attack(harder, a, i) for i, a in enumerate(schedule(p, images=images), start=1))]


def noise_control(protocol: Protocol, model: nn.Module, map: AttributionMap, *, batch: int | None = None) -> IFIA:
    """Random sign noise of the same ε, the worst of ten draws: a baseline that every attack should beat."""
    p = protocol
    scores: dict[str, Measure] = {"kendall": kendall, "topk": partial(topk_intersection, k=p.eval_k)}
    return IFIA(
        model, p.eps, p.eps, NOISE_TRIES, kind="random", map=map, bounds=p.bounds, measures=scores, seed=p.seed,
        batch=batch,
    )  # fmt: skip


def _attack(harder: IFIA, attack: Attack, number: int) -> IFIA:
    if attack.kind == "random":  # the control, counted among the attacks
        return replace(harder, kind="random", alpha=harder.eps, steps=NOISE_TRIES, keep=0.0)
    seeded = replace(harder, kind=attack.kind, seed=harder.seed + number)
    if attack.kind == "score":
        return replace(seeded, steps=QUERIES, keep=0.0)
    aim = attack.aim if attack.aim in harder.measures else None
    steps = max(1, round(attack.share * harder.steps))
    return replace(seeded, beta=attack.betas, steps=steps, every=min(EVERY, steps), aim=aim)


@dataclass(frozen=True)
class WorstCase:
    """What the attacks of a protocol found, per example.

    worst     the lowest value of every measure; map, attack, restart, iterate belong to the lowest Kendall
    each      {attack: {measure: (B,)}}, NaN where it did not run or kept no prediction
    passes    of the network, for the attacks on attributions and on predictions
    converged whether the last attacks on the example gained nothing more; None under `paper`
    falling   what they gained: the fall of the scores on the last twins, or in the last round
    walk      the iterates of the attack with the lowest Kendall (`AttackResult.walk`)
    """

    worst: dict[str, Tensor]
    map: Tensor
    kept: Tensor
    attack: Tensor
    restart: Tensor
    iterate: Tensor
    noise: dict[str, Tensor]
    each: dict[str, dict[str, Tensor]]
    passes: Tensor
    converged: Tensor | None
    falling: Tensor
    vanished: Tensor
    flips: Tensor
    curves: dict[str, Tensor]
    walk: dict[str, Tensor]

    def about(self, b: int) -> dict[str, Any]:
        """The part of a record that only `strict` has."""
        if self.converged is None:
            return {}
        each = {name: [_rounded(values[s][b]) for s in COMPARED] for name, values in self.each.items()}
        cost, done, fell = int(self.passes[b]), bool(self.converged[b]), round(float(self.falling[b]), 4)
        return {"attacks": each, "passes": cost, "converged": done, "falling": fell}

    def diagnostics(self, b: int) -> dict[str, Any]:
        return {
            "vanishing_map": float(self.vanished[b]),
            "flips": float(self.flips[b]),
            "curves": {name: [round(v, 4) for v in values[b].tolist()] for name, values in self.curves.items()},
        }


def worst_case(
    attacks: Sequence[IFIA], x: Tensor, y: Tensor, clean: Tensor, *, ids: Sequence[int], protocol: Protocol
) -> WorstCase:
    """Run the attacks round by round on the examples that have not converged and can afford them.

    What an example meets depends on its own scores and passes, never on the other examples.
    """
    p, images = protocol, x.dim() == 4
    paper, base = attacks[0], attacks[0](x, y, ids=ids, clean=clean)
    state = _State(base, clean, p, images=images)
    short = paper.can_shorten(x)
    control = noise_control(p, paper.model, paper.map, batch=paper.batch)
    predictions = prediction_attacks(p, paper.source or paper.model)
    spent = _cost(paper, short) + sum(attack.cost for attack in predictions)
    limit = p.budget * (_cost(replace(paper, window=1), short) + predictions[0].cost + _cost(control, short))
    active, settled, falling = torch.ones_like(short), torch.zeros_like(short), torch.zeros_like(base.score)
    noise = control(x, y, ids=ids, clean=clean) if not p.strict else None
    planned = list(zip(schedule(p, images=images), range(1, len(attacks)), strict=True))
    for number, group in groupby(planned, key=lambda entry: entry[0].round):
        before, fell, missed = state.compared(), torch.zeros_like(falling), torch.zeros_like(short)
        for attack, at in group:
            cost = _cost(attacks[at], short)
            runs = active & (spent + cost <= limit)
            spent = spent + torch.where(runs, cost, 0)
            if len(attack.betas) > 1:
                missed |= active & ~runs
            chosen = runs.nonzero()[:, 0]
            if not len(chosen):
                continue
            names = [ids[b] for b in chosen.tolist()]
            found = attacks[at](x[chosen], y[chosen], ids=names, clean=clean[chosen])
            state.add(attack.name, at, found, chosen)
            fell[chosen] = torch.maximum(fell[chosen], _still_falling(attacks[at], found))
            if attack.kind == "random" and noise is None:
                noise = found
        fell = fell if number == 0 else state.gain(before)
        falling = torch.where(active & ~missed, fell, falling)
        gained = fell > p.tolerance
        settled |= active & ~gained & ~missed
        active &= gained | missed
    if noise is None:
        noise = control(x, y, ids=ids, clean=clean)
    return WorstCase(
        **state.result(),
        noise={name: noise.worst[name].masked_fill(~noise.kept, nan) for name in control.measures},
        passes=spent,
        converged=settled if p.strict else None,
        falling=falling,
        vanished=base.vanished,
        flips=base.flips,
    )


class _State:
    """The worst case so far."""

    def __init__(self, base: AttackResult, clean: Tensor, protocol: Protocol, *, images: bool) -> None:
        self.worst = {name: values.clone() for name, values in base.worst.items()}
        self.map, self.kept, self.iterate = base.map.clone(), base.kept.clone(), base.iterate.clone()
        self.restart, self.attack = base.restart.clone(), torch.zeros_like(base.restart)
        self.walk = {key: values.clone() for key, values in base.walk.items()}
        self.points = curve_points(protocol.steps)
        self.curves = {key: self._curve(base, key) for key in COMPARED}
        self.each = {"paper": self._compared_of(base)}

    def add(self, name: str, number: int, found: AttackResult, at: Tensor) -> None:
        """Take what an attack found on the examples `at`."""
        lower = found.worst["kendall"] < self.worst["kendall"][at]
        for key, values in found.worst.items():
            self.worst[key][at] = torch.minimum(self.worst[key][at], values)
        for key in COMPARED:
            self.curves[key][at] = torch.minimum(self.curves[key][at], self._curve(found, key))
        self.kept[at] |= found.kept
        chosen = at[lower]
        self.map[chosen], self.iterate[chosen] = found.map[lower], found.iterate[lower]
        self.restart[chosen], self.attack[chosen] = found.restart[lower], number
        for key, values in self.walk.items():
            values[chosen] = found.walk[key][lower]
        empty = {key: torch.full_like(self.worst[key], nan) for key in COMPARED}
        for key, values in self._compared_of(found).items():
            empty[key][at] = values
        self.each[name] = empty

    def _curve(self, found: AttackResult, key: str) -> Tensor:
        history = found.history[key]
        return history[:, spread(self.points, history.shape[1])]

    @staticmethod
    def _compared_of(found: AttackResult) -> dict[str, Tensor]:
        return {key: found.worst[key].masked_fill(~found.kept, nan) for key in COMPARED}

    def compared(self) -> dict[str, Tensor]:
        return {key: self.worst[key].clone() for key in COMPARED}

    def gain(self, before: dict[str, Tensor]) -> Tensor:
        """How much the scores fell since `before`, the larger of the two."""
        return torch.stack([before[key] - self.worst[key] for key in COMPARED]).amax(dim=0)

    def result(self) -> dict[str, Any]:
        names = ("worst", "map", "kept", "attack", "restart", "iterate", "each", "curves", "walk")
        return {name: getattr(self, name) for name in names}


def _cost(attack: IFIA, short: Tensor) -> Tensor:
    """(B,) passes of an attack on each example; fewer where the map has a shortcut."""
    return torch.where(short, attack.shortened().cost, attack.cost)


def _still_falling(attack: IFIA, found: AttackResult) -> Tensor:
    """(B,) how much the score that the attack aims at fell on its last twin; 0 for attacks on one twin."""
    stages = len(attack.betas)
    if stages < 2 or attack.aim not in COMPARED:
        return torch.zeros_like(found.score)
    fell = found.history[attack.aim]
    return fell[:, -1 - attack.scored // stages] - fell[:, -1]


def _rounded(value: Tensor) -> float | None:
    number = float(value)
    return None if number != number else round(number, 4)
