"""The sections of a page about an audited model."""

from __future__ import annotations

from audit_runs import evaluation, run
from robattr.reporting.audit_sections import classes, closing, opening
from robattr.reporting.html import page


def test_a_page_of_an_audit_has_its_verdict_and_the_strictest_evaluation_first(undrawn) -> None:
    audited = run(evaluation("paper", "ig", 0.9), evaluation("strict", "ig", 0.4), skipped=["torn.png"])
    html = page([audited])
    for title in ("Verdict", "What to do next", "Class by class"):
        assert f"<h2>{title}</h2>" in html
    assert "torn.png" in html
    assert html.count('class="headline"') == 1  # the verdict, before everything else
    assert html.index('class="headline">The explanations') < html.index("An attribution map shows")
    assert html.index("images · strict protocol") < html.index("images · paper protocol")
    assert html.count("Noise TopK</th>") == 2  # once beside the scores of each protocol
    other = run(evaluation("strict", "ig", 0.9), name="other net")
    both = page([audited, other])
    assert "<h2>Verdict: net</h2>" in both
    assert "<h2>Class by class: other net</h2>" in both
    lead = both.index('class="headline"')  # which compares the two
    assert both.index("An attribution map shows") < lead < both.index("<h2>Verdict: net</h2>")
    assert "Verdict" not in page([run(evaluation("strict", "ig", 0.9), method="natural")])


def test_the_curve_over_iterations_is_of_all_attacks_where_the_table_is(undrawn) -> None:
    curve = {"score_vs_iterations": {"iterations": [1, 2], "topk": [0.5, 0.4], "kendall": [0.5, 0.4]}}
    pages = {name: page([run(evaluation(name, "ig", 0.4, curves=curve))]) for name in ("paper", "strict")}
    assert [name for name, html in pages.items() if "lowest scores of all attacks" in html] == ["strict"]
    assert [name for name, html in pages.items() if "scores of one iterate" in html] == ["paper"]


def test_sections_have_every_class_note_and_skipped_file() -> None:
    audited = run(evaluation("paper", "ig", 0.7), notes=["converted"], skipped=["a/b.png", "c\x07.png"])
    assert [section.title for section in opening(audited)] == ["Verdict", "What to do next"]
    doubted = opening(run(evaluation("strict", "ig", 0.9, alarms=["gradients are masked"])))
    assert doubted[0].points == ("Doubt: gradients are masked.",)
    titles = {section.title: section for section in closing(audited)}
    assert titles["What was done to the model"].points == ("converted",)
    assert titles["Files that were skipped"].points == ("a/b.png", "c\\x07.png")
    rows = classes(audited).rows
    assert [row[0] for row in rows] == ["second\\x1b[0m", "first"]  # the most fragile first
    assert rows[0][1:4] == ("10", "100.00% [72.2, 100.0]", "50.00% [50.0, 50.0]")
