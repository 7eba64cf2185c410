"""The precision of an audit: reduced where the user's own first examples show that the explanations stay the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from robattr.attacks.ifia import IFIA
from robattr.attacks.maps import AttributionMap, saliency
from robattr.engine import precision
from robattr.engine.batch_size import rows_that_fit
from robattr.formula.network import second_order
from robattr.metrics import kendall, topk_intersection

REDUCED = {"cuda": "tf32"}
"""What is tried on a device; elsewhere an audit runs in fp32."""
DIRECTIONS = {"cuda": ("bf16", "tf32")}
"""The same for the directions of the attack, the first that is enough."""
EXAMPLES = 8
ENOUGH = 0.99
"""Least mean top-k intersection and rank correlation of maps in reduced precision with those in fp32.

A map that moves by rounding loses at most one point of what an audit reports."""
GAINED = 0.9
"""Least share of Σ|∇J|, the gain of a step along sign ∇J, that a step along a direction in reduced precision gains.

Scores do not depend on the precision of directions; an attack along wrong ones would find too little."""


@dataclass(frozen=True)
class Agreement:
    """How close maps and predictions in a precision are to those in fp32."""

    topk: float
    correlation: float
    predictions: bool

    @property
    def enough(self) -> bool:
        return self.predictions and min(self.topk, self.correlation) >= ENOUGH

    def __str__(self) -> str:
        kept = f"maps keep {self.topk:.1%} of their top pixels, rank correlation {self.correlation:.4f}"
        return kept if self.predictions else f"{kept}, and predictions change"


def agreement(model: nn.Module, map: AttributionMap, x: Tensor, y: Tensor, name: str) -> Agreement:
    """The maps and predictions of `model` at x in the precision `name` beside those in fp32."""
    maps, labels = [], []
    together = rows_that_fit(model, x, passes=map.together)
    for each in ("fp32", name):
        with precision(each, x.device.type), torch.no_grad():
            parts = zip(x.split(together), y.split(together), strict=True)
            maps.append(torch.cat([saliency(map, model, *part).flatten(1).double() for part in parts]))
            labels.append(model(x).argmax(1))
    exact, low = maps
    k = max(1, exact.shape[1] // 10)
    return Agreement(
        float(topk_intersection(exact, low, k).nanmean()),
        float(kendall(exact, low).nanmean()),
        bool((labels[0] == labels[1]).all()),
    )


def gained(attack: IFIA, x: Tensor, y: Tensor, name: str) -> float:
    """Σ_i g_i·sign(d_i) / Σ_i |g_i|, the mean over the examples; g = ∇J in fp32, d in the precision `name`."""
    found = []
    with second_order(attack.model), precision("fp32", x.device.type):
        for part, labels in zip(x.split(attack.rows(x)), y.split(attack.rows(x)), strict=True):
            g, d = (each.direction(part, labels).double() for each in (attack, replace(attack, directions=name)))
            found.append((g * d.sign()).flatten(1).sum(1) / g.abs().flatten(1).sum(1))
    return float(torch.cat(found).nanmean())


def choose_directions(attacks: Sequence[IFIA], x: Tensor, y: Tensor) -> tuple[str | None, str]:
    """The precision of the directions of an audit on the device of x, and a sentence; None: that of the scores."""
    x, y = x[:EXAMPLES], y[:EXAMPLES]
    for name in DIRECTIONS.get(x.device.type, ()):
        least = min(gained(attack, x, y, name) for attack in attacks)
        if least >= GAINED:
            return name, f"the attack follows directions in {name}: a step gains {least:.1%} of what one in fp32 does"
    return None, ""


def choose(model: nn.Module, maps: Sequence[AttributionMap], x: Tensor, y: Tensor, asked: str) -> tuple[str, str]:
    """The precision of an audit on the device of x, and a sentence about it; "auto" asks the first examples."""
    if asked != "auto":
        return asked, ""
    if (name := REDUCED.get(x.device.type)) is None:
        return "fp32", ""
    found = [agreement(model, map, x[:EXAMPLES], y[:EXAMPLES], name) for map in maps]
    worst = min(found, key=lambda each: (each.predictions, min(each.topk, each.correlation)))
    told = f"in {name} instead of fp32, on the first {len(x[:EXAMPLES])} examples, {worst}"
    if all(each.enough for each in found):
        return name, f"products run in {name}: {told}"
    return "fp32", f"products run in fp32: {told}"
