"""Execute the tasks of a plan, one after the other or several jobs at a time; both continue what is there."""

from __future__ import annotations

import io
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import redirect_stderr
from dataclasses import dataclass
from functools import partial
from multiprocessing import active_children, get_context
from pathlib import Path

import torch

from robattr._progress import Watch, Watching, say
from robattr.attacks.maps import by_name
from robattr.engine.processes import choose_device
from robattr.evaluation import for_dataset
from robattr.evaluation.protocol import named
from robattr.evaluation.run import OutputDir, evaluate
from robattr.reproduce.plan import Job, Task, tasks
from robattr.runs import open_run
from robattr.training.loop import train


@dataclass(frozen=True)
class Stopped:
    """The task that a signal interrupted."""

    task: Task
    signal: int


def execute(
    planned: Sequence[Task],
    *,
    device: str = "auto",
    data_dir: Path | None = None,
) -> Stopped | None:
    """Execute the tasks that are not done, in order; an interrupt stops, and what was done is kept."""
    for number, task in enumerate(planned, start=1):
        say(f"{number}/{len(planned)} {task.title}{': done before' if task.done else ''}")
        if task.done:
            continue
        if task.kind == "train":
            outcome = train(task.job.run, task.job.path, device=device, data_dir=data_dir)
            if not outcome.finished:
                return Stopped(task, outcome.stopped_by or signal.SIGTERM)
        else:
            try:
                with Watching() as watch:
                    evaluate_job(task.job, device=device, data_dir=data_dir, watch=watch)
            except KeyboardInterrupt:  # training handles the signal itself; an evaluation can stop anywhere
                return Stopped(task, signal.SIGINT)
    return None


def evaluate_job(job: Job, *, device: str, data_dir: Path | None, watch: Watch) -> None:
    """Evaluate a trained job, or continue its evaluation; writes the records into the run directory."""
    opened = open_run(job.path, data_dir=data_dir)
    where = choose_device(device)
    protocol = named(job.protocol, for_dataset(opened.data))
    x, y, ids = opened.data.examples("test", job.examples)
    words = ["robattr", "evaluate", job.path.as_posix(), "--maps", job.map, "--examples", str(job.examples)]
    words += ["--protocol", job.protocol] if job.protocol != "paper" else []
    evaluate(
        opened.model.to(where),
        x,
        y,
        protocol=protocol,
        map=by_name(job.map, N=protocol.N, bounds=protocol.bounds),
        ids=ids.tolist(),
        out=OutputDir(job.path / "records"),
        metadata={**opened.about(split="test", command=shlex.join(words)), "run": job.path.name},
        precision="tf32",  # the default of `robattr evaluate`
        compiled=where.type == "cuda",
        progress=partial(watch, job.name),
    )


def execute_parallel(jobs: Sequence[Job], *, workers: int, device: str, data_dir: Path | None = None) -> Stopped | None:
    """Execute the jobs in `workers` processes; two small networks use two cores better than one with two threads.

    After an interrupt no new job begins, and the running ones are waited for; a second interrupt kills them.
    """
    threads = max(1, (os.cpu_count() or 1) // workers)
    others = set(active_children())
    pool = ProcessPoolExecutor(
        min(workers, len(jobs)), mp_context=get_context("spawn"), initializer=_init_worker, initargs=(os.getpid(),)
    )
    try:
        for wave in waves(jobs):
            left, running, stopped = iter(wave), set[Future[Stopped | None]](), None
            while True:
                # At most one job per worker is submitted: a job that waits in the pool cannot be recalled.
                while not stopped and len(running) < workers and (job := next(left, None)):
                    running.add(pool.submit(_execute_job, job, device, data_dir, threads))
                if not running:
                    break
                done, running = wait(running, return_when=FIRST_COMPLETED)
                stopped = next((found for found in [future.result() for future in done] if found), stopped)
            if stopped:
                return stopped
        return None
    finally:
        try:
            pool.shutdown(wait=True, cancel_futures=True)
        except KeyboardInterrupt:
            for child in set(active_children()) - others:
                child.kill()
            raise


def waves(jobs: Sequence[Job]) -> tuple[list[Job], list[Job]]:
    """Jobs that start from scratch, then jobs that start from their weights; the most expensive ones first."""
    ordered = sorted(jobs, key=lambda job: job.run.steps * (1 + job.run.second_order), reverse=True)
    later = [job for job in ordered if any(job.starts_from(other) for other in jobs)]
    return [job for job in ordered if job not in later], later


def _init_worker(parent: int) -> None:
    """Ignore interrupts between jobs, and exit when the parent process is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _execute_job(job: Job, device: str, data_dir: Path | None, threads: int) -> Stopped | None:
    torch.set_num_threads(threads)
    idle = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with redirect_stderr(Prefixed(job.path.name, sys.stderr)):  # type: ignore[arg-type]
            return execute(tasks([job]), device=device, data_dir=data_dir)
    finally:
        signal.signal(signal.SIGINT, idle)


class Prefixed(io.TextIOBase):
    """A stream that writes a name before every line, to tell the lines of several processes apart."""

    def __init__(self, name: str, stream: io.TextIOBase) -> None:
        self._name, self._stream, self._begun = name, stream, ""

    def write(self, text: str) -> int:
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            self._stream.write(f"{self._name:12} {line}\n")  # one call per line: processes do not mix within a line
        return len(text)

    def flush(self) -> None:
        self._stream.flush()
