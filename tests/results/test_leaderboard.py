"""The leaderboard on invented records: its rules, order, flags and pages; the committed pages are up to date."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from pathlib import Path
from shutil import which
from typing import Any

import pytest

from fake_runs import fake_results
from results.leaderboard import (
    PAGE,
    RESULTS,
    SORTABLE,
    entries,
    flags,
    headings,
    html,
    main,
    markdown,
    records,
    violations,
)
from robattr.errors import InvalidInput
from robattr.evaluation.protocol import paper, strict
from robattr.reporting.run_results import RunResults, read_runs
from robattr.reporting.training_log import TrainingSummary

CHROMIUM = which("chromium") or which("chromium-browser")


def entry(name: str, topk: float, *, dataset: str = "mnist", gain: float = 0.1, **summary: Any) -> RunResults:
    """A run that obeys the rules."""
    run = fake_results("natural", topk, topk - 0.2, dataset=dataset, protocol="strict", examples=300)
    e = run.evaluations[0]
    gains = {
        f"insertion_over_{c}": {"value": gain, "low": gain - 0.02, "high": gain + 0.02} for c in ("random", "edges")
    }
    made = {
        **e.summary, "dataset": dataset, "split": "test", "never_kept": 0.0, "examples": 300,
        "settings": strict(paper(dataset)).settings(), "columns": {**e.summary["columns"], **gains}, **summary,
    }  # fmt: skip
    trained = {"device": "NVIDIA H200", "processes": 1}
    return replace(
        run, name=name, environment=trained, training=TrainingSummary(seconds=270.0),
        evaluations=(replace(e, summary=made, weights="0123456789abcdef"),),
    )  # fmt: skip


def test_rows_are_sorted_by_dataset_and_top_k() -> None:
    rows = entries([entry("b", 0.5), entry("a", 0.7), entry("c", 0.9, dataset="gtsrb")])
    assert [(row.dataset, row.name) for row in rows] == [("mnist", "a"), ("mnist", "b"), ("gtsrb", "c")]
    shown = dict(zip(headings(), rows[0].cells, strict=True))
    assert shown["GPU minutes"] == ("4.5 (NVIDIA H200)", 4.5)
    assert shown["TopK Inter."] == ("70.00% [69.0, 71.0]", 0.7)
    assert shown["Ins. over constant"] == ("–", None)
    assert rows[0].flags == ()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"protocol": "paper"}, "expected the strict protocol, got 'paper'"),
        ({"map": "sg"}, "expected IG maps, got 'sg'"),
        ({"split": "validation"}, "expected the test split, got 'validation'"),
        ({"examples": 299}, "expected at least 300 examples, got 299"),
        ({"columns": {}}, "expected the faithfulness scores, got none"),
        ({"settings": {**strict(paper("mnist")).settings(), "eps": 0.1}}, r"got others \(eps\)"),
    ],
)
def test_a_record_that_breaks_a_rule_is_refused(change: dict[str, Any], words: str) -> None:
    run = entry("a", 0.7, **change)
    assert len(violations(run, run.evaluations[0])) == 1
    with pytest.raises(InvalidInput, match=words):
        entries([run])


def test_an_earlier_version_is_flagged_and_obeys_the_other_rules() -> None:
    old = {"settings": {**strict(paper("mnist")).settings(), "version": 2}}
    assert entries([entry("a", 0.7, **old)])[0].flags == ("measured by strict v2, a weaker attack than strict v3",)
    with pytest.raises(InvalidInput, match=r"expected at least 300 examples, got 200: --examples 300$"):
        entries([entry("a", 0.7, examples=200, **old)])
    weak = {"settings": {**old["settings"], "attacks": [], "eps": 0.001, "steps": 1}}
    with pytest.raises(InvalidInput, match=r"got others \(eps, steps\): evaluate with this version$"):
        entries([entry("a", 0.7, **weak)])


def test_a_test_split_of_fewer_examples_is_attacked_as_a_whole() -> None:
    """Flower's 136, whose ids are the numbers of its files."""
    run = entry("a", 0.7, dataset="flower")
    (e,) = run.evaluations

    def of(n: int) -> list[str]:
        records = tuple({**e.records[0], "id": 7 * i + 3} for i in range(n))
        return violations(run, replace(e, summary={**e.summary, "examples": n}, records=records))

    assert not of(136)
    assert of(135) == ["expected at least 136 examples, got 135: --examples 136"]


def test_chosen_examples_are_refused() -> None:
    run = entry("a", 0.7)
    (e,) = run.evaluations
    others = tuple({**r, "id": 5 * r["id"] + 2} for r in e.records)
    with pytest.raises(InvalidInput, match=r"expected the first examples of the test split, got others"):
        entries([replace(run, evaluations=(replace(e, records=others),))])


def test_other_data_are_refused() -> None:
    run = entry("a", 0.7)
    (e,) = run.evaluations
    other = replace(run, evaluations=(replace(e, summary={**e.summary, "dataset": "mine"}),))
    with pytest.raises(InvalidInput, match=r"expected a dataset of the board .* got 'mine'"):
        entries([other])


def test_doubts_are_flags() -> None:
    odd = entry("a", 0.7, gain=0.0, alarms=["gradients are masked"], never_kept=0.1)
    said = flags(odd.evaluations[0])
    assert said[0] == "gradients are masked"
    assert "10% of the attacked examples" in said[1]
    assert len(said) == 4
    assert "not shown to order the pixels better than the edges" in said[3]


def test_a_training_that_was_not_on_one_gpu_has_no_gpu_minutes() -> None:
    run = entry("a", 0.7)
    for environment in ({"device": "cpu"}, {}, {"device": "NVIDIA H200", "processes": 4}):
        assert entries([replace(run, environment=environment)])[0].cells[0] == ("–", None)


def test_the_search_counts_and_is_shown() -> None:
    search = {"minutes": 3.0, "jobs": 8, "chosen": {"weight": 0.3}, "tried": [{"weight": w} for w in (0.1, 0.3, 1.0)]}
    run = replace(entry("a", 0.7), search=search)
    shown = dict(zip(headings(), entries([run])[0].cells, strict=True))
    assert shown["GPU minutes"] == ("7.5 (NVIDIA H200, search included, shared by 8)", 7.5)
    assert shown["Searched"] == ("0.3 (weight of 0.1, 0.3, 1)", None)
    (row,) = entries([replace(run, search={"minutes": 3.0})])  # of others, who say the minutes alone
    assert row.cells[:2] == (("7.5 (NVIDIA H200, search included)", 7.5), ("–", None))


def test_pages_show_every_row_and_escape_names() -> None:
    rows = entries([entry("<script>alert(1)</script>|x", 0.7, alarms=["<b>"]), entry("c", 0.6, dataset="gtsrb")])
    text, page = markdown(rows), html(rows)
    assert r"\<script\>alert(1)\</script\>\|x" in text
    assert text.count("\n| ---") == 2
    assert "&lt;script&gt;alert(1)" in page
    assert page.count("<tr data-of=") == 2
    assert page.count('data-flagged="yes"') == 1
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
    scripts = re.findall(r"<script>(.*?)</script>", page, flags=re.S)
    assert policy
    assert len(scripts) == 1
    digest = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy[1]
    assert "default-src 'none'" in policy[1]
    assert not re.search(r'src="|<link[^>]*href="(?!data:)', page), "it loads nothing"
    assert re.findall(r'<a [^>]*href="([^"]*)"', page) == ["#board", "leaderboard.html", "leaderboard_rules.html"]


def test_records_of_an_older_strict_protocol_are_not_on_the_board(capsys: pytest.CaptureFixture[str]) -> None:
    old = sorted(RESULTS.glob("mnist-*-strict-ig.json"))
    assert old
    assert main(["--check", *map(str, old)]) == 1
    assert capsys.readouterr().out.count("expected the settings of strict, got others") == len(old)
    assert not set(old) & set(records())


def test_the_committed_pages_are_up_to_date() -> None:
    rows = entries(read_runs(records()))
    assert {row.dataset for row in rows} >= {"fashion-mnist", "gtsrb"}
    assert PAGE.read_text(encoding="utf-8") == markdown(rows)
    assert SORTABLE.read_text(encoding="utf-8") == html(rows)


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine: apt-get install chromium runs this test")
def test_the_page_sorts_and_filters_in_a_browser(tmp_path: Path) -> None:
    runs = [entry("low", 0.3, alarms=["masked"]), entry("high", 0.7), entry("sign", 0.5, dataset="gtsrb")]
    runs[1] = replace(runs[1], environment={"device": "cpu"})  # no GPU minutes: last in either order
    page = tmp_path / "board.html"
    page.write_text(html(entries(runs)), encoding="utf-8")
    complaints: list[str] = []
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright runs this test")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        tab = browser.new_page()
        tab.on("console", lambda message: complaints.append(message.text))
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.goto(page.as_uri())

        def shown() -> list[str]:
            return tab.locator("#board tbody tr:visible th").all_inner_texts()

        assert shown() == ["high", "low", "sign"]
        by_topk = tab.get_by_role("button", name="TopK Inter.")
        by_topk.click()
        assert shown() == ["high", "sign", "low"]
        by_topk.click()
        assert shown() == ["low", "sign", "high"]
        assert tab.locator("th[aria-sort]").all_inner_texts() == ["TopK Inter."]
        for _ in range(2):
            tab.get_by_role("button", name="GPU minutes").click()
            assert shown()[-1] == "high"
        tab.get_by_label("hide flagged").check()
        assert sorted(shown()) == ["high", "sign"]
        tab.get_by_label("Dataset").select_option("gtsrb")
        assert shown() == ["sign"]
        assert tab.get_by_role("status").inner_text() == "1 of 3 models"
        tab.get_by_label("Model", exact=True).fill("nothing")
        assert shown() == []
        browser.close()
    assert complaints == []
