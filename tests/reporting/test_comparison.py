"""The table of a paired comparison."""

from __future__ import annotations

from math import nan

from robattr.metrics.intervals import Comparison, Estimate
from robattr.reporting.comparison import comparison


def test_a_comparison_names_the_better_one_where_the_interval_excludes_zero() -> None:
    found = {
        "topk": Comparison(Estimate(0.1, 0.05, 0.15, 30), 0.001, 0),
        "mass_center": Comparison(Estimate(0.1, 0.05, 0.15, 30), 0.001, 0),
        "kendall": Comparison(Estimate(-0.1, -0.3, 0.1, 30), 0.3, 0),
        "adv_acc": Comparison(Estimate(1.0, nan, nan, 1), 1.0, 0),
    }
    rows = comparison(found, ("one", "two"))
    assert rows[0] == ("TopK Inter.", "+10.00 points", "[+5.00, +15.00]", "0.0010", "30", "two")
    assert rows[1][0] == "Mass center shift (lower is better)"
    assert [row[-1] for row in rows] == ["two", "one", "not settled", "–"]
