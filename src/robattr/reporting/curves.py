"""The curves of runs as series for a chart, with one colour per method and one dash per further run of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from robattr.reporting.run_results import ORDER, Group, RunResults
from robattr.reporting.training_log import thin

MOST_POINTS = 160
COLOURS, DASHES = 6, 4  # of the style sheet, and of the figures


@dataclass(frozen=True)
class Series:
    """A named sequence of points. `style` is colour + COLOURS · dash, the same for one run in every chart."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    style: int


def styles(runs: Sequence[RunResults]) -> dict[str, int]:
    """For each run's name its style: the colour of its method, and a dash for each further run of that method.

    The paper's methods always have the same colours. Other methods, and more runs than there are dashes, take the
    colours that are free.
    """
    methods = {run.method for run in runs}
    spare = [c % COLOURS for c in range(len(ORDER), len(ORDER) + COLOURS) if c % COLOURS not in map(_colour, methods)]
    taken: dict[str, int] = {}
    for run in runs:
        colour = _colour(run.method)
        own = [] if colour is None else [colour + COLOURS * dash for dash in range(DASHES)]
        free = [*own, *(other + COLOURS * dash for dash in range(DASHES) for other in spare)]
        taken[run.name] = next((style for style in free if style not in taken.values()), colour or 0)
    return taken


def _colour(method: str) -> int | None:
    return ORDER.index(method) if method in ORDER else None


def training_series(runs: Sequence[RunResults], key: str, styles: Mapping[str, int]) -> list[Series]:
    """A logged quantity against the training step; long logs are thinned to MOST_POINTS."""
    found = []
    for run in runs:
        rows = [(float(m["step"]), float(m[key])) for m in run.metrics if m.get(key) is not None and "step" in m]
        if len(rows) > 1:
            xs, ys = thin(rows, MOST_POINTS).T.tolist()
            found.append(Series(run.name, xs, ys, styles[run.name]))
    return found


def evaluation_series(group: Group, curve: str, *, x: str, y: str, styles: Mapping[str, int]) -> list[Series]:
    """A curve of the summaries, e.g. `score_vs_eps`: {"eps": [...], "topk": [...], ...}."""
    found = []
    for run, e in group.members:
        stored: Mapping[str, Any] = (e.summary.get("curves") or {}).get(curve) or {}
        xs, ys = stored.get(x), stored.get(y)
        if xs and ys:
            points = [(float(a), float(b)) for a, b in zip(xs, ys, strict=True) if b is not None]
            found.append(Series(run.name, [p[0] for p in points], [p[1] for p in points], styles[run.name]))
    return found
