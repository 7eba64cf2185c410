"""One definition of the columns: names, units, directions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from robattr.evaluation.scores import AGREEMENT
from robattr.evaluation.summary import columns
from robattr.metrics.columns import COLUMN, COLUMNS, PAPERS

SOURCE = Path(__file__).parents[2]


def test_the_interval_of_one_most_important_feature_is_that_of_a_share() -> None:
    records = [{"correct": True, "adv_correct": True, "kept": True, "topk": float(i > 0)} for i in range(10)]
    assert columns(records, k=1)["topk"]["low"] == pytest.approx(0.5958, abs=1e-4)  # Wilson's of 9 in 10
    assert columns(records, k=2)["topk"]["low"] == pytest.approx(0.7)


def test_every_score_of_an_evaluation_has_a_column() -> None:
    further = {"foreground_topk", "foreground_kendall"}  # of the same unit as topk and kendall
    assert {*columns([], k=100), *AGREEMENT} - further <= COLUMN.keys()
    assert [column.key for column in PAPERS] == ["nat_acc", "adv_acc", "topk", "kendall"]
    lower = {"never_kept", "mass_center", "deletion", "infidelity", "completeness_gap", "same_class_cosine"}
    assert {key for key, column in COLUMN.items() if not column.higher_is_better} == lower


def test_every_column_has_a_meaning_of_one_sentence() -> None:
    for column in COLUMN.values():
        assert column.meaning[0].islower() or column.meaning.startswith(("Kendall", "Spearman", "Insertion"))
        assert not re.search(r"\. [A-Z]|\.$", column.meaning)


def test_values_intervals_and_differences_are_written_in_their_unit() -> None:
    share, score = COLUMN["topk"], COLUMN["kendall"]
    assert (share.show(0.72079), score.show(0.67468), share.show(None)) == ("72.08%", "0.6747", "–")
    assert share.show_interval(0.7011, 0.7404) == "[70.1, 74.0]"
    assert score.show_interval(0.66, 0.691) == "[0.660, 0.691]"
    assert score.show_interval(None, None) == score.show_interval(float("nan"), float("nan")) == ""
    assert share.show_difference(0.0339) == "+3.39 points"
    assert share.show_difference(-0.0339, unit=False) == "-3.39"
    assert score.show_difference(-0.00421) == "-0.0042"


def test_no_other_file_writes_the_names_of_the_columns() -> None:
    names = "|".join(re.escape(f'"{column.title}"') for column in COLUMNS)
    files = [*(SOURCE / "src").rglob("*.py"), *(SOURCE / "results").glob("*.py")]
    odd = [file.name for file in files if file.name != "columns.py" and re.search(names, file.read_text("utf-8"))]
    assert odd == []
