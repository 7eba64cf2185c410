"""A dataset's card: what it is called, what it holds, which files it is read from and where they can be had."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from robattr.data.dataset import Dataset
from robattr.errors import DataError


@dataclass(frozen=True)
class Remote:
    """A file to download: its name, its mirrors in the order to try, what identifies it, and the check of that."""

    file: str
    urls: tuple[str, ...]
    identity: str
    check: Callable[[Path], None]


@dataclass(frozen=True)
class DatasetInfo:
    """One dataset; `read` loads it from its own folder, `remotes` is empty for what the package embeds.

    sizes: examples in (train, validation, test).  shape: (C, H, W).  megabytes: of the download.
    prepared: files that serve in place of the downloads.
    """

    name: str
    title: str
    classes: tuple[str, ...]
    sizes: tuple[int, int, int]
    shape: tuple[int, int, int]
    megabytes: float
    licence: str
    citation: str
    remotes: tuple[Remote, ...]
    read: Callable[[Path], Dataset]
    prepared: tuple[str, ...] = ()

    def missing(self, folder: Path, files: Sequence[str]) -> DataError:
        """The error for files that are not there: which, where, and how to get them."""
        return DataError(
            f"{self.name}: no {' or '.join(files)} in {folder}: run `robattr data fetch {self.name}`, put the file "
            "there by hand, or name another place with --data-dir or ROBATTR_DATA"
        )
