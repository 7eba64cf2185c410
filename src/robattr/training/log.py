"""What a run says while it works: `metrics.jsonl`, TensorBoard, and a progress bar or plain lines on stderr."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from math import inf
from pathlib import Path
from typing import Any

from robattr._extras import need
from robattr.engine.files import write_atomically
from robattr.errors import CheckpointError
from robattr.training.config import TrainConfig
from robattr.training.run_directory import RunDirectory

Record = Mapping[str, float | int]


class Log:
    """One record per call to `write`; each goes to every listener."""

    def __init__(self, here: RunDirectory, run: TrainConfig, *, step: int) -> None:
        _forget_after(here.metrics, step)
        self._file = open(here.metrics, "a", encoding="utf-8")  # noqa: SIM115 (closed by __exit__)
        self._board = _tensorboard(here.path, step) if run.tensorboard else None
        self._console = _console(run.steps, step)
        self._clock = (step, time.perf_counter())
        self._said = set[str]()

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_: object) -> None:
        self._console.close()
        with suppress(OSError):  # a full disk has been reported by `write`
            self._file.close()
        if self._board is not None:
            self._board.close()

    def rate(self, step: int) -> float:
        """Steps per second since this was last asked."""
        (before, then), now = self._clock, time.perf_counter()
        self._clock = (step, now)
        return (step - before) / max(now - then, 1e-9)

    def write(self, record: Record) -> None:
        """One line of `metrics.jsonl`, and its rendering everywhere else."""
        try:
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()
        except OSError as error:
            raise CheckpointError(
                f"could not write {self._file.name} ({error.strerror}); checkpoints are untouched: make room, then "
                "continue with --resume"
            ) from error
        for key, value in record.items():
            if self._board is not None and key != "step":
                self._board.add_scalar(key, value, record["step"])
        self._console.show(record)

    def reached(self, step: int) -> None:
        """Move the bar, where there is one."""
        self._console.reached(step)

    def say(self, *texts: str) -> None:
        """Sentences for the person at the terminal, each said once."""
        for text in texts:
            if text not in self._said:
                self._said.add(text)
                self._console.say(text)

    def sync(self) -> None:
        """Make what was written safe, so that a checkpoint never knows of a step its log has lost."""
        os.fsync(self._file.fileno())


class Silence:
    """The log of every process but the leader: it says nothing."""

    def __enter__(self) -> Silence:
        return self

    def __exit__(self, *_: object) -> None: ...

    def rate(self, step: int) -> float:
        return 0.0

    def write(self, record: Record) -> None: ...

    def reached(self, step: int) -> None: ...

    def say(self, *texts: str) -> None: ...

    def sync(self) -> None: ...


class Lines:
    """Progress as plain lines, for files and pipes."""

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def show(self, record: Record) -> None:
        print(f"step {record['step']}/{self._steps}  {_words(record, self._steps)}", file=sys.stderr, flush=True)

    def reached(self, step: int) -> None: ...

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def close(self) -> None: ...


class Bar:
    """Progress as a bar with the latest figures, for a terminal."""

    def __init__(self, steps: int, *, step: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        columns = (MofNCompleteColumn(), BarColumn(), TextColumn("{task.description}"))
        self._progress = Progress(*columns, console=Console(stderr=True))
        self._task = self._progress.add_task("", total=steps, completed=step)
        self._steps = steps
        self._progress.start()

    def show(self, record: Record) -> None:
        if "val_accuracy" in record:
            self._progress.console.print(f"step {record['step']}  {_words(record, self._steps)}", highlight=False)
        else:
            self._progress.update(self._task, description=_words(record, self._steps))

    def reached(self, step: int) -> None:
        self._progress.update(self._task, completed=step)

    def say(self, text: str) -> None:
        self._progress.console.print(text, highlight=False, markup=False)

    def close(self) -> None:
        self._progress.stop()


def _console(steps: int, step: int) -> Lines | Bar:
    if sys.stderr.isatty():
        try:
            return Bar(steps, step=step)
        except ImportError:  # the bar is a comfort, not a need
            pass
    return Lines(steps)


def _words(record: Record, steps: int) -> str:
    """`loss 0.412  penalty 3.1  accuracy 88.0%  25.1 steps/s  eta 0:00:31`, of whatever the record holds."""
    words = [f"{key} {record[key]:.4g}" for key in ("loss", "penalty", "gamma") if key in record]
    words += [f"{key} {record[key]:.1%}" for key in ("accuracy", "val_accuracy") if key in record]
    if rate := record.get("rate"):
        words += [f"{rate:.3g} steps/s", f"eta {timedelta(seconds=round((steps - record['step']) / rate))}"]
    return "  ".join(words)


def _forget_after(metrics: Path, step: int) -> None:
    """Drop the lines of steps that a resumed run will do again, and a last line that a crash cut short."""
    if metrics.exists():
        lines = metrics.read_bytes().splitlines(keepends=True)
        kept = [line for line in lines if line.endswith(b"\n") and _step_of(line) <= step]
        if kept != lines:
            write_atomically(metrics, b"".join(kept))


def _step_of(line: bytes) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):  # no record of ours
        return inf


def _tensorboard(path: Path, step: int) -> Any:
    need("tensorboard", extra="track")
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(path / "tensorboard"), purge_step=step + 1)
