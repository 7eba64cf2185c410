"""What a run says: lines for pipes, a bar for terminals, one record per step in `metrics.jsonl`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from robattr.errors import CheckpointError
from robattr.training.log import Log
from robattr.training.run_directory import RunDirectory
from train_fixtures import QUICK, lines

RECORD = {"step": 50, "loss": 0.5, "penalty": 2.0, "accuracy": 0.5, "rate": 10.0, "lr": 1e-3}


def test_the_end_has_loss_penalty_and_accuracy(tmp_path, capsys):
    with Log(RunDirectory(tmp_path / "."), replace(QUICK, steps=100), step=0) as log:
        log.write(RECORD)
        log.advance(100)
    said = capsys.readouterr().err
    assert said.startswith(f"{tmp_path.name}: 100 of 100 steps, loss 0.5, penalty 2, accuracy 50.0%, in ")


def test_the_bar_shows_the_same_and_keeps_validation_lines(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with Log(RunDirectory(tmp_path), replace(QUICK, steps=100), step=0) as log:
        log.write(RECORD)
        log.advance(50)
        log.write({"step": 50, "val_accuracy": 0.75})
    said = capsys.readouterr().err
    assert "step 50 of 100: validation accuracy 75.0%" in said
    assert " 50/100" in said


def test_steps_that_will_be_done_again_are_forgotten(tmp_path):
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text('{"step": 1}\n{"step": 2}\n{"step": 2, "val_accuracy": 1.0}\n{"step": 3}\nnonsense\n{"step": 4')
    with Log(RunDirectory(tmp_path), QUICK, step=2) as log:
        log.write({"step": 3, "loss": 1.0})
    assert lines(tmp_path) == [
        {"step": 1},
        {"step": 2},
        {"step": 2, "val_accuracy": 1.0},
        {"step": 3, "loss": 1.0},
    ]


def test_a_sentence_is_said_once(tmp_path, capsys):
    with Log(RunDirectory(tmp_path), QUICK, step=0) as log:
        log.say("hello", "hello")
        log.say("hello", "world")
    assert capsys.readouterr().err == "hello\nworld\n"


def test_a_log_that_cannot_be_written_says_so(tmp_path):
    with Log(RunDirectory(tmp_path), QUICK, step=0) as log:
        log._file.close()
        log._file = open("/dev/full", "w")  # noqa: SIM115 (the log closes it, and the disk is full then, too)
        with pytest.raises(CheckpointError, match=r"/dev/full \(No space left on device\).*run the same command again"):
            log.write({"step": 1, "loss": 1.0})
