"""The run directory: its files, its lock, and a record of the environment.

RUN/config.json  environment.json  metrics.jsonl  checkpoints/  model.safetensors
"""

from __future__ import annotations

import platform
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import torch

from robattr import _version
from robattr._form import check_form, parse_json
from robattr.engine.files import Lock, locked, write_json
from robattr.engine.processes import World, restarts
from robattr.errors import CheckpointError, InvalidInput
from robattr.training import checkpoint
from robattr.training.config import TrainConfig


@dataclass(frozen=True)
class RunDirectory:
    """The paths of a run, and its lock while this process trains it."""

    path: Path
    lock: Lock | None = None

    def check_held(self) -> None:
        """Raise if the directory that this process locked was removed."""
        if self.lock is not None:
            self.lock.check()

    @property
    def begun(self) -> bool:
        """Whether the directory contains more than a start that failed before its first checkpoint leaves."""
        if not self.path.is_dir():
            return self.path.exists()
        return any(entry not in (self.config, self.environment, self.path / ".lock") for entry in self.path.iterdir())

    @property
    def config(self) -> Path:
        return self.path / "config.json"

    @property
    def environment(self) -> Path:
        return self.path / "environment.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def weights(self) -> Path:
        return self.path / "model.safetensors"

    @property
    def preprocessing(self) -> Path:
        """Mean and std of the input normalisation; only hardened models of a user have this file."""
        return self.path / "preprocessing.json"

    def check_bare(self, remedy: str) -> None:
        """Reject a run whose model needs an input normalisation, for callers that do not apply it."""
        if self.preprocessing.is_file():
            raise InvalidInput(f"the weights of {self.path} need their own preprocessing.json: {remedy}")


@contextmanager
def claim(path: Path, run: TrainConfig, *, world: World, resume: bool) -> Iterator[RunDirectory]:
    """Create, or with `resume` reopen, the directory of `run`, and hold its lock.

    Only the leader touches the disk. An existing run is never overwritten, and never continued with another
    configuration or fewer steps.
    """
    here = RunDirectory(path)
    if not world.leads:
        yield here
        return
    if here.begun and not (resume or restarts()):
        raise CheckpointError(
            f"{path} already exists: continue that run with --resume, or choose another directory with --out"
        )
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"cannot create the directory {path} ({error.strerror}): choose another --out") from error
    with locked(path) as lock:
        kept = checkpoint.listed(here.checkpoints)
        if kept and here.config.exists() and (differing := checkpoint.differences(run, read_config(here))):
            raise CheckpointError(
                f"{path} contains a run of another configuration ({differing}): choose another --out, and "
                f"start from these weights with --set warm_start={path}"
            )
        if kept and kept[-1].step > run.steps:
            raise CheckpointError(
                f"{path} has already done {kept[-1].step} steps, more than steps={run.steps}: continue it with "
                f"--set steps={kept[-1].step} or more, or choose another --out"
            )
        write_json(here.config, run.as_dict())
        write_json(here.environment, _with_history(here.environment, environment(world)))
        here = RunDirectory(path, lock)
        yield here
        here.check_held()


def read_config(here: RunDirectory) -> dict[str, Any]:
    """The resolved configuration of a run."""
    try:
        config = parse_json(here.config.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{here.path} is not a run directory: it has no {here.config.name}") from None
    except ValueError as error:  # not UTF-8, or not JSON
        raise CheckpointError(f"{here.config} is damaged: {error}. Delete it to resume from the checkpoints") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{here.config} is damaged: expected a JSON object, got {type(config).__name__}")
    return config


def environment(world: World) -> dict[str, Any]:
    """What is needed to repeat the run: versions, commit, devices and the command."""
    gpu = torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else None
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["robattr", *sys.argv[1:]]),
        "versions": {
            "robattr": _version.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": numpy.__version__,
        },
        "git": _git_state(),
        "platform": platform.platform(),
        "device": gpu or str(world.device),
        "processes": world.size,
        "threads": torch.get_num_threads(),
    }


def _with_history(path: Path, now: dict[str, Any]) -> dict[str, Any]:
    """The environment in which the run started; under `resumed`, those in which it was resumed."""
    if not path.exists():
        return now
    try:
        first = parse_json(path.read_text(encoding="utf-8"))
        check_form(first, {"resumed?": [dict]})
    except ValueError as cause:
        raise CheckpointError(f"{path} is damaged ({cause}): move it away to continue") from cause
    return {**first, "resumed": [*first.get("resumed", []), now]}


def _git_state() -> str | None:
    """The commit of robattr's source (`-dirty` with local changes), or None if it is not a git checkout."""
    source = Path(_version.__file__)
    git = partial(subprocess.run, cwd=source.parent, capture_output=True, check=True, text=True, timeout=10)
    try:
        git(["git", "ls-files", "--error-unmatch", source.name])  # a checkout of robattr, not one that contains it
        described = git(["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"])
    except (OSError, subprocess.SubprocessError):
        return None
    return described.stdout.strip()
