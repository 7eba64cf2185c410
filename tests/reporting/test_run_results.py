"""Reading runs from directories and records, their names and their groups."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fake_runs import change, write_run
from robattr.errors import CheckpointError
from robattr.reporting import tables
from robattr.reporting.explorer import explorer
from robattr.reporting.export import write_records
from robattr.reporting.figures import map_grid
from robattr.reporting.findings import finding
from robattr.reporting.record import sealed, text
from robattr.reporting.run_results import group_evaluations, read_run, read_runs

NAME = "fashion-mini-{}-seed0-paper-ig.json"


def test_a_run_given_twice_is_read_once(runs: list[Path]) -> None:
    assert [run.name for run in read_runs([runs[0], runs[1], runs[0]])] == ["NATURAL", "Madry et al."]


def test_images_of_another_size_or_at_the_same_id_are_kept_apart(tmp_path: Path) -> None:
    small, large, other = (write_run(tmp_path / name, "natural") for name in ("small", "large", "other"))
    gallery = "records/paper-ig-gallery.npz"
    summary = json.loads((large / "records" / "paper-ig.json").read_text())
    settings = {**summary["settings"], "k": 150, "eval_k": 150}
    (large / "records" / "paper-ig.json").write_text(json.dumps({**summary, "settings": settings}))
    arrays = dict(np.load(other / gallery))
    np.savez_compressed(other / gallery, **{**arrays, "image": 255 - arrays["image"]})
    found = group_evaluations(read_runs([small, large, other]))
    assert [(g.k, len(g.members), g.title.split(" · ")[-1]) for g in found] == [
        (100, 2, "k = 100"),
        (150, 1, "k = 150"),
    ]
    assert len({g.key for g in found}) == 2
    shown, alone = explorer(found)
    assert len(shown["examples"]) == 2 * len(alone["examples"])  # no image stands for another
    assert all(sum(model is not None for model in example["models"]) == 1 for example in shown["examples"])
    assert map_grid(found[0]) is None
    assert map_grid(found[1]) is not None


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
    with pytest.raises(CheckpointError, match=r"neither a run directory.*folder of records.*robattr train"):
        read_run(tmp_path)


def test_a_run_without_evaluation_is_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path, "natural", gallery=False)
    for file in (run / "records").iterdir():
        file.unlink()
    with pytest.raises(CheckpointError, match="robattr evaluate"):
        group_evaluations([read_run(run)])


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


@pytest.mark.parametrize("method", ["ig-norm", "igr", "custom"])
def test_of_several_m_of_a_method_one_is_kept_beside_others(tmp_path: Path, method: str) -> None:
    paths = [write_run(tmp_path / f"{method}{m}", method, gallery=False) for m in (3, 5, 9)]
    for path, m in zip(paths, (3, 5, 9), strict=True):
        change(path / "config.json", m=m, steps=1000 if m == 5 else 100, recipe="fashion-mini/my-rho")
    other = write_run(tmp_path / "other", "natural", gallery=False)
    again = write_run(tmp_path / "again", "natural", gallery=False)
    change(again / "config.json", m=77)  # without effect: NATURAL integrates nothing
    (group,) = group_evaluations(read_runs([*paths, other, again]))
    varying = [run for run, _ in group.members if run.m is not None]
    assert [run.m for run in varying] == [3, 5, 9]
    assert all(group.varies_m(run) == (run in varying) for run, _ in group.members)
    assert sorted(run.path for run, _ in group.with_one_m().members) == sorted([paths[1], other, again])
