"""Paired differences: their table, and the best model of a group, whose lead is settled."""

from __future__ import annotations

from dataclasses import replace
from math import nan
from pathlib import Path

from robattr.metrics import intervals
from robattr.metrics.intervals import Comparison, Estimate
from robattr.reporting.paired import comparison, difference, settled, winner
from robattr.reporting.run_results import EvaluationResults


def evaluation(scores: list[float]) -> EvaluationResults:
    """An evaluation whose record i has the score i of the list."""
    records = tuple({"id": i, "topk": score} for i, score in enumerate(scores))
    return EvaluationResults(
        {"columns": {"topk": intervals.mean(scores).plain()}}, records, None, Path("paper-ig.json")
    )


SPREAD = [0.1, 0.9] * 10
BASE = evaluation(SPREAD)
ABOVE = evaluation([score + 0.02 for score in SPREAD])  # on every example
NOISY = evaluation([score + 0.3 * (-1) ** (i // 2) + 0.04 for i, score in enumerate(SPREAD)])  # higher, but not settled


def test_a_small_difference_on_every_example_is_settled() -> None:
    assert settled(difference(BASE, ABOVE, "topk"))
    assert winner([BASE, ABOVE], "topk") is ABOVE


def test_few_examples_settle_nothing() -> None:
    """Whose differences have one sign by chance."""
    one, two = (evaluation([each + 0.1 * (1 + i) * sign for i, each in enumerate(SPREAD[:9])]) for sign in (0, 1))
    assert difference(one, two, "topk").low > 0
    assert not settled(difference(one, two, "topk"))
    assert winner([one, two], "topk") is None


def test_a_higher_mean_inside_the_noise_does_not_win() -> None:
    assert difference(BASE, NOISY, "topk").value > difference(BASE, ABOVE, "topk").value
    assert not settled(difference(BASE, NOISY, "topk"))
    assert winner([BASE, ABOVE, NOISY], "topk") is None


def test_one_model_equal_models_and_missing_columns_have_no_winner() -> None:
    assert winner([], "topk") is None
    assert winner([ABOVE], "topk") is None
    assert winner([ABOVE, replace(ABOVE)], "topk") is None
    assert winner([BASE, ABOVE], "ssim") is None


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
