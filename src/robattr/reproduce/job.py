"""One run to train and to evaluate, and how much of that is done."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from robattr.attacks.maps import by_name
from robattr.engine.processes import choose_device
from robattr.errors import CheckpointError
from robattr.evaluation import for_dataset
from robattr.evaluation.protocol import named
from robattr.evaluation.run import OutputDir, evaluate
from robattr.runs import open_run
from robattr.training import checkpoint
from robattr.training.config import TrainConfig
from robattr.training.loop import Outcome, train
from robattr.training.run_directory import RunDirectory, read_config

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Job:
    """Train `run` in `path`; then attack `map` on the first `examples` of the test split, by `paper` or `strict`.

    No examples: another job starts from its weights, and nothing is attacked.
    """

    run: TrainConfig
    path: Path
    map: str
    examples: int
    protocol: str = "paper"

    @property
    def name(self) -> str:
        return f"{self.run.dataset}/{self.path.name}"

    @property
    def trained(self) -> bool:
        """Whether the weights are there. A folder that holds another run is refused, not overwritten."""
        here = RunDirectory(self.path)
        if not here.config.exists():
            return False
        if differing := checkpoint.differences(self.run, read_config(here)):
            raise CheckpointError(
                f"{self.path} holds a run of another configuration ({differing}): move it away, or choose another --out"
            )
        return here.weights.exists()

    @property
    def evaluated(self) -> bool:
        """Whether a summary of as many examples is there."""
        summary = self.path / "records" / f"{self.protocol}-{self.map}.json"
        with suppress(OSError, ValueError, KeyError):
            return bool(json.loads(summary.read_text(encoding="utf-8"))["examples"] == self.examples)
        return False

    def starts_from(self, other: Job) -> bool:
        return self.run.warm_start == other.path.as_posix()

    def train(self, *, device: str, data_dir: Path | None) -> Outcome:
        """Train, or continue; what a signal interrupts is kept."""
        return train(self.run, self.path, device=device, data_dir=data_dir, resume=True)

    def evaluate(self, *, device: str, data_dir: Path | None, progress: Progress) -> None:
        """Attack and measure, or continue; the records are written into the run."""
        opened = open_run(self.path, data_dir=data_dir)
        where = choose_device(device)
        protocol = named(self.protocol, for_dataset(opened.data))
        x, y, ids = opened.data.examples("test", self.examples)
        words = ["robattr", "evaluate", self.path.as_posix(), "--maps", self.map, "--examples", str(self.examples)]
        words += ["--protocol", self.protocol] if self.protocol != "paper" else []
        evaluate(
            opened.model.to(where),
            x,
            y,
            protocol=protocol,
            map=by_name(self.map, N=protocol.N, bounds=protocol.bounds),
            ids=ids.tolist(),
            out=OutputDir(self.path / "records"),
            metadata={**opened.about(split="test", command=shlex.join(words)), "run": self.path.name},
            precision="tf32",  # as `robattr evaluate` does where nothing else is asked for
            compiled=where.type == "cuda",
            progress=progress,
        )
