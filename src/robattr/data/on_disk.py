"""Looking at what lies on disk: a quick glance for `list`, the whole check for `verify`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from robattr.data.catalog import folder, info
from robattr.data.dataset import SPLITS
from robattr.errors import DataError


@dataclass(frozen=True)
class DataStatus:
    """One dataset on disk. state: "embedded", "present", "missing", "verified" or "damaged"; problem: why, or empty."""

    name: str
    where: Path | None
    state: str
    problem: str = ""


def status(name: str, root: str | Path | None = None) -> DataStatus:
    """Whether the files of a dataset are there; nothing is read."""
    chosen = info(name)
    where = folder(name, root)
    if not chosen.remotes:
        return DataStatus(name, None, "embedded")
    downloads = [remote.file for remote in chosen.remotes]
    there = all((where / f).exists() or (where / f.removesuffix(".gz")).exists() for f in downloads)
    there = there or (bool(chosen.prepared) and all((where / f).exists() for f in chosen.prepared))
    return DataStatus(name, where, "present" if there else "missing")


def verify(name: str, root: str | Path | None = None) -> DataStatus:
    """Load a dataset, which checks every file, and compare the sizes of its splits."""
    seen = status(name, root)
    if seen.state == "missing":
        return seen
    chosen = info(name)
    try:
        dataset = chosen.read(folder(name, root))
        sizes = tuple(len(dataset.split(split)) for split in SPLITS)
        if sizes != chosen.sizes:
            raise DataError(f"{name}: expected splits of {chosen.sizes}, got {sizes}")
    except DataError as error:
        return DataStatus(name, seen.where, "damaged", str(error))
    return DataStatus(name, seen.where, "verified")
