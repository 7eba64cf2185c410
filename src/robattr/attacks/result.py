"""What an attribution attack runs on, yields and returns, and how its results are collected and joined."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from math import nan
from typing import Any

import torch
from torch import Tensor

from robattr.attacks.maps import orderable
from robattr.attacks.per_example_rng import Row

Measure = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Rows:
    """All R restarts of B examples in one batch: restart r of example b is row r·B + b.

    clean, label   the true net's maps and predictions at x
    names          (id, restart) of each row
    """

    x: Tensor
    y: Tensor
    clean: Tensor
    label: Tensor
    names: Sequence[Row]


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

    kept      whether some iterate kept the prediction; if none did, the attack failed and shows nothing
    score     the lowest first measure over prediction-keeping iterates; perturbed, map, iterate, restart belong to it
    worst     for every measure its own lowest value over all prediction-keeping iterates
    history   (B, scored iterates) of every measure: its lowest value so far
    flips     share of the iterates that changed the prediction, among those whose prediction was computed
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

    def to(self, device: torch.device) -> AttackResult:
        """The same on another device."""
        return AttackResult(**{f.name: _moved(getattr(self, f.name), device) for f in fields(self)})

    @property
    def bytes(self) -> int:
        """The memory of its tensors."""
        values = [getattr(self, f.name) for f in fields(self)]
        tensors = [t for value in values for t in (value.values() if isinstance(value, dict) else (value,))]
        return sum(t.numel() * t.element_size() for t in tensors)


def collect(steps: Iterable[Iterate], rows: Rows, *, restarts: int, places: Sequence[int]) -> AttackResult:
    """The result of the walk `steps`, with the iterates at `places` as frames; the first measure selects the point."""
    R, B = restarts, len(rows.x) // restarts
    point, map, iterate = rows.x, rows.clean, torch.zeros_like(rows.y)
    kept, flips = torch.zeros_like(rows.y, dtype=torch.bool), torch.zeros_like(rows.y, dtype=torch.float64)
    vanished, worst = kept, dict[str, Tensor]()
    history, frames, count = dict[str, list[Tensor]](), dict[int, Iterate](), 0
    for at, step in enumerate(steps):
        first, *_ = step.scores
        count, kept, flips = at + 1, kept | step.kept, flips + step.flips
        if at in places:
            frames[at] = step
        if at == 0:
            vanished = step.still
        for name, score in step.scores.items():
            lowest = worst.get(name, torch.ones_like(flips))
            better = step.kept & (score < lowest)  # a NaN score is never an improvement
            worst[name] = torch.where(better, score.double(), lowest)
            history.setdefault(name, []).append(worst[name].view(R, B).amin(dim=0))
            if name == first:
                point, map = where(better, step.x, point), where(better, step.map, map)
                iterate = torch.where(better, step.t, iterate)
    unordered = ~orderable(rows.clean[:B]).repeat(R)
    kept = kept & ~unordered
    worst = {name: values.masked_fill(unordered, nan) for name, values in worst.items()}
    score, restart = worst[first].view(R, B).min(dim=0)
    chosen = restart * B + torch.arange(B, device=restart.device)
    return AttackResult(
        perturbed=point[chosen],
        map=map[chosen],
        kept=kept.view(R, B).any(dim=0),
        score=score,
        iterate=iterate[chosen],
        restart=restart,
        flips=flips.view(R, B).sum(dim=0) / (R * count),
        vanished=vanished.view(R, B).double().mean(dim=0),
        worst={name: values.view(R, B).amin(dim=0) for name, values in worst.items()},
        history={name: torch.stack(values, dim=1) for name, values in history.items()},
        walk=_walk([frames[at] for at in places], chosen),
    )


def _moved(value: Any, device: torch.device) -> Any:
    return {key: t.to(device) for key, t in value.items()} if isinstance(value, dict) else value.to(device)


def _walk(steps: Sequence[Iterate], rows: Tensor) -> dict[str, Tensor]:
    """Some rows of successive iterates, as `AttackResult.walk` has them."""
    named = [{"x": step.x, "map": step.map, "kept": step.kept, **step.scores} for step in steps]
    return {key: torch.stack([step[key][rows] for step in named], dim=1) for key in (named[0] if named else ())}


def repeated(a: Tensor, times: int) -> Tensor:
    """The batch `a`, so many times in a row."""
    return a.repeat(times, *(1,) * (a.dim() - 1))


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
        longest = max(value.shape[1] for value in values) if values[0].dim() == 2 else 0
        if longest:  # histories: with a shortcut every iterate is scored, without it one of a window
            values = [v[:, [i * v.shape[1] // longest for i in range(longest)]] for v in values]
        return torch.cat([value[: len(at)] for value, at in zip(values, order, strict=True)])[back]

    return AttackResult(**{f.name: join([getattr(part, f.name) for part in parts]) for f in fields(AttackResult)})
