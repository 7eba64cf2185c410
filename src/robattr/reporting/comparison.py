"""The table of a paired comparison of two models; without torch, for `robattr compare`."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

from robattr.metrics.columns import COLUMN, Column
from robattr.metrics.intervals import Comparison

COMPARED = ("", "Difference", "95% interval", "p", "Examples", "Better")


def comparison(found: Mapping[str, Comparison], names: tuple[str, str]) -> list[tuple[str, ...]]:
    """The rows of COMPARED: second − first of every column, and which of the two `names` is better.

    Neither is where the interval contains 0: "not settled".
    """
    rows: list[tuple[str, ...]] = []
    for key, compared in found.items():
        d, column = compared.difference, COLUMN.get(key, Column(key, key, ""))
        known = isfinite(d.low)  # one example has no interval, none has no difference
        ends = (column.show_difference(end, unit=False) for end in (d.low, d.high))
        better = names[(d.value > 0) == column.higher_is_better] if d.low > 0 or d.high < 0 else "not settled"
        spread = (f"[{', '.join(ends)}]", f"{compared.p_value:.4f}") if known else ("–", "–")
        title = column.title if column.higher_is_better else f"{column.title} (lower is better)"
        change = column.show_difference(d.value) if d.n else "–"
        rows.append((title, change, *spread, str(d.n), better if known else "–"))
    return rows
