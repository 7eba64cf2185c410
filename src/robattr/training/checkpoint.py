"""Checkpoints: one atomic file each, named by its step and the hash of its content.

    RUN/checkpoints/step-000000500-9f86d081884c7d65.pt

The file is what `torch.save` writes of tensors and plain values, so `torch.load(path, weights_only=True)`
reads it. It holds the parameters and buffers, the optimiser, the step, γ of a distributional objective, and
the configuration. There is no other state: the learning rate, the ramps, the batch and every random draw are
functions of (seed, step).
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from robattr._version import __version__
from robattr.engine.files import write_atomically
from robattr.errors import CheckpointError
from robattr.training.config import TrainConfig

FORMAT = 1  # raise it when an older robattr could not continue from what this one writes
NAME = re.compile(r"step-(\d{9})-([0-9a-f]{16})\.pt")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint file, not yet opened."""

    path: Path
    step: int
    digest: str


def listed(folder: Path) -> list[Checkpoint]:
    """The checkpoints in `folder`, oldest first."""
    names = [(path, NAME.fullmatch(path.name)) for path in folder.glob("step-*.pt")]
    found = [Checkpoint(path, int(match[1]), match[2]) for path, match in names if match]
    return sorted(found, key=lambda checkpoint: (checkpoint.step, checkpoint.path.stat().st_mtime_ns))


def pack(state: Mapping[str, Any], run: TrainConfig) -> bytes:
    """The content of a checkpoint: `state` with the configuration and version that wrote it."""
    buffer = io.BytesIO()
    torch.save({"format": FORMAT, "version": __version__, "config": run.as_dict(), **state}, buffer)
    return buffer.getvalue()


def unpack(content: bytes) -> dict[str, Any]:
    """The state that `pack` packed, on the CPU."""
    state: dict[str, Any] = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    return state


def save(folder: Path, content: bytes, *, step: int, keep: int) -> Path:
    """Write a checkpoint so that a reader finds all of it or nothing, then drop all but the last `keep`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{step:09d}-{_digest(content)}.pt"
    write_atomically(path, content)
    for old in [found for found in listed(folder) if found.step < step][: -(keep - 1)]:
        old.path.unlink(missing_ok=True)
    for cut_short in folder.glob(".step-*.tmp"):  # by a process that was killed while it wrote
        cut_short.unlink(missing_ok=True)
    return path


def forget_from(folder: Path, step: int) -> None:
    """Remove the checkpoints of `step` and later, if earlier ones remain."""
    found = listed(folder)
    if any(earlier.step < step for earlier in found):
        for late in found:
            if late.step >= step:
                late.path.unlink(missing_ok=True)


def load_latest(folder: Path, run: TrainConfig) -> tuple[bytes | None, list[str]]:
    """The newest checkpoint that can continue `run` (None: there are none), and why newer ones were passed over."""
    refused: list[str] = []
    for checkpoint in reversed(listed(folder)):
        try:
            return load(checkpoint, run), refused
        except CheckpointError as error:
            refused.append(str(error))
    if refused:
        raise CheckpointError(
            f"no checkpoint in {folder} can continue this run: {'; '.join(refused)}. Start again in another directory"
        )
    return None, refused


def load(checkpoint: Checkpoint, run: TrainConfig | None = None) -> bytes:
    """The content of a checkpoint, proven whole, readable by this version and (if given) of the same `run`."""
    name = checkpoint.path.name
    content = checkpoint.path.read_bytes()
    if _digest(content) != checkpoint.digest:
        raise CheckpointError(f"{name} is damaged: its content does not have the hash its name says")
    state = unpack(content)
    if state["format"] > FORMAT:
        raise CheckpointError(
            f"{name} was written by robattr {state['version']} (checkpoint format {state['format']}), newer than "
            f"this one ({__version__}, format {FORMAT}): upgrade robattr to use it"
        )
    if run is not None and (differing := differences(run, state["config"])):
        raise CheckpointError(f"{name} is from another configuration: {differing}")
    return content


def differences(run: TrainConfig, config: Mapping[str, Any]) -> str:
    """The keys that decide the weights and differ between `run` and a stored configuration: `m is 10, was 50`.

    A key that the configuration does not have is younger than it, and had no effect then: its default.
    """
    was = {**TrainConfig().as_dict(), **config}
    return ", ".join(
        f"{key} is {value!r}, was {was[key]!r}" for key, value in run.decisive().items() if was[key] != value
    )


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
