"""The results page: every section on invented numbers, and the committed page from the committed records."""

from __future__ import annotations

import re
from dataclasses import replace

from fake_runs import fake_results
from results.render import PAGE, RESULTS, page, rendered
from robattr.reporting.training_log import TrainingSummary

NATURAL = fake_results("natural", 0.46, 0.18)


def section(text: str, title: str) -> str:
    found = re.search(rf"^## {re.escape(title)}.*?(?=^## |\Z)", text, flags=re.S | re.M)
    assert found, title
    return found.group()


def test_every_section() -> None:
    end = TrainingSummary(lines=7, loss=0.05, penalty=0.4, ig=0.25, val_accuracy=0.99)
    regularised = replace(fake_results("ig-norm", 0.7, 0.3, m=10, weight=1.0), training=end)
    stronger = replace(
        NATURAL, evaluations=(*fake_results("natural", 0.3, 0.1, protocol="strict").evaluations, *NATURAL.evaluations)
    )
    stronger.evaluations[0].summary["alarms"] = ["noise beats the attack"]  # type: ignore[index]
    sg = fake_results("madry", 0.48, 0.25, map_name="sg")
    text = page([stronger, sg, regularised], notes="# Mine\n*x*")
    assert "### gtsrb\n\nNot measured yet." in section(text, "Acceptance criteria")
    first = section(text, "Integrated gradients")
    assert "46.00% [45.0, 47.0]<br>paper 46.61%" in first
    assert "| 25.00% |" in first
    assert "paper 71.36%" in first  # IG-NORM beside table 1, not beside ten right ends
    assert "paper 47.95%" in section(text, "Simple gradient")
    assert "Not measured yet." in section(text, "IG-NORM on MNIST over m")
    rows = [line for line in section(text, "Stronger attacks").splitlines() if line.startswith("| mnist")]
    assert ["paper" in rows[0], "strict" in rows[1], len(rows)] == [True, True, 2]
    assert "| 90.00% [89.0, 91.0] | 0.8000 [0.790, 0.810] | 250 of 1,000 |" in rows[1]
    assert "- mnist · strict protocol · ig maps, NATURAL: noise beats the attack" in section(text, "Stronger attacks")
    assert "| mnist | IG-NORM | 1 | 0.05 | 0.25 | 5 | 99.00% | 7 |" in section(text, "How effective")
    assert "\n# Mine\n*x*\n" in section(text, "What was tried") + text


def test_the_table_over_m_has_the_papers_values() -> None:
    runs = [replace(fake_results("ig-norm", 0.6, 0.2, m=m), name=f"IG-NORM, m = {m}") for m in (10, 20)]
    text = page([*runs, fake_results("ig-sum-norm", 0.7, 0.3, m=20)])
    over = section(text, "IG-NORM on MNIST over m")
    assert "paper 67.14%" in over
    assert "paper 70.78%" in over
    first = section(text, "Integrated gradients")
    assert "m = 10" not in first
    assert "paper 71.36%" in first


def test_of_several_m_the_one_measured_on_most_examples_is_a_row() -> None:
    sweep = [replace(fake_results("ig-norm", 0.6, 0.2, m=m, examples=200), name=f"IG-NORM, m = {m}") for m in (10, 50)]
    row = replace(fake_results("ig-norm", 0.7, 0.3, m=5), name="IG-NORM, m = 5")
    text = page([*sweep, row, fake_results("ig-sum-norm", 0.7, 0.3, m=3)])
    first = section(text, "Integrated gradients")
    assert "m = 5 |" in first
    assert "m = 10" not in first
    assert "m = 50" not in first
    assert "mnist 1,000." in first
    over = section(text, "IG-NORM on MNIST over m")
    assert all(f"m = {m}, {count} examples |" in over for m, count in ((5, "1,000"), (10, "200"), (50, "200")))


def test_of_several_m_with_as_many_examples_the_longest_training_is_a_row() -> None:
    runs = [replace(fake_results("ig-norm", 0.6, 0.2, m=m, steps=600), name=f"IG-NORM, m = {m}") for m in (10, 50)]
    row = replace(fake_results("ig-norm", 0.7, 0.3, m=5, steps=2000), name="IG-NORM, m = 5")
    first = section(page([*runs, row]), "Integrated gradients")
    assert "m = 5 |" in first
    assert "m = 50" not in first


def test_the_seconds_of_a_resumed_evaluation_name_their_examples() -> None:
    run = fake_results("natural", 0.5, 0.2)
    summary = {**run.evaluations[0].summary, "seconds": 12.0, "earlier": 480}
    later = replace(run, evaluations=(replace(run.evaluations[0], summary=summary),))
    assert "12 s for the last 520 |" in section(page([later]), "Provenance")


def test_one_run_is_enough_for_a_page() -> None:
    text = page([NATURAL])
    assert "no record of IG-SUM-NORM" in section(text, "Acceptance criteria")
    assert text.count("Not measured yet.") == 7


def test_the_committed_page_is_up_to_date_and_its_links_exist() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == rendered(), "make results"
    links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    assert len(links) > len(list(RESULTS.glob("*.json")))
    assert [link for link in links if not (PAGE.parent / link.partition("#")[0]).is_file()] == []
