"""Where else a run's records go: TensorBoard, Weights & Biases."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from robattr._extras import need
from robattr.engine.files import write_atomically
from robattr.training.config import TrainConfig
from robattr.training.run_directory import RunDirectory


class Tracker(Protocol):
    """Takes the numbers of a step."""

    def log(self, numbers: Mapping[str, float], step: int) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Event files in RUN/tensorboard; those of steps that a resumed run repeats are dropped."""

    def __init__(self, path: Path, *, step: int) -> None:
        need("tensorboard", extra="track")
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(path / "tensorboard"), purge_step=step + 1)

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        for key, value in numbers.items():
            self._writer.add_scalar(key, value, step)

    def close(self) -> None:
        self._writer.close()


class WandB:
    """A run of Weights & Biases, the same one after a resumption (its id is in RUN/wandb.id).

    W&B's own variables apply: WANDB_PROJECT (default: robattr), WANDB_MODE=offline, …
    """

    def __init__(self, path: Path, config: Mapping[str, Any]) -> None:
        wandb = need("wandb", extra="wandb")
        file = RunDirectory(path).wandb
        if not file.exists():
            write_atomically(file, secrets.token_hex(8).encode())
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "robattr"), dir=str(path), id=file.read_text("utf-8"),
            name=path.name, config=dict(config), resume="allow",
        )  # fmt: skip

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        self._run.log(dict(numbers), step=step)

    def close(self) -> None:
        self._run.finish()


def trackers(path: Path, run: TrainConfig, *, step: int) -> list[Tracker]:
    """The trackers that a run asks for."""
    found: list[Tracker] = []
    if run.tensorboard:
        found.append(TensorBoard(path, step=step))
    if run.wandb:
        found.append(WandB(path, run.as_dict()))
    return found
