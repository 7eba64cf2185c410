"""Processes are killed: a resumed run ends with the weights of an uninterrupted one, bit for bit."""

from __future__ import annotations

import json
import os
import resource
import signal
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from forked import robattr, signalled, start
from memory_fixtures import needs_gpu
from robattr.cli import app
from robattr.training import loop
from train_fixtures import lines

STEPS = 14
WORDS = [
    "train", "fashion-mini/ig-norm", "--device", "cpu",
    *(f"--set={word}" for word in (
        f"steps={STEPS}", "batch=8", "attack_steps=2", "m=2", "m_attack=1", "log_every=1", "validate_every=5",
        "checkpoint_every=3",
    )),
]  # fmt: skip


def begin(out: Path, *, limit: int | None = None) -> BaseProcess:
    """The run in a process with one thread, whose files may have at most `limit` bytes."""
    return start(limited, limit, *WORDS, "--out", str(out), log=out.with_name("log"))


def limited(limit: int | None, *words: str) -> None:
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    robattr(*words)


def finish(out: Path) -> None:
    """The run to its end in this process, with one thread as well: rounding depends on threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        done = CliRunner().invoke(app, [*WORDS, "--out", str(out)])
    finally:
        torch.set_num_threads(threads)
    assert done.exit_code == 0, done.output


def wait_for_step(out: Path, step: int, process: BaseProcess) -> None:
    """Until the log has reached `step`."""
    while process.is_alive():
        metrics = out / "metrics.jsonl"
        if metrics.exists() and sum(b'"loss"' in line for line in metrics.read_bytes().splitlines()) >= step:
            return
        time.sleep(0.01)
    raise AssertionError(f"the run ended by itself with {process.exitcode}")


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "run"
    finish(out)
    return out


def same_as(whole: Path, out: Path) -> None:
    assert (out / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    figures = [
        [{key: value for key, value in record.items() if key not in ("rate", "seconds")} for record in lines(path)]
        for path in (whole, out)
    ]
    assert figures[0] == figures[1]
    assert [record["step"] for record in lines(out) if "loss" in record] == list(range(1, STEPS + 1))


def test_killed_again_and_again(whole, tmp_path):
    out = tmp_path / "run"
    for step in (1, 4):  # the second process continues after 0 steps: no checkpoint is due before the third
        process = start(signalled, signal.SIGKILL, step, *WORDS, "--out", str(out), log=tmp_path / "log")
        process.join()
        assert process.exitcode == -signal.SIGKILL
    finish(out)
    same_as(whole, out)
    assert len(json.loads((out / "environment.json").read_text())["resumed"]) == 2


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_asked_to_stop(whole, tmp_path, number, code):
    out = tmp_path / "run"
    process = start(signalled, number, 2, *WORDS, "--out", str(out), log=tmp_path / "log")
    process.join()
    assert process.exitcode == code
    assert lines(out)[-1]["step"] == 3
    assert list((out / "checkpoints").glob("step-000000003-*.pt"))
    assert not (out / "model.safetensors").exists()
    finish(out)
    same_as(whole, out)


def test_a_full_disk(whole, tmp_path):
    """The first checkpoint fits under the kernel's limit, the next (with Adam's moments) does not."""
    out = tmp_path / "run"
    process = begin(out, limit=200_000)
    process.join(timeout=300)
    assert process.exitcode == 2
    said = out.with_name("log").read_text()
    assert said.splitlines()[-1].startswith("robattr: could not write")
    assert "make room or choose another place, then run the same command again" in said
    assert [path.name[:14] for path in (out / "checkpoints").iterdir()] == ["step-000000000"]
    finish(out)
    same_as(whole, out)


@needs_gpu
def test_killed_on_a_gpu(tmp_path, monkeypatch):
    """With deterministic algorithms the weights are the same bit for bit, as on a CPU."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # which cuBLAS asks for
    words = [*WORDS, "--device", "cuda", "--set=deterministic=true"]
    ends = {}
    for name, steps in {"whole": [None], "run": [7, 2, None]}.items():
        for step in steps:
            process = start(until, step, *words, "--out", str(tmp_path / name), log=tmp_path / f"{name}.log")
            process.join()
            ends.setdefault(name, []).append(process.exitcode)
    assert ends == {"whole": [0], "run": [-signal.SIGKILL, -signal.SIGKILL, 0]}, (tmp_path / "run.log").read_text()
    assert "continuing after 6 of 14 steps" in (tmp_path / "run.log").read_text()
    same_as(tmp_path / "whole", tmp_path / "run")


def until(steps: int | None, *words: str) -> None:
    """The command, killed in its step number `steps`, counted from 0."""
    taken, step = iter(range(STEPS)), loop.train_step

    def next_step(*arguments, **settings):
        if next(taken) == steps:
            os.kill(os.getpid(), signal.SIGKILL)
        return step(*arguments, **settings)

    loop.train_step = next_step
    robattr(*words)
