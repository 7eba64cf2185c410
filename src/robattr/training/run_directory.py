"""The run directory: its files, its lock, and a record of the environment.

RUN/config.json  environment.json  metrics.jsonl  checkpoints/  model.safetensors  records/  certificates/  search.json
"""

from __future__ import annotations

import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
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


class RunDirectory:
    """The files of a run, and its lock while this process trains it."""

    def __init__(self, path: Path, lock: Lock | None = None) -> None:
        self.path, self.lock = path, lock
        self.config = path / "config.json"
        self.environment = path / "environment.json"
        self.metrics = path / "metrics.jsonl"
        self.checkpoints = path / "checkpoints"
        self.weights = path / "model.safetensors"
        self.records = path / "records"
        self.certificates = path / "certificates"
        self.scores = path / "sweep.json"  # of a point of a sweep
        self.search = path / "search.json"  # how the settings were found
        self.wandb = path / "wandb.id"  # of its run at Weights & Biases
        self.preprocessing = path / "preprocessing.json"  # mean and std, only of a user's hardened model

    @property
    def occupied(self) -> bool:
        """Whether the directory contains more than the files of a run killed before its first checkpoint."""
        if not self.path.is_dir():
            return self.path.exists()
        own = {self.config, self.environment, self.preprocessing, self.scores, self.search}
        visible = {entry for entry in self.path.iterdir() if not entry.name.startswith(".")} - own
        return any(entry != self.checkpoints or any(entry.glob("[!.]*")) for entry in visible)

    @property
    def is_run(self) -> bool:
        """Whether a training wrote this directory."""
        try:
            return {"recipe", "method"} <= read_config(self).keys()
        except (CheckpointError, OSError):  # missing or damaged
            return bool(checkpoint.listed(self.checkpoints))

    def check_held(self) -> None:
        """Raise if the directory that this process locked was removed."""
        if self.lock is not None:
            self.lock.check()

    def check_bare(self, remedy: str) -> None:
        """Reject a run whose model needs an input normalisation, for callers that do not apply it."""
        if self.preprocessing.is_file():
            raise InvalidInput(f"the weights of {self.path} need their own preprocessing.json: {remedy}")

    def check_same(self, run: TrainConfig, remedy: str) -> None:
        """Reject the directory of a run of another configuration."""
        if self.config.exists() and (differing := checkpoint.differences(run, read_config(self))):
            raise CheckpointError(f"{self.path} contains a run of another configuration ({differing}): {remedy}")

    def check_own(self) -> None:
        """Reject a file, or the directory of something else."""
        if self.occupied and not self.is_run:
            raise CheckpointError(f"{self.path} exists and is not a run directory: choose another --out")

    def check_free(self, purpose: str) -> None:
        """Reject the directory of a run as the folder of a sweep or hardening, which has runs of its own inside."""
        if self.is_run:
            raise CheckpointError(f"{self.path} is the directory of a run: choose another folder for the {purpose}")

    def discard(self) -> None:
        """Delete the run: checkpoints, weights, logs, and the evaluations and certificates of its weights.

        Other files stay. What another process is measuring is not deleted: InUse.
        """
        measured = (self.records, self.certificates)
        with ExitStack() as held:
            for lock in [lock for folder in measured for lock in folder.glob(".*.lock")]:
                held.enter_context(locked(lock.parent, lock.name))
            for folder in (*measured, self.checkpoints, self.path / "tensorboard"):
                shutil.rmtree(folder, ignore_errors=True)
            for file in (
                self.weights, self.metrics, self.scores, self.search, self.environment, self.config, self.wandb
            ):  # fmt: skip
                file.unlink(missing_ok=True)


def discard(path: Path) -> None:
    """Delete the run in the directory `path`, if there is one; a directory of something else is refused."""
    here = RunDirectory(path)
    here.check_own()
    if path.is_dir():
        with locked(path):
            here.discard()


@contextmanager
def claim(path: Path, run: TrainConfig, *, world: World, fresh: bool) -> Iterator[RunDirectory]:
    """Create or reopen the directory of `run`, and hold its lock; with `fresh`, discard the run in it first.

    Only the leader touches the disk. A run is never continued with another configuration or fewer steps, and a folder
    that has no run is never written to.
    """
    here = RunDirectory(path)
    if not world.leads:
        yield here
        return
    here.check_own()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"cannot create the directory {path} ({error.strerror}): choose another --out") from error
    with locked(path) as lock:
        if fresh and not restarts():  # a worker that torchrun restarts continues
            here.discard()
            if run.recipe != "harden":  # which has just written its own
                here.preprocessing.unlink(missing_ok=True)
        kept = checkpoint.listed(here.checkpoints)
        if not kept and here.occupied and not fresh:
            raise CheckpointError(
                f"{path} contains a run without a checkpoint to continue from: choose another --out, or discard that "
                "run with --fresh"
            )
        if kept:
            start = f"--set warm_start={path} starts from these weights"
            here.check_same(run, f"choose another --out ({start}), or discard that run with --fresh")
        if kept and kept[-1].step > run.steps:
            raise CheckpointError(
                f"{path} has already done {kept[-1].step} steps, more than steps={run.steps}: continue it with "
                f"--set steps={kept[-1].step} or more, choose another --out, or discard that run with --fresh"
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
        "command": _command(),
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


def _command() -> str:
    """What was typed: `robattr …`, `python -m module …` or `python script.py …`; also in a process that it spawned."""
    spec, program = getattr(sys.modules["__main__"], "__spec__", None), Path(sys.argv[0])
    module = "" if spec is None or spec.origin != sys.argv[0] else spec.name.removesuffix(".__main__")
    ours = module == "robattr" or program.stem == "robattr" or program.parts[-2:] == ("robattr", "__main__.py")
    start = ["robattr"] if ours else ["python", "-m", module] if module else ["python", program.name]
    return shlex.join([*start, *sys.argv[1:]])


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
