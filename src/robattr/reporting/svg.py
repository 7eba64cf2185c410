"""Small charts as inline SVG; colours come from the style sheet, light or dark.

Series have the classes `s0`, `s1`, … of the style sheet. All text is escaped here: names come from files. The view box
is 460 units wide, so that a chart is readable on a phone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import NDArray

from robattr.reporting.curves import COLOURS, DASHES, Series

WIDTH = 460


def css_class(style: int) -> str:
    """The CSS classes of a style: its colour, and its dash beyond the first."""
    dash = style // COLOURS % DASHES
    return f"s{style % COLOURS}" + (f" d{dash}" if dash else "")


@dataclass(frozen=True)
class Axis:
    """A linear or logarithmic map from [low, high] to [start, end]."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, value = (math.log10(v) if self.log else v for v in (self.low, self.high, value))
        return self.start + (value - low) / ((high - low) or 1.0) * (self.end - self.start)

    def ticks(self) -> list[float]:
        if self.log:
            decades = range(math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9) + 1)
            if len(decades) > 2:
                return [10.0**d for d in decades[:: math.ceil(len(decades) / 5)]]
            lowest = math.floor(math.log10(self.low))
            finer = [f * 10.0**d for d in range(lowest, lowest + 4) for f in (1, 2, 5)]
            return [t for t in finer if self.low <= t <= self.high]
        return _nice(self.low, self.high)


@dataclass(frozen=True)
class Box:
    """Tukey's box: quartiles, whiskers at the last value within 1.5 interquartile ranges, the values beyond."""

    low: float
    q1: float
    median: float
    q3: float
    high: float
    beyond: tuple[float, ...]


def box_of(values: Iterable[float]) -> Box | None:
    """The box of the finite values; None where there are none."""
    v: NDArray[np.float64] = np.array([x for x in values if math.isfinite(x)], dtype=np.float64)
    if v.size == 0:
        return None
    q1, median, q3 = (float(q) for q in np.percentile(v, [25, 50, 75]))
    reach = 1.5 * (q3 - q1)
    inside = v[(v >= q1 - reach) & (v <= q3 + reach)]
    beyond = v[(v < q1 - reach) | (v > q3 + reach)]
    return Box(float(inside.min()), q1, median, q3, float(inside.max()), tuple(sorted(map(float, beyond))))


def box_plot(rows: Sequence[tuple[str, Iterable[float], int]], *, label: str, low: float, high: float) -> str:
    """Horizontal box plots of one score, a row for each model: (name, values, style).

    Each comma-separated part of a name has its own line.
    """
    names = [name.split(", ") for name, _, _ in rows]
    top, pitch = 10, max(40, 15 * max(map(len, names), default=0) + 10)
    height = top + pitch * len(rows) + 40
    x = Axis(low, high, 122, WIDTH - 16)
    parts = [_grid_x(x, top, height - 40)]
    for i, (name, values, style) in enumerate(rows):
        y = top + pitch * i + pitch / 2
        first, *more = (
            f' x="112" y="{y + 15 * (line - (len(names[i]) - 1) / 2):.1f}" text-anchor="end" dy=".35em">{_short(part)}'
            for line, part in enumerate(names[i])
        )
        parts += [f'<text class="name"{first}</text>', *(f"<text{part}</text>" for part in more)]
        box = box_of(values)
        if box is None:
            parts.append(f'<text x="130" y="{y:.1f}" dy=".35em">no scores</text>')
            continue
        parts.append(_box(box, x, y, name=name, style=style))
    parts.append(_x_label(label, x, height))
    return _svg(parts, height, title=f"Box plot of {label}: {', '.join(row[0] for row in rows)}")


def line_chart(
    series: Sequence[Series],
    *,
    x_label: str,
    y_label: str,
    y_range: tuple[float, float] | None = None,
    log: bool = False,
    dots: bool = False,
) -> str:
    """Lines over a common x axis. With `log`, points that are not positive are left out."""
    kept = [s for s in (_finite(s, positive=log) for s in series) if s.xs]
    if not kept:
        return ""
    top, bottom, height = 28, 188, 228
    all_x = [x for s in kept for x in s.xs]
    all_y = [y for s in kept for y in s.ys]
    low, high = y_range or (min(all_y), max(all_y))
    if low == high:
        low, high = (low / 2, high * 2) if log else (low - 0.5, high + 0.5)
    x = Axis(min(all_x), max(all_x), 48, WIDTH - 16)
    y = Axis(low, high, bottom, top, log=log)
    parts = [_grid_y(y, x), _grid_x(x, bottom, bottom + 4), _x_label(x_label, x, height)]
    parts.append(f'<text class="label" x="0" y="12">{escape(y_label)}</text>')
    for s in kept:
        points = [(x(a), y(b)) for a, b in zip(s.xs, s.ys, strict=True)]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        css = css_class(s.style)
        parts.append(f'<polyline class="line {css}" points="{path}"><title>{escape(s.name)}</title></polyline>')
        if dots:
            parts += [
                f'<circle class="dot {css}" cx="{a:.1f}" cy="{b:.1f}" r="3.5">'
                f"<title>{escape(s.name)}: {number(v)} at {number(u)}</title></circle>"
                for (a, b), u, v in zip(points, s.xs, s.ys, strict=True)
            ]
    return _svg(parts, height, title=f"{y_label} against {x_label}: {', '.join(s.name for s in kept)}")


def number(value: float) -> str:
    """A short number for an axis or a tooltip: 0.25, 1,000, 1e-05."""
    if value != 0 and (abs(value) < 1e-3 or abs(value) >= 1e6):
        return f"{value:.0e}"
    return f"{value:,.4f}".rstrip("0").rstrip(".")


def _box(box: Box, x: Axis, y: float, *, name: str, style: int) -> str:
    left, right, half = x(box.q1), x(box.q3), 10
    tip = f"{name}: median {box.median:.3f}, quartiles {box.q1:.3f} and {box.q3:.3f}"
    whiskers = "".join(
        f'<line class="whisker" x1="{x(a):.1f}" x2="{x(b):.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<line class="whisker" x1="{x(a):.1f}" x2="{x(a):.1f}" y1="{y - 5:.1f}" y2="{y + 5:.1f}"/>'
        for a, b in ((box.low, box.q1), (box.high, box.q3))
    )
    # Show at most sixty outliers, evenly thinned: a thousand would be most of the page.
    stride = max(1, math.ceil(len(box.beyond) / 60))
    dots = "".join(f'<circle class="far" cx="{x(v):.1f}" cy="{y:.1f}" r="1.8"/>' for v in box.beyond[::stride])
    return (
        f'<g class="box s{style % COLOURS}"><title>{escape(tip)}</title>{whiskers}{dots}'
        f'<rect x="{left:.1f}" y="{y - half:.1f}" width="{max(right - left, 1.0):.1f}" height="{2 * half}" rx="2"/>'
        f'<line class="median" x1="{x(box.median):.1f}" x2="{x(box.median):.1f}" '
        f'y1="{y - half:.1f}" y2="{y + half:.1f}"/></g>'
    )


def _grid_x(x: Axis, top: float, bottom: float) -> str:
    def middle(t: float) -> float:
        return min(x(t), WIDTH - 4 * len(number(t)))  # keep a long number at the end inside

    return "".join(
        f'<line class="grid" x1="{x(t):.1f}" x2="{x(t):.1f}" y1="{top}" y2="{bottom}"/>'
        f'<text x="{middle(t):.1f}" y="{bottom + 16}" text-anchor="middle">{number(t)}</text>'
        for t in x.ticks()
    )


def _grid_y(y: Axis, x: Axis) -> str:
    return "".join(
        f'<line class="grid" x1="{x.start}" x2="{x.end}" y1="{y(t):.1f}" y2="{y(t):.1f}"/>'
        f'<text x="{x.start - 6}" y="{y(t):.1f}" dy=".35em" text-anchor="end">{number(t)}</text>'
        for t in y.ticks()
    )


def _x_label(label: str, x: Axis, height: float) -> str:
    middle = (x.start + x.end) / 2
    return f'<text class="label" x="{middle:.1f}" y="{height - 4}" text-anchor="middle">{escape(label)}</text>'


def _svg(parts: Iterable[str], height: float, *, title: str) -> str:
    name = escape(title, quote=True)
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{name}">{"".join(parts)}</svg>'
    )


def _finite(s: Series, *, positive: bool) -> Series:
    points = [
        (x, y)
        for x, y in zip(s.xs, s.ys, strict=True)
        if math.isfinite(x) and math.isfinite(y) and (y > 0 or not positive)
    ]
    return Series(s.name, [p[0] for p in points], [p[1] for p in points], s.style)


def _nice(low: float, high: float, wanted: int = 5) -> list[float]:
    """Round numbers in [low, high], about `wanted` of them, at steps of 1, 2, 2.5 or 5 times a power of ten."""
    span = (high - low) or 1.0
    raw = span / wanted
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * f for f in (1, 2, 2.5, 5, 10) if power * f >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def _short(name: str) -> str:
    return escape(name if len(name) <= 16 else f"{name[:15]}…")
