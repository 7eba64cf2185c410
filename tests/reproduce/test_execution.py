"""Executing plans: in turn, in parallel, interrupted, continued."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import typer

from evaluation_fixtures import shorten_search
from forked import start
from robattr.cli import reproduce
from robattr.cli.reproduce import _execute
from robattr.reproduce import Job, execute, execute_parallel, execution, jobs, results, tasks
from robattr.reproduce.execution import waves
from robattr.training import loop
from train_fixtures import chain_recipes, shorten_recipes


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch, short_search) -> None:
    shorten_recipes(monkeypatch)


def run(made: list[Job]) -> None:
    assert execute(tasks(made), device="cpu") is None


def test_what_others_start_from_is_trained_before_them_and_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain_recipes(monkeypatch)
    made = jobs("table1", tmp_path / "t", datasets=["fashion-mini"], examples=2)
    assert [[job.path.name for job in wave] for wave in waves(made[::-1])] == [["natural"], ["ig-sum-norm"]]
    run(made)
    first, later = (json.loads((job.path / "config.json").read_text()) for job in made)
    assert later["warm_start"] == made[0].path.as_posix()
    assert (first["steps"], later["steps"]) == (1, 3)
    assert not (made[0].path / "records").exists()
    assert [run.method for run in results(made)] == ["ig-sum-norm"]
    assert [task.kind for task in tasks(made)] == ["train", "train", "evaluate"]
    assert all(task.done for task in tasks(made))


def test_the_most_expensive_jobs_come_first(tmp_path: Path) -> None:
    made = jobs("table1", tmp_path, datasets=["fashion-mini"])
    assert [job.path.name for job in waves(made)[0]] == ["ig-sum-norm", "natural"]


def test_more_examples_are_an_evaluation_not_done_yet(tmp_path: Path) -> None:
    job = jobs("table1", tmp_path, datasets=["fashion-mini"], examples=3)[0]
    assert [task.done for task in tasks([job])] == [False, False]
    run([job])
    assert [task.done for task in tasks([job])] == [True, True]
    assert [task.done for task in tasks([replace(job, examples=4)])] == [True, False]


@contextmanager
def forks() -> Iterator[None]:
    """Let the workers be forks with the short recipes, where `spawn` would import torch again in each.

    Where torch finds a GPU, autograd starts threads at its first use, and a fork cannot use it again: so no estimate.
    """
    with pytest.MonkeyPatch.context() as patch:
        shorten_recipes(patch)
        shorten_search(patch)
        patch.setattr(execution, "get_context", lambda _: get_context("fork"))
        patch.setattr(reproduce, "_seconds", lambda *_, **__: [0.0])
        patch.setattr(os, "cpu_count", lambda: 2)  # one thread per worker, as here: rounding depends on threads
        yield


def parallel(made: list[Job]) -> None:
    with forks():
        assert execute_parallel(made, workers=2, device="cpu") is None


def in_turn(made: list[Job]) -> None:
    with forks():
        run(made)


def test_jobs_in_parallel_give_what_jobs_in_turn_give(tmp_path: Path) -> None:
    made = jobs("table1", tmp_path, datasets=["fashion-mini"], examples=2)
    process = start(parallel, made, log=tmp_path / "log")
    process.join(timeout=120)
    assert process.exitcode == 0, (tmp_path / "log").read_text()
    assert all(task.done for task in tasks(made))
    lines = (tmp_path / "log").read_text().splitlines()
    for method in ("natural", "ig-sum-norm"):
        assert any(line.startswith(method) and "2 of 2 examples" in line for line in lines)
    alone = replace(made[0], path=tmp_path / "alone", examples=0)
    process = start(in_turn, [alone], log=tmp_path / "log")  # with one thread, like the workers
    process.join(timeout=120)
    assert process.exitcode == 0, (tmp_path / "log").read_text()
    weights = [(job.path / "model.safetensors").read_bytes() for job in (made[0], alone)]
    assert weights[0] == weights[1]


def long(out: Path, stubborn: bool) -> None:
    """`robattr reproduce table1` without end, in a group of processes of its own; a stubborn one notes an interrupt."""
    os.setsid()
    steps, train_step = count(), loop.train_step

    def next_step(*arguments: Any, **settings: Any) -> Any:
        if stubborn and next(steps) == 1:
            signal.signal(signal.SIGINT, lambda *_: out.with_name("noted").touch())
            while True:
                time.sleep(1)
        return train_step(*arguments, **settings)

    with forks(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "train_step", next_step)
        made = jobs("table1", out, datasets=["fashion-mini"], examples=6)
        endless = {"steps": 10**6, "batch": 4, "log_every": 1, "schedule": "constant"}
        made = [replace(job, run=replace(job.run, **endless)) for job in made]
        try:
            _execute(made, device="cpu", data_dir=None, workers=2, fresh=False)
        except typer.Exit as stop:
            sys.exit(stop.exit_code)


@pytest.mark.parametrize(("send", "stubborn"), [(os.killpg, False), (os.killpg, True), (os.kill, False)])
def test_ctrl_c_stops_all_processes_and_says_how_to_go_on(
    tmp_path: Path, send: Callable[[int, int], None], stubborn: bool
) -> None:
    """A terminal sends the signal to a group, other programs to one process. A second one kills jobs that go on."""
    log = tmp_path / "log"
    process = start(long, tmp_path / "out", stubborn, log=log)
    assert process.pid is not None

    def wait_for(there: Callable[[], bool]) -> None:
        while not there():
            assert process.is_alive(), log.read_text()
            time.sleep(0.02)

    try:
        metrics = lambda: [f for f in tmp_path.glob("out/fashion-mini/*/metrics.jsonl") if f.stat().st_size]  # noqa: E731
        wait_for(lambda: len(metrics()) == 2)
        send(process.pid, signal.SIGINT)
        if stubborn:
            wait_for((tmp_path / "noted").exists)
            send(process.pid, signal.SIGINT)
        process.join(timeout=300)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.exitcode == 130
    assert "the same command continues" in log.read_text()
    assert "Traceback" not in log.read_text()
    assert list(tmp_path.glob("out/fashion-mini/*/checkpoints/*.pt"))
    assert len(list(tmp_path.glob("out/fashion-mini/*/config.json"))) <= 2  # no other job began
