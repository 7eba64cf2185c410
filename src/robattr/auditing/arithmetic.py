"""The precision of an audit: reduced where the user's own first examples show that its scores stay the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from math import inf
from typing import NamedTuple

import torch
from torch import Tensor, nn

from robattr.attacks.ifia import IFIA
from robattr.attacks.maps import AttributionMap, saliency
from robattr.attacks.result import Measure
from robattr.engine import precision
from robattr.engine.batch_size import rows_that_fit
from robattr.evaluation.protocol import Protocol
from robattr.formula.neighbourhoods import LinfBall
from robattr.formula.network import second_order
from robattr.metrics import kendall, topk_intersection

REDUCED = {"cuda": {"bf16": 0.002, "tf32": 0.01}}
"""What is tried on a device, in this order, and the most that scores of maps under random noise, means over the
examples, may then differ from those in fp32; elsewhere an audit runs in fp32.

An audit reports scores. Rounding may move the maps of a deep network by far more, those of clean and perturbed images
alike, and leave their scores the same: of a hardly trained ResNet-50 whose products were rounded to tf32 on a CPU, four
images kept 75% of their top pixels, and scores under noise moved by 0.3 points and 0.002 on average. bf16 rounds eight
times as coarsely: it has to show that this network does not mind.
"""
DIRECTIONS = {"cuda": ("bf16", "tf32")}
"""The same for the directions of the attack, the first that is enough."""
FEW_AND_MOST = (8, 32)
"""How many examples decide, in groups of the first number, at most the second; directions are judged by one group."""
GAINED = 0.9
"""Least share of Σ|∇J|, the gain of a step along sign ∇J, that a step along a direction in reduced precision gains.

Scores do not depend on the precision of directions; an attack along wrong ones would find too little."""


class Shown(NamedTuple):
    """The maps (B, pixels) at x and under noise."""

    clean: Tensor
    noisy: Tensor


@dataclass(frozen=True)
class Agreement:
    """How close maps and their scores under noise in a precision are to those in fp32, in which predictions always are.

    kept                top-k intersection of the maps with those in fp32
    topk, correlation   scores of maps under noise in this precision minus those in fp32, means over the examples
    errors              the standard errors of these two
    """

    kept: float
    topk: float
    correlation: float
    errors: tuple[float, float] = (0.0, 0.0)

    @property
    def apart(self) -> float:
        return max(abs(self.topk), abs(self.correlation))

    def within(self, most: float) -> bool:
        return all(abs(d) <= most for d in (self.topk, self.correlation))  # false for NaN

    def settled(self, most: float) -> bool:
        """Whether more examples would hardly change the decision: a standard error more or less does not."""
        ends = [(abs(d) - e, abs(d) + e) for d, e in zip((self.topk, self.correlation), self.errors, strict=True)]
        return any(low > most for low, _ in ends) or all(high <= most for _, high in ends)

    def __str__(self) -> str:
        return (
            f"scores under random noise differ by {100 * self.topk:+.2f} points and {self.correlation:+.4f}, and maps "
            f"keep {self.kept:.1%} of their top pixels"
        )


def shown(model: nn.Module, map: AttributionMap, x: Tensor, noisy: Tensor, y: Tensor, name: str) -> Shown:
    """Maps of `model` at x and at the noisy images, in the precision `name`."""
    together = rows_that_fit(model, x, passes=map.together)
    with second_order(model), precision(name, x.device.type), torch.no_grad():
        maps = [
            torch.cat([saliency(map, model, *part) for part in zip(z.split(together), y.split(together), strict=True)])
            for z in (x, noisy)
        ]
    return Shown(*(m.flatten(1).double() for m in maps))


def under_noise(x: Tensor, *, eps: float, bounds: tuple[float, float]) -> Tensor:
    """x with random signs times ε, the same at every call, inside the range."""
    signs = torch.rand(x.shape, generator=torch.Generator().manual_seed(0)).to(x).sub(0.5).sign()
    return LinfBall(eps, bounds).project(x + eps * signs, x)


def agreement(exact: Shown, low: Shown) -> Agreement:
    """What a precision shows, beside fp32."""
    k = max(1, exact.clean.shape[1] // 10)

    def difference(measure: Measure) -> tuple[float, float]:
        found = measure(low.clean, low.noisy) - measure(exact.clean, exact.noisy)
        found = found[~found.isnan()]
        error = float(found.std(correction=0)) / len(found) ** 0.5 if len(found) > 1 else inf
        return float(found.mean()), error

    (topk, of_topk), (correlation, of_correlation) = difference(partial(topk_intersection, k=k)), difference(kendall)
    kept = float(topk_intersection(exact.clean, low.clean, k).nanmean())
    return Agreement(kept, topk, correlation, (of_topk, of_correlation))


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
    x, y, tried = x[: FEW_AND_MOST[0]], y[: FEW_AND_MOST[0]], DIRECTIONS.get(x.device.type, ())
    for name in tried:
        least = min(gained(attack, x, y, name) for attack in attacks)
        if least >= GAINED:
            return name, f"the attack follows directions in {name}: a step gains {least:.1%} of what one in fp32 does"
    return ("fp32" if tried else None), ""


def choose(
    model: nn.Module, maps: Sequence[AttributionMap], x: Tensor, y: Tensor, *, protocol: Protocol
) -> tuple[str, str]:
    """The precision of an audit on the device of x, and what each that was tried changed: the first examples decide.

    As many groups of them as it takes until the differences are a standard error away from what is allowed.
    """
    if not (tried := REDUCED.get(x.device.type)):
        return "fp32", ""
    group, most_examples = FEW_AND_MOST
    x, y, told = x[:most_examples], y[:most_examples], list[str]()
    noisy = under_noise(x, eps=protocol.eps, bounds=protocol.bounds)
    groups = list(zip(x.split(group), noisy.split(group), y.split(group), strict=True))

    @cache
    def look(name: str, at: int, number: int) -> Shown:
        x, noisy, y = groups[at]
        return shown(model, maps[number], x=x, noisy=noisy, y=y, name=name)

    def so_far(name: str, count: int, number: int) -> Shown:
        return Shown(*map(torch.cat, zip(*(look(name, at, number) for at in range(count)), strict=True)))

    for name, most in tried.items():
        for count in range(1, len(groups) + 1):
            found = [agreement(so_far("fp32", count, i), so_far(name, count, i)) for i in range(len(maps))]
            if all(each.settled(most) for each in found):
                break
        seen, worst = min(count * group, len(x)), max(found, key=lambda each: each.apart)
        told.append(f"in {name}{'' if told else ' instead of fp32'}, on the first {seen} examples, {worst}")
        if all(each.within(most) for each in found):
            break
    else:
        name = "fp32"
    return name, f"products run in {name}: {'; '.join(told)}"
