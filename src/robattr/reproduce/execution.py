"""Execute the tasks of a plan, one after the other or several jobs at a time; both continue what is there."""

from __future__ import annotations

import io
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import active_children, get_context
from multiprocessing.synchronize import Event
from pathlib import Path
from types import FrameType
from typing import TypeVar

import torch

from robattr._progress import Watch, Watching, say
from robattr.attacks.maps import by_name
from robattr.engine.processes import choose_device
from robattr.evaluation import for_dataset
from robattr.evaluation.output_dir import OutputDir
from robattr.evaluation.protocol import named
from robattr.evaluation.run import evaluate
from robattr.reproduce.plan import Job, Task, tasks
from robattr.runs import open_run
from robattr.training.loop import train

T = TypeVar("T")
_stop: Event | None = None  # of a worker: set when no job may begin any more


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
    opened = open_run(job.path, data_dir=data_dir, trust=":" in job.run.model)  # the job itself names that code
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
        watch=watch,
        title=job.name,
    )


def execute_parallel(jobs: Sequence[Job], *, workers: int, device: str, data_dir: Path | None = None) -> Stopped | None:
    """Execute the jobs in `workers` processes; two small networks use two cores better than one with two threads."""
    calls = [[(job.path.name, partial(_execute_job, job, device, data_dir)) for job in wave] for wave in waves(jobs)]
    return run_parallel(calls, workers=workers)


def run_parallel(waves: Sequence[Sequence[tuple[str, Callable[[], T | None]]]], *, workers: int) -> T | None:
    """Make the named calls of each wave in `workers` processes, until one returns something: what stopped it.

    An interrupt is passed on to the running calls, which are waited for, and no new one begins; a second interrupt
    kills them. The workers are a group of their own, so that each gets an interrupt once, whether it was sent to this
    process alone or, by a terminal, to its whole group.
    """
    threads = max(1, (os.cpu_count() or 1) // workers)
    others, context = set(active_children()), get_context("spawn")
    stop = context.Event()
    pool = ProcessPoolExecutor(
        min(workers, sum(map(len, waves))), mp_context=context, initializer=_init_worker, initargs=(os.getpid(), stop)
    )
    interrupts = list[int]()

    def pass_on(number: int, frame: FrameType | None) -> None:
        # Not by KeyboardInterrupt: raised in the pool's own clean-up, it would be printed there and lost.
        interrupts.append(number)
        if len(interrupts) == 1:
            stop.set()
        for child in set(active_children()) - others:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(child.pid or 0, signal.SIGINT if len(interrupts) == 1 else signal.SIGKILL)

    with _at_interrupt(pass_on), pool:
        for wave in waves:
            left, running, stopped = iter(wave), set[Future[T | None]](), None
            while True:
                # At most one call per worker is submitted: one that waits in the pool cannot be recalled.
                while not (stopped or interrupts) and len(running) < workers and (named := next(left, None)):
                    with _at_interrupt(signal.SIG_IGN):  # by a worker from its first moment, too
                        running.add(pool.submit(_call, named[0], named[1], threads))
                if not running:
                    break
                done, running = wait(running, return_when=FIRST_COMPLETED)
                try:
                    stopped = next((found for found in [future.result() for future in done] if found), stopped)
                except BrokenProcessPool:
                    if not interrupts:
                        raise
            if interrupts:
                raise KeyboardInterrupt
            if stopped:
                return stopped
        return None


def waves(jobs: Sequence[Job]) -> tuple[list[Job], list[Job]]:
    """Jobs that start from scratch, then jobs that start from their weights; the most expensive ones first."""
    ordered = sorted(jobs, key=lambda job: job.run.steps * (1 + job.run.second_order), reverse=True)
    later = [job for job in ordered if any(job.starts_from(other) for other in jobs)]
    return [job for job in ordered if job not in later], later


@contextmanager
def _at_interrupt(handler: Callable[[int, FrameType | None], object] | signal.Handlers) -> Iterator[None]:
    """Answer SIGINT by `handler` for a while; a process that starts while it is ignored ignores it, too."""
    if threading.current_thread() is not threading.main_thread():  # Python accepts handlers only there
        yield
        return
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _init_worker(parent: int, stop: Event) -> None:
    """Ignore interrupts between jobs, leave the group of the parent process, and exit when that process is gone."""
    global _stop
    _stop = stop
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(os, "setpgrp"):
        os.setpgrp()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _execute_job(job: Job, device: str, data_dir: Path | None) -> Stopped | None:
    return execute(tasks([job]), device=device, data_dir=data_dir)


def _call(name: str, function: Callable[[], T | None], threads: int) -> T | None:
    torch.set_num_threads(threads)
    with _at_interrupt(signal.default_int_handler):
        if _stop is not None and _stop.is_set():  # asked after the handler is there: no interrupt is lost between
            return None
        with redirect_stderr(Prefixed(name, sys.stderr)):  # type: ignore[arg-type]
            return function()


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
