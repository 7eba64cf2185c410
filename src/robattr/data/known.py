"""Names of the datasets; without torch, for readers of runs and for shell completion."""

from __future__ import annotations

from pathlib import Path

NAMES = ("mnist", "fashion-mnist", "gtsrb", "flower", "fashion-mini")


def name_of(folder: Path) -> str:
    """The dataset name of a folder; a folder called mnist must not be taken for MNIST."""
    return f"folder {folder.name}" if folder.name in NAMES else folder.name
