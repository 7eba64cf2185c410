"""Which curves a group of runs has, thinned to what a chart can show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from robattr.report.runs import ORDER, Group, Run
from robattr.report.svg import SHADES, Series
from robattr.report.training import thinned

MOST_POINTS = 160


def shades(runs: Sequence[Run]) -> dict[str, int]:
    """For each run's name, colour + SHADES · dash: a colour for each method, a dash for each further run of it.

    The paper's methods always have their colours; every other run takes one of those that are left, while there are.
    """
    taken: dict[str, int] = {}
    free = len(ORDER)
    for run in runs:
        if run.name in taken:  # the same method on another dataset
            continue
        known = run.method in ORDER
        colour = ORDER.index(run.method) if known else free % SHADES
        taken[run.name] = colour + SHADES * sum(t % SHADES == colour for t in taken.values())
        free += not known
    return taken


def training(runs: Sequence[Run], key: str, colours: Mapping[str, int]) -> list[Series]:
    """A logged quantity against the training step; long logs become means over equal stretches."""
    found = []
    for run in runs:
        rows = [(float(m["step"]), float(m[key])) for m in run.metrics if m.get(key) is not None and "step" in m]
        if len(rows) > 1:
            xs, ys = thinned(rows, MOST_POINTS).T.tolist()
            found.append(Series(run.name, xs, ys, colours[run.name]))
    return found


def evaluation(group: Group, curve: str, *, x: str, y: str, colours: Mapping[str, int]) -> list[Series]:
    """A curve of the summaries, e.g. `score_vs_eps`: {"eps": [...], "topk": [...], ...}."""
    found = []
    for run, e in group.members:
        stored: Mapping[str, Any] = (e.summary.get("curves") or {}).get(curve) or {}
        xs, ys = stored.get(x), stored.get(y)
        if not xs or not ys:
            continue
        points = [(float(a), float(b)) for a, b in zip(xs, ys, strict=True) if b is not None]
        found.append(Series(run.name, [p[0] for p in points], [p[1] for p in points], colours[run.name]))
    return found
