"""The run directory: what a run is, where it was made, and that only one process writes to it.

RUN/config.json  environment.json  metrics.jsonl  checkpoints/  model.safetensors
"""

from __future__ import annotations

import json
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy
import torch

import robattr
from robattr.engine.files import locked, write_json
from robattr.engine.processes import World, restarts
from robattr.errors import CheckpointError, InvalidInput
from robattr.training import checkpoint
from robattr.training.config import TrainConfig


@dataclass(frozen=True)
class RunDirectory:
    """The paths of a run."""

    path: Path

    @property
    def begun(self) -> bool:
        """Whether there is anything to lose: more than a start that failed before its first checkpoint left behind."""
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
        """The mean and std that belong before the weights; only a hardened model of a user's own may have any."""
        return self.path / "preprocessing.json"

    def check_bare(self, remedy: str) -> None:
        """Refuse weights that belong behind a preprocessing, where none is applied and they would answer wrongly."""
        if self.preprocessing.is_file():
            raise InvalidInput(
                f"{self.path} was hardened behind a preprocessing, which its weights do not hold: {remedy}"
            )


@contextmanager
def claim(path: Path, run: TrainConfig, *, world: World, resume: bool) -> Iterator[RunDirectory]:
    """Make, or with `resume` reopen, the directory of `run`, and hold its lock while it is written to.

    Only the leader touches the disk. An existing run is never overwritten; one of another configuration, or of
    more steps, is never continued.
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
        raise CheckpointError(f"cannot make the directory {path} ({error.strerror}): choose another --out") from error
    with locked(path):
        kept = checkpoint.listed(here.checkpoints)
        if kept and (differing := checkpoint.differences(run, _config_or(here, run))):
            raise CheckpointError(
                f"{path} holds a run of another configuration ({differing}): choose another --out, and "
                f"start from these weights with --set warm_start={path}"
            )
        if kept and kept[-1].step > run.steps:
            raise CheckpointError(
                f"{path} has {kept[-1].step} steps behind it, more than the {run.steps} asked for: continue it with "
                f"--set steps={kept[-1].step} or more, or choose another --out"
            )
        write_json(here.config, run.as_dict())
        write_json(here.environment, _with_past(here.environment, environment(world)))
        yield here


def read_config(here: RunDirectory) -> dict[str, Any]:
    """The resolved configuration of a run."""
    try:
        config = json.loads(here.config.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{here.path} is not a run directory: it has no {here.config.name}") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{here.config} is damaged: {error}") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{here.config} is damaged: expected keys and values")
    return config


def _config_or(here: RunDirectory, run: TrainConfig) -> dict[str, Any]:
    """The configuration on disk; where it is lost, that of `run`: every checkpoint holds its own as well."""
    try:
        return read_config(here)
    except CheckpointError:
        return run.as_dict()


def environment(world: World) -> dict[str, Any]:
    """What a reader needs to run it again: versions, the state of the source, the devices, the command."""
    gpu = torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else None
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["robattr", *sys.argv[1:]]),
        "versions": {
            "robattr": robattr.__version__,
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


def _with_past(path: Path, now: dict[str, Any]) -> dict[str, Any]:
    """The environment a run began in, with those it was resumed in."""
    with suppress(OSError, UnicodeDecodeError, json.JSONDecodeError):
        first = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(first, dict):
            return {**first, "resumed": [*first.get("resumed", []), now]}
    return now


def _git_state() -> str | None:
    """The commit of robattr's own source (`-dirty` if it was changed), or None outside a checkout of it."""
    source = Path(robattr.__file__)
    try:
        subprocess.run(
            ["git", "ls-files", "--error-unmatch", source.name],
            cwd=source.parent,
            capture_output=True,
            check=True,
            timeout=10,
        )
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            cwd=source.parent, capture_output=True, check=True, text=True, timeout=10,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return described.stdout.strip()
