"""Columns are means of the records; two evaluations are compared example by example."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest

from robattr.errors import CheckpointError, InvalidInput
from robattr.evaluation import compare
from robattr.evaluation.summary import advantage, check, read_checked, records_of, sealed


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
    with pytest.raises(InvalidInput, match="got no id in common"):
        compare(plain.records[:3], plain.records[3:])


FILE = Path("paper-ig.json")


@pytest.mark.parametrize("old", [False, True], ids=["sealed", "without digests"])
@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("columns", "topk", "value"), 0.9999),
        (("columns", "nat_acc", "value"), 0.9999),
        (("columns", "spearman", "n"), 3),
        (("columns", "kendall", "low"), 1.0),
        (("never_kept",), 0.5),
        (("examples",), 11),
        (("correct",), 12),
    ],
)
def test_a_summary_that_its_records_do_not_give_is_refused(plain, where, value, old: bool) -> None:
    made = deepcopy(plain.summary if old else sealed(plain.summary, plain.records))
    check(made, plain.records, source=FILE)
    check(json.loads(json.dumps(made)), json.loads(json.dumps(plain.records)), source=FILE)  # as read from the disk
    *path, key = where
    inner = made
    for part in path:
        inner = inner[part]
    inner[key] = value
    with pytest.raises(CheckpointError, match=r"paper-ig.json does not agree with its records .*delete it"):
        check(made, plain.records, source=FILE)


def test_changed_and_missing_records_are_noticed(plain) -> None:
    made = sealed(plain.summary, plain.records)
    changed = [{**r, "iterate": 99} if r["id"] == 4 else r for r in plain.records]  # no column depends on it
    for records in (changed, plain.records[1:]):
        with pytest.raises(CheckpointError, match="the records are not those it was made of"):
            check(made, records, source=FILE)
    with pytest.raises(CheckpointError, match="it was edited"):
        check({**made, "alarms": ["none"]}, plain.records, source=FILE)


def test_a_file_of_records_may_have_another_layout_but_not_other_content(plain, tmp_path: Path, monkeypatch) -> None:
    file = tmp_path / "paper-ig.jsonl"
    file.write_text("".join(json.dumps(r) + "\n" for r in plain.records))
    made = sealed(plain.summary, plain.records, file)
    with monkeypatch.context() as patch:  # the same file: its records need not be written out again to be hashed
        patch.setattr(
            "robattr.evaluation.summary.edited",
            lambda _, records: "" if records is None else "the records were looked at",
        )
        check(made, plain.records, source=file.with_suffix(".json"))
    file.write_text("".join(json.dumps(r, separators=(",", ":")) + "\n" for r in plain.records))
    check(made, plain.records, source=file.with_suffix(".json"))
    with pytest.raises(CheckpointError, match="the records are not those it was made of"):
        check(made, [{**r, "iterate": 99} for r in plain.records], source=file.with_suffix(".json"))


def test_records_that_were_changed_are_refused(plain, tmp_path: Path) -> None:
    summary, file = tmp_path / "paper-ig.json", tmp_path / "paper-ig.jsonl"
    text = "".join(json.dumps(r) + "\n" for r in plain.records)
    file.write_text(text)
    summary.write_text(json.dumps(sealed(plain.summary, plain.records, file)))
    assert read_checked(summary)[1] == plain.records
    file.write_text(text.replace(", ", ",  "))  # another layout
    assert read_checked(summary)[1] == plain.records
    first, _, rest = text.partition("\n")
    file.write_text(text + first.replace('"id": 0', '"id": 99') + "\n")  # of a longer evaluation
    assert len(read_checked(summary)[1]) == len(plain.records) + 1
    flipped = text.replace('"vanishing_loss": false', '"vanishing_loss": true', 1)
    for changed in (rest, flipped, text.replace('"topk": 0.', '"topk": 1.', 1)):
        assert changed != text
        file.write_text(changed)
        with pytest.raises(CheckpointError, match="the records are not those it was made of"):
            read_checked(summary)


def test_a_summary_finds_its_records_among_others(plain) -> None:
    assert records_of({"examples": 3}, plain.records) == plain.records[:3]
    assert records_of({"examples": 2, "ids": [7, 4]}, plain.records) == [plain.records[4], plain.records[7]]


def test_the_advantage_of_noise_is_over_all_attacks_by_gradients() -> None:
    records = [
        {"attacks": {"paper": [0.6, 0.7], "random": [0.8, 0.5], "rank": [0.5, 0.6]}},
        {"attacks": {"paper": [0.4, 0.7], "random": [0.9, 0.9], "rank": [None, None]}},
        {"correct": False},
    ]
    assert advantage(records, "random") == pytest.approx(0.1 / 2)
    assert advantage(records, "score") is None
