"""The curves of runs, with one colour per method and one dash per further run of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil

from robattr.metrics.columns import COLUMN
from robattr.reporting.groups import Group
from robattr.reporting.record import APPROACHES
from robattr.reporting.run_results import RunResults
from robattr.reporting.training_log import thin

MOST_POINTS = 160
COLOURS, DASHES = 6, 4
LOGGED = {"loss": "loss ℓ", "penalty": "size of the regulariser", "val_accuracy": "validation accuracy"}


@dataclass(frozen=True)
class Series:
    """A named sequence of points. `style` is colour + COLOURS · dash, the same for one run in every chart.

    `low` and `high` are the ends of the intervals of ys; () where there are none.
    """

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    style: int
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclass(frozen=True)
class Panel:
    """Curves that share their axes; `log` makes y logarithmic."""

    label: str
    series: list[Series]
    log: bool = False

    @property
    def title(self) -> str:
        """The label of the y axis."""
        return f"{self.label} (log scale)" if self.log else self.label


def styles(runs: Sequence[RunResults]) -> dict[str, int]:
    """For each run's name its style: the colour of its method, and a dash for each further run of that method.

    A method takes the colour of its place in `APPROACHES`, or the next one that is free. More runs than a colour has
    dashes take those of other colours.
    """
    taken: dict[str, int] = {}
    used: set[int] = set()
    colours = _colours(dict.fromkeys(run.method for run in runs))
    spare = sorted(range(COLOURS), key=[*colours.values()].count)
    for run in runs:
        own = colours[run.method]
        free = (colour + COLOURS * dash for colour in (own, *spare) for dash in range(DASHES))
        used.add(style := next((style for style in free if style not in used), own))
        taken[run.name] = style
    return taken


def _colours(methods: Iterable[str]) -> dict[str, int]:
    """A colour for each method; named ones come first, so that theirs do not depend on the others'."""
    order = [*APPROACHES]
    found: dict[str, int] = {}
    for method in sorted(methods, key=lambda name: [*order, name].index(name)):
        first = order.index(method) if method in order else len(found)
        turned = [(first + i) % COLOURS for i in range(COLOURS)]
        found[method] = min(turned, key=[*found.values()].count)  # of equals the first
    return found


def scores(group: Group) -> dict[str, str]:
    """The labels of the two scores: their columns."""
    return {"topk": f"{COLUMN['topk'].title} (k = {group.k:,})", "kendall": COLUMN["kendall"].title}


def training_panels(runs: Sequence[RunResults]) -> list[Panel]:
    """The logged quantities against the training step; long logs are thinned to MOST_POINTS."""
    style = styles(runs)
    panels = []
    for key, label in LOGGED.items():
        series = []
        for run in runs:
            rows = [(float(m["step"]), float(m[key])) for m in run.metrics if m.get(key) is not None and "step" in m]
            if len(rows) > 1:
                steps, values = thin(rows, MOST_POINTS).T.tolist()
                series.append(Series(run.name, steps, values, style[run.name]))
        panels.append(Panel(label, series, log=key != "val_accuracy"))
    return panels


def score_panels(group: Group, x: str) -> list[Panel]:
    """The scores against x, "eps" or "iterations", from the summaries; with intervals where they have them."""
    style = styles([run for run, _ in group.members])
    panels = []
    for key, label in scores(group).items():
        series = []
        for run, e in group.members:
            stored = (e.summary.get("curves") or {}).get(f"score_vs_{x}") or {}
            ends = [stored.get(f"{key}_{end}") or () for end in ("low", "high")]
            known = ends if all(ends) and None not in (*ends[0], *ends[1]) else ()
            columns = (stored.get(x) or (), stored.get(key) or (), *known)
            points = [row for row in zip(*columns, strict=False) if None not in row]
            if points and x == "iterations" and (window := e.summary.get("window")):
                points = _at_window_ends(points, window)
            if points:
                xs, ys, *interval = ([float(v) for v in column] for column in zip(*points, strict=True))
                series.append(Series(run.name, xs, ys, style[run.name], *interval))
        panels.append(Panel(label, series))
    return panels


def _at_window_ends(points: Sequence[tuple[float, ...]], window: int) -> list[tuple[float, ...]]:
    """(iteration, score) of an attack that scores one iterate of each window: a score is known at the window's end."""
    last = points[-1][0]
    per_iteration = (ceil(last / window) - 1) / max(1, last - 1)
    found = {min(last, window * (1 + round((t - 1) * per_iteration))): score for t, *score in points}
    return [(end, *score) for end, score in found.items()]
