"""The acceptance criteria on invented numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from fake_runs import fake_results
from results.acceptance import Criterion, criteria
from robattr.reporting.groups import group_evaluations
from robattr.reporting.run_results import RunResults

BEATS_NATURAL, BEATS_MADRY, REACHES, ATTACK, EXAMPLES, SEEDS, STRICT = range(7)


def judged(runs: Iterable[RunResults], dataset: str = "mnist") -> tuple[Criterion, ...]:
    return criteria(dataset, group_evaluations(runs))


NATURAL, MADRY = fake_results("natural", 0.46, 0.18), fake_results("madry", 0.62, 0.24)


def test_all_criteria_met() -> None:
    found = judged([NATURAL, MADRY, fake_results("ig-sum-norm", 0.73, 0.32)])
    assert [criterion.met for criterion in found[:5]] == [True] * 5
    assert "TopK Inter. 73.00% against 46.00% (+27.00 points)" in found[BEATS_NATURAL].detail
    assert "Rank Corr. 0.3200 against 0.1800 (+0.1400)" in found[BEATS_NATURAL].detail
    assert "between the intervals: TopK Inter. +25.00 points, Rank Corr. +0.1200" in found[BEATS_NATURAL].detail
    assert found[REACHES].detail == "IG-SUM-NORM"
    assert "72.45%, Rank Corr. 0.3111, Nat Acc. 97.67%, Adv Acc. 88.17%" in found[REACHES].text


def test_a_missed_criterion_says_by_how_much() -> None:
    found = judged([NATURAL, MADRY, fake_results("ig-sum-norm", 0.70, 0.23, adv=0.80)])
    assert found[BEATS_NATURAL].met is True
    assert found[BEATS_MADRY].answer == "no"
    assert "Rank Corr. 0.2300 against 0.2400 (-0.0100)" in found[BEATS_MADRY].detail
    assert found[REACHES].met is False
    # IG-SUM-NORM falls 8.17 points of accuracy short; Madry's net 10.45 points of top-k.
    assert found[REACHES].detail == (
        "closest is IG-SUM-NORM: TopK Inter. -2.45 points, Rank Corr. -0.0811, Adv Acc. -8.17 points"
    )


def test_values_are_rounded_like_the_papers() -> None:
    level = {"dataset": "flower", "nat": 116 / 136, "adv": 64 / 136, "examples": 136}
    assert judged([fake_results("ig-sum-norm", 0.6633, 0.7974, **level)], "flower")[REACHES].met is True  # type: ignore[arg-type]
    assert judged([fake_results("ig-sum-norm", 0.6632, 0.7974, **level)], "flower")[REACHES].met is False  # type: ignore[arg-type]


def test_overlapping_intervals_do_not_beat_natural() -> None:
    found = judged([NATURAL, fake_results("ig-sum-norm", 0.73, 0.19)])
    assert found[BEATS_NATURAL].met is False
    assert "Rank Corr. -0.0100" in found[BEATS_NATURAL].detail.partition("between")[2]


def test_missing_measurements_are_named() -> None:
    assert [criterion.met for criterion in judged([NATURAL], "gtsrb")] == [None] * 7
    found = judged([NATURAL])
    assert found[BEATS_NATURAL].answer == "not measured yet"
    assert found[BEATS_NATURAL].detail == "no record of IG-SUM-NORM"
    assert found[BEATS_MADRY].detail == "no record of IG-SUM-NORM or of Madry et al."
    other = judged([NATURAL, fake_results("ig-sum-norm", 0.73, 0.32, examples=500)])
    assert other[BEATS_NATURAL].met is None
    assert "same examples" in other[BEATS_NATURAL].detail
    assert other[EXAMPLES].met is False
    assert other[EXAMPLES].detail == "500, 1,000 examples, not the same for all rows"


def test_of_several_seeds_the_lowest_counts_and_of_several_variants_the_best() -> None:
    seeds = [fake_results("ig-sum-norm", topk, 0.32, seed=seed) for seed, topk in enumerate((0.73, 0.50))]
    found = judged([NATURAL, MADRY, *seeds])
    assert found[BEATS_NATURAL].met is True
    assert "50.00% against 46.00%" in found[BEATS_NATURAL].detail
    assert "the lowest of 2 against the highest of 1" in found[BEATS_NATURAL].detail
    assert found[BEATS_MADRY].met is False
    wide = fake_results("ig-sum-norm", 0.80, 0.40, variant="wide")
    assert judged([NATURAL, MADRY, *seeds, wide])[BEATS_MADRY].met is True


def test_headline_rows_need_two_seeds() -> None:
    short, clear = (0.70, 0.30), (0.73, 0.32)
    pairs = [("natural", (0.4, 0.1)), ("madry", (0.6, 0.2)), ("ig-sum-norm", short)]
    both = [fake_results(method, *scores, seed=seed) for method, scores in pairs for seed in (0, 1)]
    assert judged(both[1:])[SEEDS].met is False
    assert judged(both[1:])[SEEDS].detail == "NATURAL 1, Madry et al. 2, IG-SUM-NORM 2"
    assert judged(both)[SEEDS].met is True
    lone = judged([*both, fake_results("ig-norm", *clear)])[SEEDS]
    assert (lone.met, lone.detail) == (False, "NATURAL 2, Madry et al. 2, IG-SUM-NORM 2, IG-NORM 1")
    assert lone.text.endswith("NATURAL, Madry et al., IG-SUM-NORM, IG-NORM")
    other = [*both, fake_results("ig-norm", *clear), fake_results("ig-sum-norm", *clear, seed=2)]
    assert judged(other)[SEEDS].met is True, "a method that is compared clears the bar as well"
    assert criteria("mnist", ())[SEEDS].met is None


def test_values_above_the_papers_rows_suggest_a_weak_attack() -> None:
    criterion = judged([fake_results("natural", 0.50, 0.18), MADRY])[ATTACK]
    assert criterion.met is False
    assert criterion.detail == "NATURAL TopK Inter. +3.39 points"
    fine = judged([NATURAL, MADRY])[ATTACK]
    assert fine.met is True
    assert fine.detail == "Madry et al. TopK Inter. -0.56 points, NATURAL Rank Corr. +0.0042"
    ours = fake_results("natural", 0.60, 0.30, model="avgpool_cnn")
    assert judged([NATURAL, MADRY, ours])[ATTACK] == fine, "another network tells nothing of the attack"
    assert judged([ours])[ATTACK].met is None


def test_strict_needs_records_of_both_and_a_margin() -> None:
    paper = [NATURAL, fake_results("ig-sum-norm", 0.73, 0.32)]
    assert judged(paper)[STRICT].met is None
    strict = [fake_results(*row, protocol="strict") for row in (("natural", 0.2, 0.1), ("ig-sum-norm", 0.6, 0.05))]
    assert judged([*paper, strict[1]])[STRICT].detail == "no record of NATURAL under strict"
    assert judged([*paper, *strict])[STRICT].met is False
    assert judged([*paper, *strict])[STRICT].detail.endswith("; the 1,000 examples of both")


def test_strict_is_judged_on_the_examples_of_both() -> None:
    ours = fake_results("ig-sum-norm", 0.6, 0.05, protocol="strict")
    (evaluation,) = ours.evaluations
    harder = [{**r, "kendall": 0.09} if r["id"] < 100 else r for r in evaluation.records]
    harder[7] = {**harder[7], "topk": None, "kendall": None, "kept": None}
    ours = replace(ours, evaluations=(replace(evaluation, records=tuple(harder)),))
    fewer = fake_results("natural", 0.2, 0.07, protocol="strict", examples=100)
    criterion = judged([ours, fewer])[STRICT]
    assert criterion.met is True
    assert "Rank Corr. 0.0900 against 0.0700 (+0.0200); the 99 examples of both" in criterion.detail
    for other in (fake_results("natural", 0.2, 0.01, protocol="strict", examples=100, first=1000), _unscored(fewer)):
        assert judged([ours, other])[STRICT].detail == "not measured on the same examples"


def _unscored(run: RunResults) -> RunResults:
    """The run without any score."""
    (evaluation,) = run.evaluations
    lone = [{"id": i, "kept": None} for i in range(100)]
    return replace(run, evaluations=(replace(evaluation, records=tuple(lone)),))
