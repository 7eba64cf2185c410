"""Reading runs from directories and records, their names and their groups."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fake_runs import change, write_run
from robattr.errors import CheckpointError
from robattr.reporting import tables
from robattr.reporting.export import write_records
from robattr.reporting.findings import finding
from robattr.reporting.groups import group_evaluations
from robattr.reporting.record import sealed, text
from robattr.reporting.run_results import read_run, read_runs

NAME = "fashion-mini-{}-seed0-paper-ig.json"


def test_a_run_given_twice_is_read_once(runs: list[Path]) -> None:
    assert [run.name for run in read_runs([runs[0], runs[1], runs[0]])] == ["NATURAL", "Madry et al."]


def test_records_of_one_model_are_one_run(tmp_path: Path) -> None:
    run = write_run(tmp_path, "natural")
    for suffix in (".json", ".jsonl"):
        source = run / "records" / f"paper-ig{suffix}"
        (run / "records" / f"strict-ig{suffix}").write_text(source.read_text())
    change(run / "records" / "strict-ig.json", protocol="strict")
    write_records(read_runs([run]), tmp_path / "results")
    (read,) = read_runs([tmp_path / "results"])
    assert [e.summary["protocol"] for e in read.evaluations] == ["paper", "strict"]
    assert [e.gallery is None for e in read.evaluations] == [False, True]
    other = tmp_path / "results" / NAME.format("natural").replace("paper", "strict")
    other.write_text(text(sealed({**json.loads(other.read_text()), "environment": {}})))
    with pytest.raises(CheckpointError, match="come from different trainings"):
        read_runs([tmp_path / "results"])


def test_galleries_among_the_paths_are_ignored(records: Path) -> None:
    everything = sorted(records.iterdir())
    assert any(path.suffix == ".npz" for path in everything)
    assert read_runs(everything) == read_runs([records])
    with pytest.raises(CheckpointError, match="no run was given"):
        read_runs([path for path in everything if path.suffix == ".npz"])


def test_two_runs_of_one_method_get_different_names(tmp_path: Path) -> None:
    paths = [write_run(tmp_path / seed, "natural", gallery=False).rename(tmp_path / f"s{seed}") for seed in "12"]
    assert [run.name for run in read_runs(paths)] == ["NATURAL (s1)", "NATURAL (s2)"]
    for path, m in zip(paths, (100, 20), strict=True):
        config = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps({**config, "m": m}))
    assert [run.name for run in read_runs(paths)] == ["NATURAL, m = 20", "NATURAL, m = 100"]
    config = json.loads((paths[0] / "config.json").read_text())
    (paths[0] / "config.json").write_text(json.dumps({**config, "seed": 7}))  # what else differs is said as well
    assert [run.name for run in read_runs(paths)] == ["NATURAL, m = 20, seed = 0", "NATURAL, m = 100, seed = 7"]


def test_a_folder_that_is_not_a_run_is_refused(tmp_path: Path) -> None:
    says = r"neither a run directory \({}\) nor a folder of records: .robattr train"
    with pytest.raises(CheckpointError, match=says.format("it has no config.json")):
        read_run(tmp_path)
    with pytest.raises(CheckpointError, match=says.format("it does not exist")):
        read_run(tmp_path / "nothing")
    run = write_run(tmp_path, "natural", gallery=False)
    with pytest.raises(CheckpointError, match=f"nor a folder of records: give its runs, such as {run}$"):
        read_run(tmp_path)


def test_nan_is_read_as_missing(tmp_path: Path) -> None:
    run = write_run(tmp_path, "natural", gallery=False)
    path, log = run / "records" / "paper-ig.json", run / "metrics.jsonl"
    summary = json.loads(path.read_text())
    summary["columns"]["topk"] = {"value": float("nan"), "low": float("-inf"), "high": float("inf"), "n": 0}
    path.write_text(json.dumps(summary))
    lines = map(json.loads, path.with_suffix(".jsonl").read_text().splitlines())
    path.with_suffix(".jsonl").write_text("".join(json.dumps({**row, "topk": None}) + "\n" for row in lines))
    log.write_text(log.read_text() + '{"step": 310, "loss": NaN, "penalty": NaN}\n')
    runs = read_runs([run])
    cell = tables.table(group_evaluations(runs)).rows[0].cells[2]
    assert (cell.value, cell.low, cell.high) == (None, None, None)
    assert "no example was scored" in finding(group_evaluations(runs)[0]).headline
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
    records.write_text(records.read_text()[:-9])
    with pytest.raises(CheckpointError, match="examples is 120, the records give 119"):
        read_run(run)
