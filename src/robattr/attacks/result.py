"""What an attribution attack yields and returns, and how results of parts of a batch are joined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

Measure = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Iterate:
    """A scored iterate of every row: the points, the true net's maps and scores there, kept predictions.

    t       (rows,) iterations, counted from 1
    flips   (rows,) share of the iterates since the last scored ones that changed the prediction
    still   (rows,) whether the first gradient of the ascent was exactly 0
    """

    t: Tensor
    x: Tensor
    map: Tensor
    kept: Tensor
    scores: dict[str, Tensor]
    flips: Tensor
    still: Tensor


@dataclass(frozen=True)
class AttackResult:
    """The result of an attack, per example (B,).

    kept      some iterate kept the prediction (else the attack failed, however fragile the example)
    score     the lowest first measure over prediction-keeping iterates; perturbed, map, iterate, restart belong to it
    worst     for every measure its own lowest value over all prediction-keeping iterates
    history   (B, scored iterates) of every measure: its lowest value so far
    flips     share of the iterates that changed the prediction, of those whose prediction was looked at
    vanished  share of restarts whose first gradient was exactly 0
    walk      the iterates of that restart at the places `IFIA.frames` asks for: x, map (B, T, ...), kept and every
              measure (B, T); empty without frames

    Where no iterate lowered the score: `perturbed` is x, score 1, iterate 0. Where the clean map is constant or not
    finite, so that its pixels have no order: all scores are NaN and `kept` is False.
    """

    perturbed: Tensor
    map: Tensor
    kept: Tensor
    score: Tensor
    iterate: Tensor
    restart: Tensor
    flips: Tensor
    vanished: Tensor
    worst: dict[str, Tensor]
    history: dict[str, Tensor]
    walk: dict[str, Tensor]


def walk(steps: Sequence[Iterate], rows: Tensor) -> dict[str, Tensor]:
    """Some rows of successive iterates, as `AttackResult.walk` holds them."""
    named = [{"x": step.x, "map": step.map, "kept": step.kept, **step.scores} for step in steps]
    return {key: torch.stack([step[key][rows] for step in named], dim=1) for key in (named[0] if named else ())}


def where(mask: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch.where(mask.view(-1, *(1,) * (a.dim() - 1)), a, b)


def padded(part: Tensor, size: int) -> Tensor:
    """`part` with its last entry repeated up to `size`: compiled passes have one shape."""
    return torch.cat([part, part[-1:].expand(size - len(part))])


def joined(parts: Sequence[AttackResult], order: Sequence[Tensor]) -> AttackResult:
    """The results of groups of examples, without their padding, in the order of the examples."""
    back = torch.cat(list(order)).argsort().to(parts[0].score.device)

    def join(values: Sequence[Any]) -> Any:
        if isinstance(values[0], dict):
            return {name: join([value[name] for value in values]) for name in values[0]}
        return torch.cat([value[: len(at)] for value, at in zip(values, order, strict=True)])[back]

    return AttackResult(**{f.name: join([getattr(part, f.name) for part in parts]) for f in fields(AttackResult)})
