"""Checkpoints: one atomic file each, named by its step and the hash of its content.

    RUN/checkpoints/step-000000500-9f86d081884c7d65.pt

A file contains tensors and plain values, so `torch.load(path, weights_only=True)` reads it: the parameters and
buffers, the optimiser, the step, γ of a distributional objective, the averaged weights, a hash of the data, and the
configuration. Of an objective of the user's, the configuration has the text and a hash of its source. Nothing else is
needed: the learning rate, the ramps, the batch and every random number are functions of (seed, step).
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

from robattr._form import check_form
from robattr._version import __version__
from robattr.engine.files import remove_unfinished, write_atomically
from robattr.errors import CheckpointError
from robattr.models.architecture import RENAMED
from robattr.training.config import TrainConfig

FORMAT = 1  # increase it when older versions cannot continue from new files
FORM = {
    "format": int, "version": str, "step": int, "config": {"model?": str}, "model": dict, "optimizer?": dict,
    "averaged?": (dict, None), "data?": str,
}  # fmt: skip
WORDS = {"custom": "the objective", "custom_source": "the hash of its source"}
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
    """The content of a checkpoint file: `state`, the configuration and the version."""
    buffer = io.BytesIO()
    torch.save({"format": FORMAT, "version": __version__, "config": run.as_dict(), **state}, buffer)
    return buffer.getvalue()


def unpack(content: bytes) -> dict[str, Any]:
    """The state in the content of a checkpoint file, on the CPU."""
    state: dict[str, Any] = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    return state


def save(folder: Path, content: bytes, *, step: int, keep: int) -> Path:
    """Write a checkpoint atomically, then remove all but the last `keep`."""
    folder.mkdir(exist_ok=True)
    path = folder / f"step-{step:09d}-{_digest(content)}.pt"
    write_atomically(path, content)
    tidy(folder, step=step, keep=keep)
    return path


def tidy(folder: Path, *, step: int, keep: int) -> None:
    """Keep the checkpoint of `step` and the `keep` − 1 before it; remove older ones and what killed processes left."""
    for old in [found for found in listed(folder) if found.step < step][: -(keep - 1)]:
        old.path.unlink(missing_ok=True)
    remove_unfinished(folder)


def remove_from(folder: Path, step: int) -> None:
    """Remove the checkpoints of `step` and later, if earlier ones remain."""
    found = listed(folder)
    late = [checkpoint for checkpoint in found if checkpoint.step >= step]
    for checkpoint in late if len(late) < len(found) else []:
        checkpoint.path.unlink(missing_ok=True)


def load_latest(folder: Path, run: TrainConfig) -> tuple[bytes | None, list[str]]:
    """The newest checkpoint that can continue `run` (None: the folder has none), and why newer ones cannot."""
    refused: list[str] = []
    for checkpoint in reversed(listed(folder)):
        try:
            return load(checkpoint, run), refused
        except CheckpointError as error:
            refused.append(str(error))
    if refused:
        raise CheckpointError(
            f"no checkpoint in {folder} can continue this run: {'; '.join(refused)}. Start a new run with another --out"
        )
    return None, refused


def load(checkpoint: Checkpoint, run: TrainConfig | None = None) -> bytes:
    """The content of a checkpoint; raises if it is damaged, too new, or from another configuration than `run`."""
    name = checkpoint.path.name
    content = checkpoint.path.read_bytes()
    if _digest(content) != checkpoint.digest:
        raise CheckpointError(f"{name} is damaged: its content does not match the hash in its name")
    try:
        state = unpack(content)
        check_form(state, FORM)
    except Exception as cause:  # foreign bytes can raise any error
        raise CheckpointError(f"{name} is damaged: {str(cause).partition(chr(10))[0]}") from cause
    if state["format"] > FORMAT:
        raise CheckpointError(
            f"{name} was written by robattr {state['version']} (checkpoint format {state['format']}), this is "
            f"{__version__} (format {FORMAT}): upgrade robattr to use it"
        )
    if run is not None and (differing := differences(run, state["config"])):
        raise CheckpointError(f"{name} is from another configuration: {differing}")
    return content


def differences(run: TrainConfig, config: Mapping[str, Any]) -> str:
    """The decisive settings in which `run` differs from a stored configuration: `m is 10, was 50`.

    A key that is missing there did not exist yet, so it had its default value.
    """
    was = {**TrainConfig().as_dict(), **config}
    was["model"] = RENAMED.get(was["model"], was["model"])
    return ", ".join(
        f"{WORDS.get(key, key)} is {value!r}, was {was[key]!r}"
        for key, value in run.decisive().items()
        if was[key] != value
    )


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
