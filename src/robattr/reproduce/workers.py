"""Jobs side by side, a process for each: small nets keep one core busy, but not two.

Two threads on one small net mostly wait for each other; two processes with one thread each use two cores in full.
"""

from __future__ import annotations

import io
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, redirect_stderr
from multiprocessing import get_context
from pathlib import Path

import torch

from robattr.reproduce.job import Job, Progress
from robattr.reproduce.plan import Stopped, carry_out, steps


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


def side_by_side(jobs: Sequence[Job], *, workers: int, device: str, data_dir: Path | None = None) -> Stopped | None:
    """Carry out the jobs, `workers` at a time, the costliest first; progress goes to stderr line by line.

    Those that start from the weights of others wait until all others are done.
    """
    costly = sorted(jobs, key=lambda job: job.run.steps * (1 + job.run.second_order), reverse=True)
    later = [job for job in costly if any(job.starts_from(other) for other in jobs)]
    threads = max(1, (os.cpu_count() or 1) // workers)
    pool = ProcessPoolExecutor(
        min(workers, len(jobs)), mp_context=get_context("spawn"), initializer=_leave_with, initargs=(os.getpid(),)
    )
    try:
        for wave in ([job for job in costly if job not in later], later):
            futures = [pool.submit(_alone, job, device, data_dir, threads) for job in wave]
            if stopped := [stopped for stopped in [future.result() for future in futures] if stopped]:
                return stopped[0]
        return None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)  # after an interrupt nothing new may begin


def _leave_with(parent: int) -> None:
    """Let this process end when its parent does, however it does: nobody would take its results."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _alone(job: Job, device: str, data_dir: Path | None, threads: int) -> Stopped | None:
    torch.set_num_threads(threads)
    with redirect_stderr(Prefixed(job.path.name, sys.stderr)):  # type: ignore[arg-type]
        return carry_out(steps([job]), say=_say, bar=_lines, device=device, data_dir=data_dir)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextmanager
def _lines(title: str) -> Iterator[Progress]:
    yield lambda done, total: _say(f"attacked {done} of {total} images")
