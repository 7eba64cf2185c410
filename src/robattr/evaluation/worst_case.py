"""What the attacks of a protocol find on one batch: the worst case per score, what each attack found, what it cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from math import nan
from typing import Any

import torch
from torch import Tensor

from robattr.attacks.ifia import IFIA
from robattr.attacks.result import AttackResult
from robattr.evaluation.paper_results import PaperResults
from robattr.evaluation.protocol import Protocol
from robattr.evaluation.scores import COMPARED, curve_points
from robattr.evaluation.suite import noise_control, prediction_attacks, schedule


@dataclass
class WorstCase:
    """What the attacks of a protocol have found so far, per example; `add` takes what the next one finds.

    worst     the lowest value of every measure; map, attack, restart, iterate belong to the lowest Kendall
    each      {attack: {measure: (B,)}}, NaN where it did not run or kept no prediction; `ran` tells these apart
    curves    the lowest value so far of the COMPARED measures at the points of the curve over iterations
    walk      the iterates of the attack with the lowest Kendall (`AttackResult.walk`)
    noise     the scores under random noise
    passes    of the network, for the attacks on attributions and on predictions
    converged whether the last attacks on the example gained nothing more; None under `paper`
    falling   what they gained: the fall of the scores in the last round
    """

    worst: dict[str, Tensor]
    map: Tensor
    kept: Tensor
    attack: Tensor
    restart: Tensor
    iterate: Tensor
    walk: dict[str, Tensor]
    curves: dict[str, Tensor]
    each: dict[str, dict[str, Tensor]]
    ran: dict[str, Tensor]
    vanished: Tensor
    flips: Tensor
    points: list[int]
    passes: Tensor
    falling: Tensor
    converged: Tensor | None = None
    noise: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of_paper(cls, base: AttackResult, points: list[int]) -> WorstCase:
        """What the paper's attack found."""
        return cls(
            worst={name: values.clone() for name, values in base.worst.items()},
            map=base.map.clone(),
            kept=base.kept.clone(),
            attack=torch.zeros_like(base.restart),
            restart=base.restart.clone(),
            iterate=base.iterate.clone(),
            walk={key: values.clone() for key, values in base.walk.items()},
            curves={key: _curve(base, key, points) for key in COMPARED},
            each={"paper": _compared_of(base)},
            ran={"paper": torch.ones_like(base.kept)},
            vanished=base.vanished,
            flips=base.flips,
            points=points,
            passes=torch.zeros_like(base.iterate),
            falling=torch.zeros_like(base.score),
        )

    def add(self, name: str, number: int, found: AttackResult, at: Tensor) -> None:
        """Take what an attack found on the examples `at`."""
        lower = found.worst["kendall"] < self.worst["kendall"][at]
        for key, values in found.worst.items():
            self.worst[key][at] = torch.minimum(self.worst[key][at], values)
        for key in COMPARED:
            self.curves[key][at] = torch.minimum(self.curves[key][at], _curve(found, key, self.points))
        self.kept[at] |= found.kept
        chosen = at[lower]
        self.map[chosen], self.iterate[chosen] = found.map[lower], found.iterate[lower]
        self.restart[chosen], self.attack[chosen] = found.restart[lower], number
        for key, values in self.walk.items():
            values[chosen] = found.walk[key][lower]
        self.each[name] = {key: torch.full_like(self.worst[key], nan) for key in COMPARED}
        for key, values in _compared_of(found).items():
            self.each[name][key][at] = values
        self.ran[name] = torch.zeros_like(self.kept)
        self.ran[name][at] = True

    def about(self, b: int) -> dict[str, Any]:
        """The part of a record that only `strict` has."""
        if self.converged is None:
            return {}
        each = {name: [_rounded(v[s][b]) for s in COMPARED] for name, v in self.each.items() if self.ran[name][b]}
        cost, done, fell = int(self.passes[b]), bool(self.converged[b]), round(float(self.falling[b]), 4)
        return {"attacks": each, "passes": cost, "converged": done, "falling": fell}

    def diagnostics(self, b: int) -> dict[str, Any]:
        """The part of a record's diagnostics that the attacks give."""
        return {
            "vanishing_map": float(self.vanished[b]),
            "flips": float(self.flips[b]),
            "curves": {name: [round(v, 4) for v in values[b].tolist()] for name, values in self.curves.items()},
        }


def worst_case(
    attacks: Sequence[IFIA],
    x: Tensor,
    y: Tensor,
    clean: Tensor,
    *,
    ids: Sequence[int],
    protocol: Protocol,
    shared: PaperResults | None = None,
) -> WorstCase:
    """Run the attacks round by round on the examples that have not converged and can afford them.

    Which attacks run on an example depends on its own scores and passes, never on other examples.
    """
    p, paper = protocol, attacks[0]
    control = noise_control(paper)
    first, noise = (shared.take(ids, x.device) if shared and p.strict else None) or (
        paper(x, y, ids=ids, clean=clean),
        None if p.strict else control(x, y, ids=ids, clean=clean),
    )
    if shared is not None and noise is not None and not p.strict:
        shared.keep(ids, first, noise)
    case = WorstCase.of_paper(first, curve_points(p.steps))
    short = paper.can_shorten(x)
    predictions = prediction_attacks(p, paper.source or paper.model)
    case.passes = _cost(paper, short) + sum(attack.cost for attack in predictions)
    limit = p.budget * (_cost(replace(paper, window=1), short) + predictions[0].cost + _cost(control, short))
    active, settled = torch.ones_like(short), torch.zeros_like(short)
    planned = list(zip(schedule(p, images=x.dim() == 4), range(1, len(attacks)), strict=True))
    for number, group in groupby(planned, key=lambda entry: entry[0].round):
        before = {key: case.worst[key].clone() for key in COMPARED}
        missed = torch.zeros_like(short)
        for attack, at in group:
            cost = _cost(attacks[at], short)
            runs = active & (case.passes + cost <= limit)
            case.passes = case.passes + torch.where(runs, cost, 0)
            if attack.sharpens:
                missed |= active & ~runs
            chosen = runs.nonzero()[:, 0]
            if not len(chosen):
                continue
            names = [ids[b] for b in chosen.tolist()]
            known = noise if attack.kind == control.kind and len(chosen) == len(x) else None
            found = known or attacks[at](x[chosen], y[chosen], ids=names, clean=clean[chosen])
            case.add(attack.name, at, found, chosen)
        fell = torch.stack([before[key] - case.worst[key] for key in COMPARED]).amax(dim=0)
        case.falling = torch.where(active & ~missed, fell, case.falling)
        if number > 0:  # the first round has nothing before it
            settled |= active & ~missed & (fell <= p.tolerance)
            active &= ~settled
    complete = "random" in case.ran and bool(case.ran["random"].all())
    case.noise = case.each["random"] if complete else _compared_of(noise or control(x, y, ids=ids, clean=clean))
    case.converged = settled if p.strict else None
    return case


def _curve(found: AttackResult, key: str, points: Sequence[int]) -> Tensor:
    """The lowest score so far at the iterations `points` of the paper's attack, the last to the last scored iterate."""
    history = found.history[key]
    count = history.shape[1]
    return history[:, [round((t - 1) * (count - 1) / max(1, points[-1] - 1)) for t in points]]


def _compared_of(found: AttackResult) -> dict[str, Tensor]:
    return {key: found.worst[key].masked_fill(~found.kept, nan) for key in COMPARED}


def _cost(attack: IFIA, short: Tensor) -> Tensor:
    """(B,) passes of an attack on each example; fewer where the map has a shortcut."""
    return torch.where(short, attack.shortened().cost, attack.cost)


def _rounded(value: Tensor) -> float | None:
    number = float(value)
    return None if number != number else round(number, 4)
