"""Which curves a group of runs has, thinned to what a chart can show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from robattr.reporting.runs import ORDER, Group, RunResults
from robattr.reporting.svg import DASHES, SHADES, Series
from robattr.reporting.training import thinned

MOST_POINTS = 160


def shades(runs: Sequence[RunResults]) -> dict[str, int]:
    """For each run's name, colour + SHADES · dash: a colour for each method, a dash for each further run of it.

    The paper's methods always have their colours. Every other run, and a method's runs beyond the dashes there are,
    take a colour that no method here has, while there is one.
    """
    methods = {run.method for run in runs}
    spare = [c % SHADES for c in range(len(ORDER), len(ORDER) + SHADES) if c % SHADES not in map(_own, methods)]
    taken: dict[str, int] = {}
    for run in runs:
        colour = _own(run.method)
        theirs = [] if colour is None else [colour + SHADES * dash for dash in range(DASHES)]
        left = [*theirs, *(other + SHADES * dash for dash in range(DASHES) for other in spare)]
        taken[run.name] = next((c for c in left if c not in taken.values()), colour or 0)
    return taken


def _own(method: str) -> int | None:
    return ORDER.index(method) if method in ORDER else None


def training(runs: Sequence[RunResults], key: str, colours: Mapping[str, int]) -> list[Series]:
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
