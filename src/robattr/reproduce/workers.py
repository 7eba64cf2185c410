"""Jobs side by side, a process for each: small nets keep one core busy, but not two.

Two threads on one small net mostly wait for each other; two processes with one thread each use two cores in full.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager, redirect_stderr
from multiprocessing import active_children, get_context
from pathlib import Path

import torch

from robattr.reproduce.job import Job, Progress
from robattr.reproduce.plan import Stopped, execute, steps


class Prefixed(io.TextIOBase):
    """A stream that puts a name before every line, so that the lines of several processes can be told apart."""

    def __init__(self, name: str, stream: io.TextIOBase) -> None:
        self._name, self._stream, self._begun = name, stream, ""

    def write(self, text: str) -> int:
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            self._stream.write(f"{self._name:12} {line}\n")  # one call a line: lines of processes do not mix
        return len(text)

    def flush(self) -> None:
        self._stream.flush()


def run_parallel(jobs: Sequence[Job], *, workers: int, device: str, data_dir: Path | None = None) -> Stopped | None:
    """Carry out the jobs, `workers` at a time, the costliest first; progress goes to stderr line by line.

    Those that start from the weights of others wait until all others are done. After an interrupt no job begins, and
    those at work are waited for; a second interrupt ends them at once.
    """
    costly = sorted(jobs, key=lambda job: job.run.steps * (1 + job.run.second_order), reverse=True)
    later = [job for job in costly if any(job.starts_from(other) for other in jobs)]
    threads = max(1, (os.cpu_count() or 1) // workers)
    others = set(active_children())
    pool = ProcessPoolExecutor(
        min(workers, len(jobs)), mp_context=get_context("spawn"), initializer=_begin, initargs=(os.getpid(),)
    )
    try:
        for wave in ([job for job in costly if job not in later], later):
            left, running, stopped = iter(wave), set[Future[Stopped | None]](), None
            while True:
                while not stopped and len(running) < workers and (job := next(left, None)):  # none waits in the pool
                    running.add(pool.submit(_alone, job, device, data_dir, threads))
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


def _begin(parent: int) -> None:
    """Set up a worker: an interrupt is its job's matter, and it ends with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _leave_with(parent)


def _leave_with(parent: int) -> None:
    """Let this process end when its parent does, however it does: nobody would take its results."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _alone(job: Job, device: str, data_dir: Path | None, threads: int) -> Stopped | None:
    torch.set_num_threads(threads)
    idle = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with redirect_stderr(Prefixed(job.path.name, sys.stderr)):  # type: ignore[arg-type]
            return execute(steps([job]), say=_say, bar=_lines, device=device, data_dir=data_dir)
    finally:
        signal.signal(signal.SIGINT, idle)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextmanager
def _lines(title: str) -> Iterator[Progress]:
    yield lambda done, total: _say(f"attacked {done} of {total} images")
