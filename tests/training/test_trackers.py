"""TensorBoard and Weights & Biases get the figures of `metrics.jsonl`, and one run after a resumption."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest

from robattr.errors import MissingExtra
from robattr.training.loop import train
from train_fixtures import QUICK, lines, tiny_data, tiny_net


def go(run, out, **more):
    train(run, out, dataset=tiny_data(), model=tiny_net(), device="cpu", **more)


def losses(path) -> dict[int, float]:
    return {record["step"]: record["loss"] for record in lines(path) if "loss" in record}


def test_tensorboard_gets_the_same_figures(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    go(replace(QUICK, tensorboard=True), tmp_path / "run")
    board = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    board.Reload()
    found = {event.step: event.value for event in board.Scalars("loss")}
    assert found == pytest.approx(losses(tmp_path / "run"))


def test_wandb_is_told_every_record_and_resumes_its_run(tmp_path, monkeypatch):
    """With a stand-in that records the calls; the test below uses the package."""
    begun, logged, finished = [], {}, []
    run = SimpleNamespace(
        log=lambda numbers, step: logged.setdefault(step, {}).update(numbers), finish=lambda: finished.append(True)
    )
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **given: begun.append(given) or run))
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    go(replace(QUICK, steps=3, wandb=True), tmp_path / "run")
    go(replace(QUICK, wandb=True), tmp_path / "run")
    assert {step: numbers["loss"] for step, numbers in logged.items()} == losses(tmp_path / "run")
    assert "val_accuracy" in logged[6]
    assert "step" not in logged[6]
    assert begun[0]["id"] == begun[1]["id"]
    assert (begun[0]["project"], begun[0]["resume"], begun[0]["config"]["m"]) == ("mine", "allow", QUICK.m)
    assert len(finished) == 2


def test_wandb_that_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtra, match=r"robattr\[wandb\]"):
        go(replace(QUICK, wandb=True), tmp_path / "run")


def leveldb_log(content: bytes, *, size: int = 32768) -> Iterator[bytes]:
    """The records of a log in LevelDB's format: blocks of 32 kB (the first shorter, by W&B's 7 bytes) of pieces, each

    with its checksum (4 bytes), length (2) and type (1): 1 whole, 2 first, 3 middle, 4 last.
    """
    at, record = 0, b""
    while at + 7 <= len(content):
        if size - (at + 7) % size < 7:  # no room for another header in this block
            at += size - (at + 7) % size
            continue
        length, kind = struct.unpack("<HB", content[at + 4 : at + 7])
        record += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield record
            record = b""


@pytest.mark.filterwarnings("ignore")  # of the package, about the machine
def test_wandb_itself_stores_the_same_figures(tmp_path, monkeypatch):
    """Offline: the history in the file that `wandb sync` would send."""
    pytest.importorskip("wandb", reason="pip install wandb runs this test")
    from wandb.proto import wandb_internal_pb2

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    go(replace(QUICK, wandb=True), tmp_path / "run")
    (file,) = (tmp_path / "run").glob("wandb/offline-run-*/*.wandb")
    found = {}
    for content in leveldb_log(file.read_bytes()[7:]):  # after W&B's own header
        record = wandb_internal_pb2.Record()
        record.ParseFromString(content)
        items = {".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
        if "loss" in items:
            found[items["_step"]] = items["loss"]
    assert found == pytest.approx(losses(tmp_path / "run"))
