"""The datasets by name: where their files are, loading, and checking them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from robattr.data.dataset import SPLITS, Dataset, DatasetInfo
from robattr.data.fashion_mini import FASHION_MINI
from robattr.data.flower import FLOWER
from robattr.data.gtsrb import GTSRB
from robattr.data.mnist import FASHION_MNIST, MNIST
from robattr.errors import DataError, InvalidInput, nearest

DATASETS = {info.name: info for info in (MNIST, FASHION_MNIST, GTSRB, FLOWER, FASHION_MINI)}


def names() -> tuple[str, ...]:
    """The names `load` knows."""
    return tuple(DATASETS)


def info(name: str) -> DatasetInfo:
    """What is known about a dataset."""
    if name not in DATASETS:
        raise InvalidInput(f"unknown dataset {name!r}: {nearest(name, DATASETS)}")
    return DATASETS[name]


def root(data_dir: str | Path | None = None) -> Path:
    """The parent of all dataset folders: `data_dir`, else $ROBATTR_DATA, else the user's cache."""
    chosen = data_dir or os.environ.get("ROBATTR_DATA")
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(chosen or f"{cache}/robattr/data").expanduser()


def load(name: str, root: str | Path | None = None) -> Dataset:
    """Load a dataset by name from `root` (see `robattr.data.root`), checking every file's content.

    >>> mini = load("fashion-mini")
    >>> len(mini.train), len(mini.validation), len(mini.test)
    (5000, 500, 1000)
    """
    return info(name).read(folder(name, root))


def folder(name: str, data_dir: str | Path | None = None) -> Path:
    """The folder of a dataset's files."""
    return root(data_dir) / info(name).name


@dataclass(frozen=True)
class DataStatus:
    """One dataset on disk. state: "embedded", "present", "missing", "verified" or "damaged"; problem: the reason."""

    name: str
    where: Path | None
    state: str
    problem: str = ""


def status(name: str, root: str | Path | None = None) -> DataStatus:
    """Whether the files of a dataset exist; none is read."""
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
