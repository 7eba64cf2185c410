"""The verdict is a function of the records, and says what they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from robattr._text import printable
from robattr.auditing.verdict import classes, closing, judged, opening, show, sternest, verdict
from robattr.report.runs import Evaluation, Run


def column(value: float | None, half: float = 0.05) -> dict[str, Any]:
    return {
        "value": value,
        "low": None if value is None else value - half,
        "high": None if value is None else value + half,
        "n": 0 if value is None else 20,
    }


def evaluation(
    protocol: str, map: str, topk: float | None, *, noise: float = 0.9, accuracy: float = 0.9, **more: Any
) -> Evaluation:
    records = tuple(
        {
            "label": i % 2,
            "correct": True,
            "kept": True,
            "topk": None if topk is None else topk - 0.2 * (i % 2),
            "kendall": 0.1,
        }
        for i in range(20)
    )
    summary = {
        "protocol": protocol, "map": map, "examples": 20, "settings": {"eps": 8 / 255}, "never_kept": 0.0, "alarms": [],
        "classes": ["first", "second\x1b[0m"],
        "columns": {
            "topk": column(topk), "kendall": column(topk), "noise_topk": column(noise), "noise_kendall": column(noise),
            "nat_acc": column(accuracy), "adv_acc": column(0.3),
        },
        **more,
    }  # fmt: skip
    return Evaluation(summary, records, None)


def run(*evaluations: Evaluation, **config: Any) -> Run:
    return Run("net", Path("audit"), {"maps": ["ig", "sg"], **config}, {}, (), evaluations)


@pytest.mark.parametrize(
    ("topk", "half", "level"),
    [
        (0.8, 0.05, "holds"),
        (0.72, 0.05, "partly"),
        (0.4, 0.05, "fragile"),
        (0.48, 0.05, "partly"),
        (None, 0, "unclear"),
    ],
)
def test_the_interval_decides(topk: float | None, half: float, level: str) -> None:
    assert judged(column(topk, half)) == level
    if topk is not None:
        assert judged({**column(topk, half), "n": 9}) == "unclear"  # too few to say


def test_the_sternest_evaluation_counts() -> None:
    lax, stern, other = evaluation("paper", "ig", 0.9), evaluation("strict", "ig", 0.4), evaluation("strict", "sg", 0.2)
    assert sternest(run(other, lax, stern)) is stern
    assert sternest(run(other, lax)) is other
    found = verdict(run(other, lax, stern))
    assert found.level == "fragile"
    assert "ε = 0.03137" in found.headline
    assert "40.0% [35.0, 45.0]" in found.headline
    assert any("adversary" in said and "90%" in said for said in found.findings)
    assert any("paper protocol, ig maps: 90.0%" in said for said in found.findings)


def test_what_to_do_next_follows_from_what_was_found() -> None:
    def advice(*evaluations: Evaluation) -> str:
        return "\n".join(verdict(run(*evaluations)).next_steps)

    assert "robattr harden" in advice(evaluation("strict", "ig", 0.4))
    assert "robattr harden" not in advice(evaluation("strict", "ig", 0.9))
    assert "retraining" in advice(evaluation("strict", "ig", 0.9))
    assert "order of the classes" in advice(evaluation("strict", "ig", 0.9, accuracy=0.2))
    assert "holds against itself" in advice(evaluation("strict", "ig", 0.9, alarms=["masked"]))
    assert "sg holds best" in advice(evaluation("strict", "ig", 0.4), evaluation("strict", "sg", 0.8))
    assert r"'second\x1b[0m' is the most fragile" in advice(evaluation("strict", "ig", 0.7)).replace("\\\\", "\\")
    wide = evaluation("strict", "ig", 0.6)
    wide.summary["columns"]["topk"] = column(0.6, 0.1)  # type: ignore[index]
    assert "more than 20 examples" in advice(wide)
    assert "nearly as much" in "\n".join(verdict(run(evaluation("strict", "ig", 0.85))).findings)
    assert verdict(run(evaluation("strict", "ig", None))).level == "unclear"


def test_sections_hold_every_class_note_and_skipped_file() -> None:
    audited = run(evaluation("paper", "ig", 0.7), notes=["converted"], skipped=["a/b.png", "c\x07.png"])
    assert [section.title for section in opening(audited)] == ["Verdict", "What to do next"]
    titles = {section.title: section for section in closing(audited)}
    assert titles["What was done to the model"].points == ("converted",)
    assert titles["Files that were skipped"].points == ("a/b.png", "c\\x07.png")
    rows = classes(audited).rows
    assert [row[0] for row in rows] == ["second\\x1b[0m", "first"]  # the most fragile first
    assert rows[0][1:4] == ("10", "100.0% [72.2, 100.0]", "50.0% [50.0, 50.0]")


def test_numbers_and_names_are_shown_as_they_can_be_read() -> None:
    assert show({"value": 0.5, "low": 0.4, "high": 0.61}, share=True) == "50.0% [40.0, 61.0]"
    assert show({"value": 0.5, "low": None, "high": None}, share=False) == "0.500"
    assert show({"value": None}, share=True) == "–"
    assert printable("é\x1b[2J\n\udc80") == "é\\x1b[2J\\n\\udc80"
