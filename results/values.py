"""How the differences of columns are written: `+2.10 points [+0.90, +3.30]`; and the ratio ‖IG‖₁ / ℓ beside them."""

from __future__ import annotations

from collections.abc import Sequence

from robattr.metrics.columns import COLUMN, Column
from robattr.metrics.intervals import Estimate
from robattr.reporting.paired import shown

RATIO = Column("ratio", "‖IG‖₁ / ℓ", "the regulariser beside the loss at the end of training")


def title(key: str) -> str:
    """The title of a column, or of the ratio."""
    return RATIO.title if key == RATIO.key else COLUMN[key].title


def show(key: str, value: float, *, unit: bool = True) -> str:
    """A difference of a column, or the ratio."""
    return f"{value:.3g}" if key == RATIO.key else COLUMN[key].show_difference(value, unit=unit)


def show_range(key: str, values: Sequence[float]) -> str:
    """`+12.30 to +47.11 points`."""
    low, high = min(values), max(values)
    return show(key, high) if low == high else f"{show(key, low, unit=False)} to {show(key, high)}"


def show_estimate(key: str, found: Estimate) -> str:
    """`+2.10 points [+0.90, +3.30]`, or the ratio."""
    return show(key, found.value) if key == RATIO.key else shown(COLUMN[key], found)
