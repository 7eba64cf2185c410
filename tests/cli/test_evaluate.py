"""`robattr evaluate`, from the outside."""

from __future__ import annotations

import json
import resource
import shutil
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from robattr import data
from robattr.cli import app
from robattr.cli import evaluate as command
from robattr.data import catalog, from_tensors
from robattr.errors import CheckpointError, InvalidInput, UnsupportedModel

pytestmark = pytest.mark.usefixtures("tiny_protocol")


def invoke(*words: object):
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})


def test_evaluate_prints_the_four_columns_and_records(runs) -> None:
    shown = invoke("evaluate", runs[0], "--examples", 10, "--maps", "ig,sg", "--device", "cpu")
    assert shown.exit_code == 0, shown.output
    for word in ("Nat Acc", "Adv Acc", "TopK Inter.", "Rank Corr.", "Never kept", "Tie ceiling", "Ins. over random"):
        assert word in shown.output
    for map in ("ig", "sg"):
        summary = json.loads((runs[0] / "records" / f"paper-{map}.json").read_text())
        assert summary["dataset"] == "fashion-mini"
        assert summary["examples"] == 10
        assert summary["command"].startswith("robattr")
        assert (runs[0] / "records" / f"paper-{map}-gallery.npz").is_file()
        assert f"{summary['columns']['topk']['value']:.2%}" in shown.output


def test_an_edited_summary_is_refused_by_every_command(runs, tmp_path: Path) -> None:
    run = shutil.copytree(runs[0], tmp_path / "run", ignore=shutil.ignore_patterns("records"))
    measured = ("evaluate", run, "--examples", 3, "--device", "cpu")
    assert invoke(*measured).exit_code == 0
    assert invoke("record", run, "-o", tmp_path / "results").exit_code == 0
    summary, records = run / "records" / "paper-ig.json", run / "records" / "paper-ig.jsonl"
    whole, lines = summary.read_text(), records.read_text()
    forged = json.loads(whole)
    for column in forged["columns"].values():
        column["value"] = 0.9999
    summary.write_text(json.dumps(forged))
    others = (("report", run, "-o", tmp_path / "page.html"), ("record", run, "-o", tmp_path), ("compare", run, run))
    for words in (measured, *others):
        assert "does not agree with its records (it was edited)" in str(invoke(*words).exception)
    summary.write_text(whole)
    records.write_text(lines.replace('"iterate": ', '"iterate": 9'))
    for words in (measured, *others):
        assert "the records are not those it was made of" in str(invoke(*words).exception)
    records.write_text("".join(lines.splitlines(keepends=True)[1:]))
    for words in others:
        assert "the records are not those it was made of" in str(invoke(*words).exception)
    assert invoke(*measured).exit_code == 0  # the missing example is evaluated again
    assert records.read_text() == lines
    assert json.loads(summary.read_text())["columns"] == json.loads(whole)["columns"]
    (record,) = (tmp_path / "results").glob("*.json")
    kept = json.loads(record.read_text())
    for forgery, says in (({}, "was edited"), ({"digest": None}, "does not agree with its records .topk is 0.9999")):
        kept["summary"]["columns"]["topk"]["value"] = kept["summary"]["columns"]["topk"]["high"] = 0.9999
        forged = {**kept, **forgery}
        record.write_text(json.dumps({key: value for key, value in forged.items() if value is not None}))
        with pytest.raises(CheckpointError, match=says):
            raise invoke("report", record, "-o", tmp_path / "page.html").exception


def test_other_radii_and_splits_have_names_of_their_own(runs, tmp_path: Path) -> None:
    words = ("--examples", 6, "--maps", "sg", "--device", "cpu", "--out", tmp_path)
    assert invoke("evaluate", runs[0], "--eps", "1/5", *words).exit_code == 0
    assert invoke("evaluate", runs[0], "--split", "validation", *words).exit_code == 0
    assert invoke("evaluate", runs[0], "--iterations", 3, "--transfer", runs[1], *words).exit_code == 0
    names = {"paper@0.2-sg", "paper@validation-sg", "paper@3steps@transfer-sg"}
    assert {p.stem for p in tmp_path.glob("*.jsonl")} == names
    assert json.loads((tmp_path / "paper@3steps@transfer-sg.settings").read_text())["settings"]["source"]


def test_a_transfer_needs_no_data_of_the_other_model(runs, tmp_path: Path) -> None:
    other = shutil.copytree(runs[1], tmp_path / "other", ignore=shutil.ignore_patterns("records"))
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "dataset": "mnist", "model": "small_cnn"}))
    words = ("--transfer", other, "--examples", 4, "--device", "cpu", "--out", tmp_path, "--data-dir", tmp_path)
    assert invoke("evaluate", runs[0], *words).exit_code == 0
    assert json.loads((tmp_path / "paper@transfer-ig.json").read_text())["dataset"] == "fashion-mini"


def test_a_refused_command_discards_and_measures_nothing(runs, tmp_path: Path) -> None:
    words = ("evaluate", runs[0], "--examples", 6, "--device", "cpu", "--out", tmp_path)
    assert invoke(*words, "--maps", "sg").exit_code == 0
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    for wrong in (("--maps", "sg", "--precision", "fp16"), ("--maps", "sg,igg"), ("--maps", "sg,sg")):
        assert isinstance(invoke(*words, "--fresh", *wrong).exception, InvalidInput)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_fresh_discards_earlier_records(runs, tmp_path: Path) -> None:
    words = ("--examples", 6, "--maps", "sg", "--device", "cpu", "--out", tmp_path)
    assert invoke("evaluate", runs[0], *words).exit_code == 0
    other = invoke("evaluate", runs[1], *words)
    assert isinstance(other.exception, CheckpointError)
    assert invoke("evaluate", runs[1], "--fresh", *words).exit_code == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--protocol", "papr"), "did you mean 'paper'"),
        (("--maps", "igg"), "did you mean 'ig'"),
        (("--maps", "sg,captum:Saliency"), "got 'captum:Saliency': `robattr audit` takes Captum's methods"),
        (("--split", "train"), "test or validation"),
        (("--eps", "-1"), "above 0"),
        (("--eps", "8"), "0 to 1, in its units, got 8: 8/255?"),
        (("--eps", "8/0"), "such as 0.03 or 8/255"),
    ],
)
def test_mistakes_are_explained(runs, words, says: str) -> None:
    refused = invoke("evaluate", runs[0], "--examples", 4, "--device", "cpu", *words)
    assert isinstance(refused.exception, InvalidInput)
    assert says in str(refused.exception)


def test_images_of_other_channels_are_refused(runs, monkeypatch) -> None:
    images = from_tensors(torch.rand(12, 3, 32, 32), torch.arange(12) % 3, test=0.5, name="gtsrb")
    monkeypatch.setitem(catalog.DATASETS, "gtsrb", replace(data.info("gtsrb"), read=lambda folder: images))
    refused = invoke("evaluate", runs[0], "--data", "gtsrb", "--device", "cpu")
    assert isinstance(refused.exception, UnsupportedModel)
    assert "examples of shape (3, 32, 32)" in str(refused.exception)
    assert "give them the size and channels it was made for" in str(refused.exception)


def test_a_model_file_needs_its_dataset(runs, tmp_path: Path) -> None:
    file = runs[0] / "model.safetensors"
    assert "--data" in str(invoke("evaluate", file).exception)
    words = ("--data", "fashion-mini", "--examples", 4, "--maps", "sg", "--device", "cpu", "--out", tmp_path)
    assert invoke("evaluate", file, *words).exit_code == 0
    assert (tmp_path / "paper-sg.json").is_file()


def test_a_run_that_trained_on_the_validation_images_has_none(runs, tmp_path: Path) -> None:
    run = tmp_path / "full"
    shutil.copytree(runs[0], run)
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, "full": True}))
    refused = invoke("evaluate", run, "--split", "validation", "--device", "cpu").exception
    assert "has no validation images (with full=true it trains on them): use another --split" in str(refused)


def test_files_of_one_name_in_two_folders_keep_their_records_apart(runs, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("--data", "fashion-mini", "--examples", 4, "--maps", "sg", "--device", "cpu")
    for run, folder in zip(runs, ("mnist", "fashion-mnist"), strict=True):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "ig-norm.safetensors").write_bytes((run / "model.safetensors").read_bytes())
        assert invoke("evaluate", f"{folder}/ig-norm.safetensors", *words).exit_code == 0
        assert (tmp_path / "runs" / folder / "ig-norm" / "records" / "paper-sg.json").is_file()
    shown = invoke("report", "runs/mnist/ig-norm", "runs/fashion-mnist/ig-norm", "--out", tmp_path / "page.html")
    assert shown.exit_code == 0
    assert command._records(tmp_path / "mnist") == tmp_path / "mnist" / "records"
    for outside in (tmp_path / "deep" / "net.safetensors", Path("../net.safetensors")):  # never written beside it
        assert command._records(outside) == Path("runs/net/records")


def test_an_evaluation_says_what_it_continues(runs, tmp_path: Path) -> None:
    words = ("evaluate", runs[0], "--maps", "sg", "--device", "cpu", "--out", tmp_path, "--examples")
    assert "6 of 6 examples, in" in invoke(*words, 6).stderr
    assert "paper sg: continuing after 6 of 9 examples (--fresh begins anew)" in invoke(*words, 9).stderr
    assert "paper sg: all 9 examples were done before (--fresh begins anew)" in invoke(*words, 9).stderr


def test_a_run_behind_its_own_preprocessing_is_refused(runs, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((runs[0] / "config.json").read_text())
    (tmp_path / "preprocessing.json").write_text('{"mean": [0.5], "std": [0.5]}')
    refused = invoke("evaluate", tmp_path).exception
    assert isinstance(refused, InvalidInput)
    assert "need their own preprocessing.json: use robattr audit" in str(refused)


def test_narrow_terminals_cut_no_number(runs) -> None:
    for run in runs:
        words = ["evaluate", str(run), "--examples", "10", "--device", "cpu"]
        assert "…" not in CliRunner().invoke(app, words, env={"COLUMNS": "40"}).output
    shown = CliRunner().invoke(app, ["compare", *map(str, runs)], env={"COLUMNS": "30"})
    assert shown.exit_code == 0
    assert "…" not in shown.output


@contextmanager
def files_up_to(size: int):
    """A limit that the system sets: the write that exceeds it fails, as on a full disk, after writing a part."""
    was = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, was[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, was)


@pytest.mark.parametrize(("file", "share"), [("paper-ig-gallery.npz", 0.5), ("paper-ig.jsonl", 0.2)])
def test_an_evaluation_without_room_leaves_no_temporary_file_and_continues(runs, tmp_path, file, share) -> None:
    words = ("evaluate", runs[0], "--examples", 6, "--device", "cpu", "--out")
    whole, short = tmp_path / "whole", tmp_path / "short"
    assert invoke(*words, whole).exit_code == 0
    with files_up_to(int(share * (whole / file).stat().st_size)):
        refused = invoke(*words, short)
    assert isinstance(refused.exception, CheckpointError)
    assert "could not write" in str(refused.exception)
    assert "File too large" in str(refused.exception)
    assert not list(short.glob(".*.tmp"))
    assert not (short / file).exists()
    assert invoke(*words, short).exit_code == 0
    assert (short / "paper-ig.jsonl").read_bytes() == (whole / "paper-ig.jsonl").read_bytes()
