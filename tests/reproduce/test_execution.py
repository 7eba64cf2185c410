"""Executing plans: in turn, in parallel, interrupted, continued."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from robattr.reproduce import Job, execute, execute_parallel, jobs, results, tasks
from robattr.reproduce.execution import waves
from train_fixtures import chain_recipes, shorten_recipes


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_jobs_in_parallel_give_what_jobs_in_turn_give(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)  # one thread per worker, as here: rounding depends on threads
    made = jobs("table1", tmp_path, datasets=["fashion-mini"], examples=2)
    assert execute_parallel(made, workers=2, device="cpu") is None
    assert all(task.done for task in tasks(made))
    lines = capfd.readouterr().err.splitlines()
    for method in ("natural", "ig-sum-norm"):
        assert any(line.startswith(method) and "2 of 2 examples" in line for line in lines)
    alone = replace(made[0], path=tmp_path / "alone", examples=0)
    run([alone])
    weights = [(job.path / "model.safetensors").read_bytes() for job in (made[0], alone)]
    assert weights[0] == weights[1]


LONG = """
import sys, typer
from dataclasses import replace
from pathlib import Path
from robattr.cli.reproduce import _execute
from robattr.reproduce import jobs
if __name__ == "__main__":
    made = jobs("table1", Path(sys.argv[1]), datasets=["fashion-mini"], examples=6)
    made = [replace(job, run=replace(job.run, steps=10**6, batch=4, log_every=1, schedule="constant")) for job in made]
    try:
        _execute(made, device="cpu", data_dir=None, workers=2, fresh=False)
    except typer.Exit as stop:
        sys.exit(stop.exit_code)
"""


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_stops_all_processes_and_says_how_to_go_on(tmp_path: Path, times: int) -> None:
    """A terminal sends the signal to the whole group: the program and its workers. The impatient send it again."""
    (tmp_path / "long.py").write_text(LONG)
    words = [sys.executable, str(tmp_path / "long.py"), str(tmp_path / "out")]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stderr is not None
        while not any(file.stat().st_size for file in tmp_path.glob("out/fashion-mini/*/metrics.jsonl")):
            assert process.poll() is None
            time.sleep(0.02)
        for _ in range(times):
            os.killpg(process.pid, signal.SIGINT)
            time.sleep(0.05)
        try:
            rest = process.communicate(timeout=60)[1]
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 130
    assert "the same command continues" in rest
    assert "Traceback" not in rest
    assert list(tmp_path.glob("out/fashion-mini/*/checkpoints/*.pt"))
    assert len(list(tmp_path.glob("out/fashion-mini/*/config.json"))) <= 2  # no other job began
