"""Tables say what the summaries say, in three languages, and quote the paper correctly."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from fake_runs import METHODS, write_run
from robattr.errors import CheckpointError
from robattr.reporting import tables
from robattr.reporting.export import write_records
from robattr.reporting.findings import finding
from robattr.reporting.published import DIFFERENT_M, INTEGRATED_GRADIENTS, SIMPLE_GRADIENT, published
from robattr.reporting.runs import groups, measured, read_run, read_runs
from robattr.reporting.terminal import rich_table


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    return [write_run(tmp_path, method, gallery=False) for method in METHODS]


def _table(paths: list[Path]) -> tables.Table:
    return tables.table(groups(read_runs(paths)))


def test_runs_come_in_the_papers_order_with_its_names(runs: list[Path]) -> None:
    assert [row.approach for row in _table(runs[::-1]).rows] == ["NATURAL", "Madry et al.", "IG-NORM", "IG-SUM-NORM"]


def test_csv_holds_the_summaries_values_exactly(runs: list[Path]) -> None:
    rows = list(csv.DictReader(io.StringIO(tables.csv(_table(runs)))))
    for row, run in zip(rows, runs, strict=True):
        summary = json.loads((run / "records" / "paper-ig.json").read_text())
        for column, cell in summary["columns"].items():
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


def test_rows_of_other_examples_say_so_and_none_is_the_best(runs: list[Path]) -> None:
    path = runs[0] / "records" / "paper-ig.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "examples": 50}))
    made = _table(runs)
    assert [row.label for row in made.rows[:2]] == ["NATURAL, 50 examples", "Madry et al., 120 examples"]
    assert not any(cell.best for row in made.rows for cell in row.cells)
    (found,) = map(finding, measured(read_runs(runs)))
    assert "The two models were measured on 50 and 120 examples" in " ".join(found.cautions)


def test_rows_of_several_kinds_of_measurement_are_told_apart(tmp_path: Path) -> None:
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
def test_no_number_is_lost_on_a_terminal_of_any_width(tmp_path: Path, width: int) -> None:
    paths = [write_run(tmp_path / name, "ig-norm", dataset=name, gallery=False) for name in ("mnist", "fashion-mnist")]
    out = io.StringIO()
    console = Console(file=out, width=width)
    console.print(rich_table(_table(paths), console))
    shown = out.getvalue()
    assert max(map(len, shown.splitlines())) <= width
    for path, printed in zip(paths, ("98.74% 81.43% 71.36% 0.2841", "85.13% 65.95% 59.22% 0.6171"), strict=True):
        columns = json.loads((path / "records" / "paper-ig.json").read_text())["columns"]
        for name, cell in columns.items():
            ends = cell["low"], cell["high"]
            low, high = (f"{end:.3f}" if name == "kendall" else f"{100 * end:.1f}" for end in ends)
            assert f"{low}–{high}" in shown
            assert (f"{cell['value']:.4f}" if name == "kendall" else f"{100 * cell['value']:.2f}%") in shown
        assert all(number in shown for number in printed.split())


def test_the_papers_numbers_stand_beside_its_own_protocol_only(tmp_path: Path) -> None:
    run = write_run(tmp_path, "natural", dataset="mnist", gallery=False)
    cells = _table([run]).rows[0].cells
    assert [cell.paper for cell in cells] == [0.9917, 0.0, 0.4661, 0.1758, None]
    assert "NeurIPS 2019" in _table([run]).caption
    path = run / "records" / "paper-ig.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "protocol": "strict"}))
    assert all(cell.paper is None for cell in _table([run]).rows[0].cells)


def test_the_published_tables_are_complete() -> None:
    assert len(INTEGRATED_GRADIENTS) == 16
    assert len(SIMPLE_GRADIENT) == 12
    assert sorted(DIFFERENT_M) == list(range(10, 101, 10))
    # The same models were measured in tables 1 and 3: their accuracies must agree.
    for key, row in SIMPLE_GRADIENT.items():
        assert (row.nat_acc, row.adv_acc) == (INTEGRATED_GRADIENTS[key].nat_acc, INTEGRATED_GRADIENTS[key].adv_acc)
    assert published("mnist", "ig-norm", m=50) is DIFFERENT_M[50]
    assert DIFFERENT_M[50].topk == INTEGRATED_GRADIENTS["mnist", "ig-norm"].topk
    assert published("fashion-mini", "natural") is None
    assert published("mnist", "natural", map_name="smoothgrad") is None


def test_two_runs_of_one_method_are_told_apart(tmp_path: Path) -> None:
    paths = [write_run(tmp_path / seed, "natural", gallery=False).rename(tmp_path / f"s{seed}") for seed in "12"]
    assert [run.name for run in read_runs(paths)] == ["NATURAL (s1)", "NATURAL (s2)"]
    for path, m in zip(paths, (100, 20), strict=True):
        config = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps({**config, "m": m}))
    assert [run.name for run in read_runs(paths)] == ["NATURAL, m = 20", "NATURAL, m = 100"]
    config = json.loads((paths[0] / "config.json").read_text())
    (paths[0] / "config.json").write_text(json.dumps({**config, "seed": 7}))  # what else differs is said as well
    assert [run.name for run in read_runs(paths)] == ["NATURAL, m = 20, seed = 0", "NATURAL, m = 100, seed = 7"]


def test_a_folder_that_is_no_run_is_refused_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"neither a run directory.*folder of records.*robattr train"):
        read_run(tmp_path)


def test_a_run_without_evaluation_is_refused_with_a_remedy(tmp_path: Path) -> None:
    run = write_run(tmp_path, "natural", gallery=False)
    for file in (run / "records").iterdir():
        file.unlink()
    with pytest.raises(CheckpointError, match="robattr evaluate"):
        measured([read_run(run)])


def test_what_is_no_number_is_read_as_missing(tmp_path: Path) -> None:
    run = write_run(tmp_path, "natural", gallery=False)
    path, log = run / "records" / "paper-ig.json", run / "metrics.jsonl"
    summary = json.loads(path.read_text())
    summary["columns"]["topk"] = {"value": float("nan"), "low": float("-inf"), "high": float("inf"), "n": 0}
    path.write_text(json.dumps(summary))
    log.write_text(log.read_text() + '{"step": 310, "loss": NaN, "penalty": NaN}\n')
    runs = read_runs([run])
    cell = tables.table(groups(runs)).rows[0].cells[2]
    assert (cell.value, cell.low, cell.high) == (None, None, None)
    assert "no example was scored" in finding(measured(runs)[0]).headline
    (written, _), *_ = write_records(runs, tmp_path / "records")
    assert json.loads(written.read_text())["training"]["loss"] == read_run(run).training.loss
    assert len(read_run(run).metrics) == len(log.read_text().splitlines())


def test_a_torn_training_log_is_read_but_a_torn_record_is_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path, "natural", gallery=False)
    log = run / "metrics.jsonl"
    whole = len(read_run(run).metrics)
    log.write_text(log.read_text() + '{"step": 31')
    assert len(read_run(run).metrics) == whole
    records = run / "records" / "paper-ig.jsonl"
    records.write_text(records.read_text() + '{"id": 12')
    with pytest.raises(CheckpointError, match="line 121"):
        read_run(run)
