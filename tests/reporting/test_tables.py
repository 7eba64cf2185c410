"""Tables show the values of the summaries in every format, with the paper's."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from fake_runs import METHODS, rescore, write_run
from robattr.cli._tables import show_table
from robattr.metrics.columns import COLUMN, PAPERS
from robattr.reporting import tables
from robattr.reporting.findings import finding
from robattr.reporting.groups import group_evaluations
from robattr.reporting.run_results import read_runs


def _table(paths: list[Path]) -> tables.Table:
    return tables.table(group_evaluations(read_runs(paths)))


def test_rows_have_the_papers_order_and_names(runs: list[Path]) -> None:
    assert [row.approach for row in _table(runs[::-1]).rows] == ["NATURAL", "Madry et al.", "IG-NORM", "IG-SUM-NORM"]


def test_csv_has_the_summaries_values_exactly(runs: list[Path]) -> None:
    rows = list(csv.DictReader(io.StringIO(tables.csv(_table(runs)))))
    for row, run in zip(rows, runs, strict=True):
        summary = json.loads((run / "records" / "paper-ig.json").read_text())
        for column in (c.key for c in PAPERS):
            cell = summary["columns"][column]
            assert float(row[column]) == cell["value"]
            assert float(row[f"{column}_low"]) == cell["low"]
            assert float(row[f"{column}_high"]) == cell["high"]
        assert float(row["never_kept"]) == summary["never_kept"]


def test_markdown_marks_the_best_and_shows_intervals(runs: list[Path]) -> None:
    lines = tables.markdown(_table(runs)).splitlines()
    best = next(line for line in lines if "IG-SUM-NORM" in line)
    cell = json.loads((runs[-1] / "records" / "paper-ig.json").read_text())["columns"]["topk"]
    assert f"**{100 * cell['value']:.2f}%** [{100 * cell['low']:.1f}, {100 * cell['high']:.1f}]" in best
    assert all("**" not in line for line in lines if "NATURAL" in line)
    assert len({line.count("|") for line in lines[:6]}) == 1


def test_the_caption_says_what_bold_means_where_something_is(runs: list[Path]) -> None:
    assert tables.BOLD in _table(runs).caption
    alone = _table(runs[:1])
    assert not alone.has_best
    assert tables.BOLD not in alone.caption


def test_rows_of_different_counts_say_so_and_none_is_the_best(tmp_path: Path) -> None:
    runs = [write_run(tmp_path, method, gallery=False) for method in METHODS]
    rescore(runs[0], examples=50)
    made = _table(runs)
    assert [row.label for row in made.rows[:2]] == ["NATURAL, 50 examples", "Madry et al., 120 examples"]
    assert not any(cell.best for row in made.rows for cell in row.cells)
    (found,) = map(finding, group_evaluations(read_runs(runs)))
    assert "The two models were measured on 50 and 120 examples" in " ".join(found.cautions)


def test_rows_name_their_protocol_and_map_where_they_differ(tmp_path: Path) -> None:
    run = write_run(tmp_path, "natural", gallery=False)
    for file in list((run / "records").iterdir()):
        summary = json.loads(file.read_text()) if file.suffix == ".json" else None
        text = json.dumps({**summary, "protocol": "strict", "map": "sg"}) if summary else file.read_text()
        file.with_name(file.name.replace("paper-ig", "strict-sg")).write_text(text)
    made = _table([run])
    kinds = ["ig maps, paper protocol", "sg maps, strict protocol"]
    for text in (tables.markdown(made), tables.latex(made)):
        assert all(text.count(f"fashion-mini, {kind}") == 1 for kind in kinds)
    rows = list(csv.DictReader(io.StringIO(tables.csv(made))))
    assert [(row["dataset"], row["protocol"], row["map"]) for row in rows] == [
        ("fashion-mini", "paper", "ig"),
        ("fashion-mini", "strict", "sg"),
    ]


def test_latex_rows_have_one_cell_per_column_and_are_escaped(runs: list[Path]) -> None:
    made = _table(runs)
    rows = [line for line in tables.latex(made).splitlines() if line.endswith(r"\\")]
    assert {row.count(" & ") for row in rows} == {1 + len(made.columns)}
    assert tables._escape_latex(r"50% & a_b\c{}") == r"50\% \& a\_b\textbackslash{}c\{\}"
    assert tables.escape_markdown("a|b*<i>") == r"a\|b\*\<i\>"


@pytest.mark.parametrize("width", [30, 40, 50, 60, 80, 200])
def test_no_number_is_lost_on_a_terminal_of_any_width(
    tmp_path: Path, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [write_run(tmp_path / name, "ig-norm", dataset=name, gallery=False) for name in ("mnist", "fashion-mnist")]
    monkeypatch.setenv("COLUMNS", str(width))
    show_table(*tables.plain(_table(paths)))
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= width
    for path, printed in zip(paths, ("98.74% 81.43% 71.36% 0.2841", "85.13% 65.95% 59.22% 0.6171"), strict=True):
        columns = json.loads((path / "records" / "paper-ig.json").read_text())["columns"]
        for name, cell in ((column.key, columns[column.key]) for column in PAPERS):
            ends = cell["low"], cell["high"]
            low, high = (f"{end:.3f}" if name == "kendall" else f"{100 * end:.1f}" for end in ends)
            assert f"{low}–{high}" in shown
            assert (f"{cell['value']:.4f}" if name == "kendall" else f"{100 * cell['value']:.2f}%") in shown
        assert all(number in shown for number in printed.split())


def test_the_papers_numbers_appear_under_its_own_protocol_only(tmp_path: Path) -> None:
    run = write_run(tmp_path, "natural", dataset="mnist", gallery=False)
    cells = _table([run]).rows[0].cells
    assert [cell.paper for cell in cells] == [0.9917, 0.0, 0.4661, 0.1758, None]
    assert "NeurIPS 2019" in _table([run]).caption
    path = run / "records" / "paper-ig.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "protocol": "strict"}))
    assert all(cell.paper is None for cell in _table([run]).rows[0].cells)


def test_a_cell_shows_its_interval_where_there_is_one() -> None:
    topk, kendall = COLUMN["topk"], COLUMN["kendall"]
    assert str(tables.cell_of(topk, {"value": 0.5, "low": 0.4, "high": 0.61})) == "50.00% [40.0, 61.0]"
    assert str(tables.cell_of(kendall, {"value": 0.5, "low": None, "high": float("nan")})) == "0.5000"
    assert str(tables.cell_of(topk, {"value": None})) == "–"
