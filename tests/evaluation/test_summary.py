"""Columns are means of the records; two evaluations are compared example by example."""

from __future__ import annotations

import numpy as np
import pytest

from robattr.evaluation import compare


def test_columns_are_means_of_the_records(plain) -> None:
    records, summary = plain.records, plain.summary
    assert [r["id"] for r in records] == list(range(12))
    wrong = [r for r in records if not r["correct"]]
    assert [r["id"] for r in wrong] == [2, 7]
    assert all(r["kendall"] is None and r["topk"] is None and r["kept"] is None for r in wrong)
    right = [r for r in records if r["correct"]]
    for name in ("topk", "kendall", "spearman", "cosine", "ssim", "mass_center", "ceiling", "foreground_kendall"):
        column = summary["columns"][name]
        assert column["value"] == pytest.approx(np.mean([r[name] for r in right]))
        assert column["low"] <= column["value"] <= column["high"]
        assert column["n"] == 10
    assert summary["columns"]["nat_acc"]["value"] == pytest.approx(10 / 12)
    assert summary["columns"]["adv_acc"]["value"] == pytest.approx(np.mean([r["adv_correct"] for r in records]))
    assert summary["never_kept"] == np.mean([not r["kept"] for r in right])
    assert 0 < summary["columns"]["kendall"]["value"] < 1
    assert all(r["kendall"] <= r["ceiling"] or r["iterate"] == 0 or r["ceiling"] == 1 for r in right)


def test_compare_pairs_examples(plain) -> None:
    better = [{**r, "kendall": None if r["kendall"] is None else r["kendall"] + 0.1} for r in plain.records]
    found = compare(plain.records, better[:-1])
    assert found["kendall"].difference.value == pytest.approx(0.1)
    assert found["kendall"].difference.n == 9
    assert found["kendall"].unpaired == 1
    assert found["topk"].difference.value == 0
