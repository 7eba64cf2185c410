"""The verdict is a function of the records, and says what they say."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from robattr._text import printable
from robattr.reporting.audit_sections import classes, closing, opening
from robattr.reporting.html import page
from robattr.reporting.results import results
from robattr.reporting.runs import RunResults, read_run
from robattr.reporting.verdict import judged, show, strictest, verdict


def column(value: float | None, half: float = 0.05) -> dict[str, Any]:
    return {
        "value": value,
        "low": None if value is None else value - half,
        "high": None if value is None else value + half,
        "n": 0 if value is None else 20,
    }


Written = tuple[dict[str, Any], list[dict[str, Any]]]


def evaluation(
    protocol: str, map: str, topk: float | None, *, noise: float = 0.9, accuracy: float = 0.9, **more: Any
) -> Written:
    """A summary and its records."""
    records = [
        {
            "id": i,
            "label": i % 2,
            "correct": True,
            "kept": True,
            "topk": None if topk is None else topk - 0.2 * (i % 2),
            "kendall": 0.1,
        }
        for i in range(20)
    ]
    summary = {
        "protocol": protocol, "map": map, "examples": 20, "settings": {"eps": 8 / 255, "eval_k": 10},
        "never_kept": 0.0, "alarms": [],
        "classes": ["first", "second\x1b[0m"],
        "columns": {
            "topk": column(topk), "kendall": column(topk), "noise_topk": column(noise), "noise_kendall": column(noise),
            "nat_acc": column(accuracy), "adv_acc": column(0.3),
        },
        **more,
    }  # fmt: skip
    return summary, records


def run(*evaluations: Written, **config: Any) -> RunResults:
    """The run directory of an audit that holds these, read."""
    with TemporaryDirectory() as scratch:
        place = Path(scratch) / "records"
        place.mkdir()
        about = {"name": "net", "method": "audit", "dataset": "images", "maps": ["ig", "sg"], **config}
        (Path(scratch) / "config.json").write_text(json.dumps(about))
        for summary, records in evaluations:
            file = place / f"{summary['protocol']}-{summary['map']}.json"
            file.write_text(json.dumps(summary))
            file.with_suffix(".jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        return read_run(scratch)


def counts(found: RunResults) -> tuple[str, str]:
    """Protocol and map of the evaluation that counts."""
    summary = strictest(found).summary
    return summary["protocol"], summary["map"]


@pytest.mark.parametrize(
    ("topk", "half", "level"),
    [
        (0.8, 0.05, "holds"),
        (0.72, 0.05, "partly"),
        (0.4, 0.05, "fragile"),
        (0.52, 0.05, "partly"),
        (0.33, 0.25, "fragile"),
        (None, 0, "unclear"),
    ],
)
def test_who_says_that_maps_hold_has_to_show_it(topk: float | None, half: float, level: str) -> None:
    assert judged(column(topk, half)) == level
    if topk is not None:
        assert judged({**column(topk, half), "n": 9}) == "unclear"  # too few to say


def test_an_audit_that_was_stopped_says_so_and_is_not_judged_to_hold() -> None:
    asked = {"protocols": ["paper", "strict"], "maps": ["ig"]}
    half = verdict(run(evaluation("paper", "ig", 0.9), **asked))
    assert half.level == "unclear"
    assert half.doubts == ("the audit is unfinished: not measured yet are strict protocol, ig maps",)
    assert half.next_steps[0].startswith("Finish the audit")
    assert verdict(run(evaluation("paper", "ig", 0.3), **asked)).level == "fragile"
    whole = verdict(run(evaluation("paper", "ig", 0.9), evaluation("strict", "ig", 0.8), **asked))
    assert (whole.level, whole.doubts) == ("holds", ())


def test_the_sternest_evaluation_counts() -> None:
    lax, stern, other = evaluation("paper", "ig", 0.9), evaluation("strict", "ig", 0.4), evaluation("strict", "sg", 0.2)
    assert counts(run(other, lax, stern)) == ("strict", "ig")
    assert counts(run(other, lax)) == ("strict", "sg")
    found = verdict(run(other, lax, stern))
    assert found.level == "fragile"
    assert "(ig maps, strict protocol)" in found.headline
    assert "ε = 0.03137" in found.headline
    assert "40.0% [35.0, 45.0] of the 10 most important" in found.headline
    assert any("paper protocol, ig maps: 90.0% [85.0, 95.0] kept." in said for said in found.findings)
    assert any("sg maps: 20.0% [15.0, 25.0] kept: they cannot be relied on." in said for said in found.findings)


def test_nothing_is_said_to_hold_by_a_measurement_that_doubts_itself() -> None:
    found = verdict(run(evaluation("strict", "ig", 0.9, alarms=["gradients are masked"])))
    assert found.level == "unclear"
    assert "before its measurement's doubts are settled" in found.headline
    assert found.doubts == ("gradients are masked",)
    assert "holds against itself" in found.next_steps[0]
    assert not any("retraining" in step or "more examples" in step for step in found.next_steps)
    # What did move, moved: doubts cannot make a fragile model better.
    assert verdict(run(evaluation("strict", "ig", 0.3, alarms=["gradients are masked"]))).level == "fragile"


@pytest.mark.parametrize("topk", [0.6, 0.9])
@pytest.mark.parametrize(
    ("protocol", "more", "doubt", "remedy"),
    [
        ("strict", {"alarms": ["gradients are masked"]}, "gradients are masked", "holds against itself"),
        ("strict", {"noise": 0.3}, "random noise of the same ε keeps less of the map (30%)", "more --steps"),
        ("paper", {"never_kept": 0.4}, "40% of the attacked examples count as unmoved", "strict protocol, where"),
    ],
)
def test_doubts_forbid_to_say_that_the_maps_hold_even_in_part(
    topk: float, protocol: str, more: dict[str, Any], doubt: str, remedy: str
) -> None:
    found = verdict(run(evaluation(protocol, "ig", topk, **more)))
    assert found.level == "unclear"
    assert "before its measurement's doubts are settled" in found.headline
    assert len(found.doubts) == 1
    assert found.doubts[0].startswith(doubt)
    assert remedy in found.next_steps[0]
    assert not any("robattr harden" in step or "retraining" in step for step in found.next_steps)
    assert verdict(run(evaluation(protocol, "ig", 0.2, **{"noise": 0.05, **more}))).level == "fragile"
    beside = run(evaluation(protocol, "ig", 0.2), evaluation(protocol, "sg", topk, **more))
    assert "they are not judged" in "\n".join(verdict(beside).findings)
    assert "holds best" not in "\n".join(verdict(beside).next_steps)


def test_small_reservations_are_no_doubts() -> None:
    for protocol, more in (
        ("paper", {"never_kept": 0.05}),
        ("strict", {"never_kept": 0.4}),
        ("strict", {"noise": 0.55}),
    ):
        assert verdict(run(evaluation(protocol, "ig", 0.6, **more))).level == "partly"


@pytest.mark.parametrize(
    ("topk", "noise", "said"),
    [
        (0.4, 0.9, "keeps 90%: it takes an adversary, not an accident"),
        (0.2, 0.5, "keeps 50%: accidents move them too"),
        (0.85, 0.9, "keeps 90%: the attack does little more"),
        (0.9, 0.85, "keeps 85%: the attack does no more"),
    ],
)
def test_what_random_noise_says(topk: float, noise: float, said: str) -> None:
    assert said in verdict(run(evaluation("strict", "ig", topk, noise=noise))).findings[0]


def test_reservations_of_the_measurement_are_told() -> None:
    def told(*evaluations: Written) -> str:
        return "\n".join(verdict(run(*evaluations)).findings)

    assert "20% of the attacked examples" in told(evaluation("paper", "ig", 0.9, never_kept=0.2))
    assert "which flatters" in told(evaluation("paper", "ig", 0.9, never_kept=0.2))
    assert "they have no score" in told(evaluation("strict", "ig", 0.9, never_kept=0.2))
    assert "at least this far" in told(evaluation("paper", "ig", 0.9), evaluation("paper", "captum-Saliency", 0.9))
    assert "at least this far" not in told(evaluation("paper", "ig", 0.9))


def test_what_to_do_next_follows_from_what_was_found() -> None:
    def advice(*evaluations: Written) -> str:
        return "\n".join(verdict(run(*evaluations)).next_steps)

    assert "robattr harden" in advice(evaluation("strict", "ig", 0.4))
    assert "robattr harden" not in advice(evaluation("strict", "ig", 0.9))
    assert "retraining" in advice(evaluation("strict", "ig", 0.9))
    assert "strict protocol" in advice(evaluation("paper", "ig", 0.9))
    assert "strict protocol" not in advice(evaluation("strict", "ig", 0.9))
    assert "order of the classes" in advice(evaluation("strict", "ig", 0.9, accuracy=0.2))
    assert "sg holds best" in advice(evaluation("strict", "ig", 0.4), evaluation("strict", "sg", 0.8))
    few = [evaluation("strict", name, topk) for name, topk in (("ig", 0.4), ("sg", 0.8))]
    few[1][0]["columns"]["topk"]["n"] = 6
    assert "holds best" not in advice(*few), "nothing is said with fewer than ten"
    assert r"'second\x1b[0m' is the most fragile" in advice(evaluation("strict", "ig", 0.7)).replace("\\\\", "\\")
    wide = evaluation("strict", "ig", 0.6)
    wide[0]["columns"]["topk"] = column(0.6, 0.1)
    assert "more than 20 examples" in advice(wide)
    nothing = run(evaluation("strict", "ig", None))
    assert verdict(nothing).level == "unclear"
    assert "more examples" in "\n".join(verdict(nothing).next_steps)


def test_a_page_of_an_audits_directory_holds_its_verdict_and_begins_with_what_counts() -> None:
    audited = run(evaluation("paper", "ig", 0.9), evaluation("strict", "ig", 0.4), skipped=["torn.png"])
    html = page([audited])
    for title in ("Verdict", "What to do next", "Attack against random noise", "Class by class"):
        assert f"<h2>{title}</h2>" in html
    assert "torn.png" in html
    assert 'class="headline"' not in html  # the verdict says it
    assert html.index("images · strict protocol") < html.index("images · paper protocol")
    assert html.index("strict · ig") < html.index("paper · ig")
    other = run(evaluation("strict", "ig", 0.9), name="other net")
    both = page([audited, other])
    assert "<h2>Verdict: net</h2>" in both
    assert "<h2>Class by class: other net</h2>" in both
    assert 'class="headline"' in both  # which compares the two
    assert "Verdict" not in page([run(evaluation("strict", "ig", 0.9), method="natural")])


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


def test_audits_as_markdown_have_their_verdict_and_nothing_of_the_paper() -> None:
    told = run(evaluation("strict", "ig", 0.4))
    text = results([told], command="robattr report audit -o audit.md")
    found = verdict(told)
    assert text.startswith("# Audit\n\nRendered by `robattr report audit -o audit.md`")
    assert found.headline.split(":")[0] in text.replace("\\", "")
    assert "## Attack against random noise" in text
    assert "## The bar" not in text
    assert "table 1" not in text
    assert r"second" in text
    assert "\x1b" not in text
