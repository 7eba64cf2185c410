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
    assert 'class="headline"' not in html  # the verdict says it
    assert html.index("images · strict protocol") < html.index("images · paper protocol")
    assert html.count("Noise TopK</th>") == 2  # once beside the scores of each protocol
    other = run(evaluation("strict", "ig", 0.9), name="other net")
    both = page([audited, other])
    assert "<h2>Verdict: net</h2>" in both
    assert "<h2>Class by class: other net</h2>" in both
    assert 'class="headline"' in both  # which compares the two
    assert "Verdict" not in page([run(evaluation("strict", "ig", 0.9), method="natural")])


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
