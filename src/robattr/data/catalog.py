"""The datasets by name, and where they lie."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from robattr.data.dataset import Dataset
from robattr.data.dataset_info import DatasetInfo
from robattr.data.fashion_mini import FASHION_MINI
from robattr.data.flower import FLOWER
from robattr.data.gtsrb import GTSRB
from robattr.data.mnist import FASHION_MNIST, MNIST
from robattr.errors import InvalidInput, nearest

CARDS = {info.name: info for info in (MNIST, FASHION_MNIST, GTSRB, FLOWER, FASHION_MINI)}


def names() -> tuple[str, ...]:
    """The names `load` knows."""
    return tuple(CARDS)


def info(name: str) -> DatasetInfo:
    """The card of a dataset."""
    if name not in CARDS:
        raise InvalidInput(f"no dataset is called {name!r}: {nearest(name, CARDS)}")
    return CARDS[name]


def root(data_dir: str | Path | None = None) -> Path:
    """The folder that holds a folder for each dataset: `data_dir`, else $ROBATTR_DATA, else the user's cache."""
    chosen = data_dir or os.environ.get("ROBATTR_DATA")
    return Path(chosen).expanduser() if chosen else _user_cache() / "robattr" / "data"


def _user_cache() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def load(name: str, root: str | Path | None = None) -> Dataset:
    """Load a dataset by name from `root` (see `robattr.data.root`), checking every file's content."""
    return info(name).read(folder(name, root))


def folder(name: str, data_dir: str | Path | None = None) -> Path:
    """Where the files of a dataset belong."""
    return root(data_dir) / info(name).name
