"""`robattr compare`, from the outside."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from robattr.cli import app
from robattr.errors import CheckpointError, InvalidInput

pytestmark = pytest.mark.usefixtures("tiny_protocol")


def invoke(*words: object):
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})


def test_compare_pairs_two_runs(runs, tmp_path: Path) -> None:
    for run in runs:
        assert invoke("evaluate", run, "--examples", 10, "--device", "cpu").exit_code == 0
    shown = invoke("compare", *runs)
    assert shown.exit_code == 0, shown.output
    assert "Rank Corr." in shown.output
    assert "points" in shown.output
    assert "Mass center shift (lower is better)" in shown.output
    assert "Higher is better where nothing else is said" in shown.output
    longer = shutil.copytree(runs[1], tmp_path / "longer")
    assert invoke("evaluate", longer, "--examples", 12, "--device", "cpu").exit_code == 0
    assert "Only one of the two has 2 of the examples" in invoke("compare", runs[0], longer).output
    record = runs[1] / "records" / "paper-ig.json"
    refused = invoke("compare", runs[0], record).exception
    assert isinstance(refused, InvalidInput)
    assert f"got the file {record}: give the run" in str(refused)
    note = runs[1] / "records" / "paper-ig.settings"
    whole = note.read_text()
    note.write_text(whole.replace('"eps": 0.1', '"eps": 0.2'))
    assert "same settings, got eps 0.1 and 0.2" in str(invoke("compare", *runs).exception)
    note.write_text(whole.replace('"eps": 0.1', '"eps": 0.1, "direction_nodes": 10'))
    for pair, got in ((runs, "None and 10"), (runs[::-1], "10 and None")):
        assert f"same settings, got direction_nodes {got}" in str(invoke("compare", *pair).exception)
    note.write_text("{bad")
    refused = invoke("compare", *runs).exception
    assert isinstance(refused, CheckpointError)
    assert f"{note}, but it is damaged" in str(refused)
    note.unlink()
    assert isinstance(invoke("compare", *runs).exception, CheckpointError)
    note.write_text(whole)


def test_compare_names_what_is_mistyped_and_what_is_not_measured(runs, tmp_path: Path) -> None:
    for run in runs:
        assert invoke("evaluate", run, "--examples", 10, "--device", "cpu").exit_code == 0
    (tmp_path / "empty").mkdir()
    own = [tmp_path / name / "records" / "mine-ig.jsonl" for name in ("one", "two")]
    for records in own:
        shutil.copytree(runs[0] / "records", records.parent)
        for suffix in (".jsonl", ".settings"):  # of a protocol that a caller of `robattr.evaluate` has named
            (records.parent / "paper-ig").with_suffix(suffix).rename(records.with_suffix(suffix))
    assert invoke("compare", tmp_path / "one", tmp_path / "two", "--protocol", "mine").exit_code == 0
    for words, says in (
        ((*runs, "--protocol", "strct"), "unknown protocol 'strct': did you mean 'strict'?"),
        ((*runs, "--protocol", "papr@validation"), "unknown protocol 'papr@validation': did you mean 'paper'?"),
        ((*runs, "--protocol", ""), "unknown protocol '': valid: exhaustive, paper, strict"),
        ((*runs, "--protocol", "strict"), f"expected the records strict-ig in {runs[0] / 'records'}, got paper-ig"),
        ((*runs, "--map", "igg"), ": choose another --protocol or --map, or evaluate the run with these first"),
        ((runs[0], tmp_path / "one", "--protocol", "mine"), f"expected the records mine-ig in {runs[0] / 'records'}"),
        ((runs[0], tmp_path / "empty"), f"expected an evaluated run directory, got {tmp_path / 'empty'} without rec"),
        ((runs[0], tmp_path / "empty"), f"without records: run `robattr evaluate {tmp_path / 'empty'}` first"),
        ((runs[0], tmp_path / "none"), f"got {tmp_path / 'none'}, which does not exist: give another one"),
    ):
        refused = invoke("compare", *words).exception
        assert isinstance(refused, InvalidInput)
        assert says in str(refused)


def test_examples_that_share_a_number_alone_are_not_paired(runs, tmp_path: Path) -> None:
    pair = [shutil.copytree(run, tmp_path / name) for run, name in zip(runs, "ab", strict=True)]
    for run in pair:
        assert invoke("evaluate", run, "--examples", 10, "--device", "cpu").exit_code == 0
    records = pair[1] / "records" / "paper-ig.jsonl"
    whole, gallery = records.read_text(), pair[1] / "records" / "paper-ig-gallery.npz"
    (pair[1] / "records" / "paper-ig.json").unlink()
    first = json.loads(whole.splitlines()[0])["label"]
    records.write_text(whole.replace(f'"label": {first}', f'"label": {first + 1}', 1))
    assert f"example 0 has label {first} and {first + 1}" in str(invoke("compare", *pair).exception)
    records.write_text(whole)
    arrays = dict(np.load(gallery))
    np.savez_compressed(gallery, **{**arrays, "image": 255 - arrays["image"]})
    assert "the images of example" in str(invoke("compare", *pair).exception)
    gallery.unlink()
    for run, digest in zip(pair, ("one", "two"), strict=True):
        config = json.loads((run / "config.json").read_text())
        (run / "config.json").write_text(json.dumps({**config, "examples": digest}))
    assert "the digests of the datasets differ" in str(invoke("compare", *pair).exception)
