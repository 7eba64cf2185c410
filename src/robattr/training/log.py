"""What a run reports: `metrics.jsonl`, trackers, and its progress on stderr."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from math import inf
from pathlib import Path

from robattr._form import parse_json
from robattr._progress import Progress
from robattr.engine.files import check_same, write_atomically
from robattr.errors import CheckpointError
from robattr.training.config import TrainConfig
from robattr.training.run_directory import RunDirectory
from robattr.training.trackers import trackers

Record = Mapping[str, float | int]
SHARES = {"accuracy": "accuracy", "val_accuracy": "validation accuracy"}


class Log:
    """Write records to every output; a `silent` log, that of every process but the leader, writes none."""

    def __init__(self, here: RunDirectory, run: TrainConfig, *, step: int, silent: bool = False) -> None:
        self._clock = (step, time.perf_counter())
        self._said = set[str]()
        self._silent, self._steps = silent, run.steps
        if not silent:
            _truncate(here.metrics, step)
            self._trackers = trackers(here.path, run, step=step)
            self._file = open(here.metrics, "a", encoding="utf-8")  # noqa: SIM115 (closed by __exit__)
            self._progress = Progress(here.path.name, "steps")
            self._progress(step, run.steps)

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_: object) -> None:
        if self._silent:
            return
        self._progress.__exit__()
        with suppress(OSError):  # `write` has already reported a full disk
            self._file.close()
        for tracker in self._trackers:
            tracker.close()

    def pace(self, step: int) -> dict[str, float]:
        """The seconds since the last call, and the steps per second."""
        (before, then), now = self._clock, time.perf_counter()
        self._clock = (step, now)
        return {"rate": (step - before) / max(now - then, 1e-9), "seconds": round(now - then, 6)}

    def write(self, record: Record) -> None:
        """Append a line to `metrics.jsonl` and show it on the other outputs."""
        if self._silent:
            return
        try:
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()
        except OSError as error:
            raise CheckpointError(
                f"could not write {self._file.name} ({error.strerror}); checkpoints are untouched: make room, then run "
                "the same command again"
            ) from error
        for tracker in self._trackers:
            tracker.log({key: value for key, value in record.items() if key != "step"}, int(record["step"]))
        if "val_accuracy" in record:
            self._progress.say(f"step {record['step']:,} of {self._steps:,}: {_words(record)}")
        else:
            self._progress.words = _words(record)

    def advance(self, step: int) -> None:
        """Show that `step` is done."""
        if not self._silent:
            self._progress(step, self._steps)

    def say(self, *notes: str) -> None:
        """Print notes for the user, each of them once."""
        for note in notes:
            if not self._silent and note not in self._said:
                self._said.add(note)
                self._progress.say(note)

    def sync(self) -> None:
        """Flush `metrics.jsonl` to the disk, so that no checkpoint is ahead of it."""
        check_same(self._file, Path(self._file.name))
        os.fsync(self._file.fileno())


def _words(record: Record) -> str:
    """`loss 0.412, penalty 3.1, accuracy 88.0%`, for the keys of the record."""
    words = [f"{key} {record[key]:.4g}" for key in ("loss", "penalty", "gamma") if key in record]
    words += [f"{said} {record[key]:.1%}" for key, said in SHARES.items() if key in record]
    return ", ".join(words)


def _truncate(metrics: Path, step: int) -> None:
    """Drop the lines of steps that a resumed run repeats, and a last line that a crash cut short."""
    if metrics.exists():
        lines = metrics.read_bytes().splitlines(keepends=True)
        kept = [line for line in lines if line.endswith(b"\n") and _step_of(line) <= step]
        if kept != lines:
            write_atomically(metrics, b"".join(kept))


def _step_of(line: bytes) -> float:
    try:
        return float(parse_json(line)["step"])
    except (ValueError, KeyError, TypeError):  # not a record
        return inf
