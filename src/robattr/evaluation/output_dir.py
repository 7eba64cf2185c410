"""Where an evaluation is written, the processes that share the work, and the provenance in its summary."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from robattr._version import __version__
from robattr.engine.files import Lock, locked
from robattr.evaluation.records import discard


@dataclass(frozen=True)
class OutputDir:
    """Where an evaluation is written, and this process's share of the work.

    With `fresh`, earlier files of the same protocol and map are deleted, after all checks have passed.
    """

    folder: Path
    rank: int = 0
    world: int = 1
    fresh: bool = False

    def wait(self) -> None:
        """Wait for the other processes."""
        if self.world > 1:
            distributed.barrier()

    @contextmanager
    def locked(self, path: Path) -> Iterator[Lock]:
        """Hold the lock of the records at `path`, on every process; with `fresh`, delete what is there.

        The first process takes it alone, because a process of an earlier command may still run. Then all share it.
        """
        name = f".{path.stem}.lock"
        with ExitStack() as stack:
            if self.rank == 0:
                lock = stack.enter_context(locked(path.parent, name))
                if self.fresh:
                    discard(path)
                if self.world > 1:
                    lock.share()
            self.wait()
            if self.rank != 0:
                lock = stack.enter_context(locked(path.parent, name, shared=True))
            self.wait()
            yield lock


def provenance(device: torch.device, seconds: float) -> dict[str, Any]:
    """Versions, device, time of day and duration, for a summary."""
    return {
        "versions": {"robattr": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
    }
