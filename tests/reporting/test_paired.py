"""The best model of a group is one whose paired differences are settled."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from robattr.metrics import intervals
from robattr.reporting.paired import difference, settled, winner
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


def test_a_higher_mean_inside_the_noise_does_not_win() -> None:
    assert difference(BASE, NOISY, "topk").value > difference(BASE, ABOVE, "topk").value
    assert not settled(difference(BASE, NOISY, "topk"))
    assert winner([BASE, ABOVE, NOISY], "topk") is None


def test_one_model_equal_models_and_missing_columns_have_no_winner() -> None:
    assert winner([], "topk") is None
    assert winner([ABOVE], "topk") is None
    assert winner([ABOVE, replace(ABOVE)], "topk") is None
    assert winner([BASE, ABOVE], "ssim") is None
