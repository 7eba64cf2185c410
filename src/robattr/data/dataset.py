"""Split, Dataset and DatasetInfo: stored images, labels, the map to what a model sees, and where the files come from.

Shapes: N examples, C channels, H × W pixels. Stored images are uint8 (a quarter of the memory, and exact);
float32 images, which only a user's own data have, are already within `bounds`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robattr.data.images import equalise
from robattr.errors import DataError, InvalidInput, nearest

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True, eq=False)
class Split:
    """Part of a dataset, in canonical order.

    images: (N, C, H, W) uint8, or float32 within the dataset's bounds; float32 inputs may have any shape (N, ...), a
    table's (N, features) for instance.
    labels: (N,) int64.  ids: (N,) int64, the example's index in the dataset's own files.
    """

    images: Tensor
    labels: Tensor
    ids: Tensor

    def __post_init__(self) -> None:
        n = len(self.images)
        pixels = self.images.ndim == 4 and self.images.dtype == torch.uint8
        if not pixels and (self.images.ndim < 2 or self.images.dtype != torch.float32):
            raise InvalidInput(
                f"expected images (N, C, H, W) of uint8, or float32 inputs (N, ...), got {tuple(self.images.shape)} of "
                f"{self.images.dtype}: convert them first"
            )
        for name, value in (("labels", self.labels), ("ids", self.ids)):
            if value.shape != (n,) or value.dtype != torch.int64:
                raise InvalidInput(f"expected {name} ({n},) of int64, got {tuple(value.shape)} of {value.dtype}")

    def __repr__(self) -> str:
        return f"Split({len(self):,} × {tuple(self.images.shape[1:])} {str(self.images.dtype).removeprefix('torch.')})"

    @staticmethod
    def of_arrays(images: NDArray[Any], labels: NDArray[Any], ids: NDArray[Any] | None = None) -> Split:
        """A copy of grey (N, H, W) or colour (N, H, W, C) uint8 images; ids default to positions."""
        chw = images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
        numbers = np.arange(len(labels)) if ids is None else ids
        return Split(
            torch.from_numpy(np.array(chw, order="C")),
            torch.from_numpy(labels.astype(np.int64)),
            torch.from_numpy(numbers.astype(np.int64)),
        )

    def __len__(self) -> int:
        return len(self.images)

    def take(self, index: Tensor) -> Split:
        """The examples at `index`, an int64 (or bool) tensor, in its order."""
        return Split(self.images[index], self.labels[index], self.ids[index])

    def first(self, n: int) -> Split:
        """The first n examples (all, where there are fewer), sharing this split's memory."""
        if n < 0:
            raise InvalidInput(f"expected a number of examples >= 0, got {n}")
        return Split(self.images[:n], self.labels[:n], self.ids[:n])

    def to(self, device: torch.device | str) -> Split:
        """The same examples on `device`."""
        return Split(self.images.to(device), self.labels.to(device), self.ids.to(device))


@dataclass(frozen=True, eq=False)
class Dataset:
    """Three splits, and how a model sees their images.

    bounds: the range of the pixels a model sees, and so of ε, step sizes and the reference image.
    equalised: whether `pixels` equalises each channel's histogram first (GTSRB).
    per_class: > 0 when training is balanced to that many examples a class by augmented copies (GTSRB, Flower).
    skipped: the files of a folder that could not be read as images.
    """

    name: str
    train: Split
    validation: Split
    test: Split
    classes: tuple[str, ...]
    bounds: tuple[float, float]
    equalised: bool = False
    per_class: int = 0
    skipped: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        low, high = self.bounds
        if not low < high:
            raise InvalidInput(f"expected bounds (low, high) with low < high, got {self.bounds}")
        for name in SPLITS:
            split: Split = getattr(self, name)
            if len(split) and not 0 <= int(split.labels.min()) <= int(split.labels.max()) < len(self.classes):
                raise InvalidInput(
                    f"{self.name}: expected {name} labels in 0..{len(self.classes) - 1}, got "
                    f"{int(split.labels.min())}..{int(split.labels.max())}: number classes from 0, and name every "
                    "class in `classes`"
                )

    @cached_property
    def digest(self) -> str:
        """A hash of the classes and the training split: a training continues on no other ones."""
        about = self.classes, self.bounds, self.equalised, self.per_class, tuple(self.train.images.shape)
        found = hashlib.sha256(repr(about).encode())
        for stored in (self.train.images, self.train.labels):
            found.update(stored.cpu().contiguous().numpy().data)
        return found.hexdigest()[:16]

    def __repr__(self) -> str:
        splits = ", ".join(f"{name}={getattr(self, name)}" for name in SPLITS)
        return f"Dataset({self.name!r}, {splits}, {len(self.classes)} classes, bounds={self.bounds})"

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of one image."""
        c, h, w = self.train.images.shape[1:]
        return c, h, w

    def split(self, name: str) -> Split:
        """The split called "train", "validation" or "test"."""
        if name not in SPLITS:
            raise InvalidInput(f"no split is called {name!r}: {nearest(name, SPLITS)}")
        found: Split = getattr(self, name)
        return found

    def pixels(self, images: Tensor) -> Tensor:
        """Stored images -> what the model sees: float32 in bounds, (N, C, H, W), on the images' device.

        uint8 u becomes low + u · (high − low)/255, in float32, as the reference's loaders do.
        """
        if images.dtype != torch.uint8:
            return images.float()
        low, high = self.bounds
        x = (equalise(images) if self.equalised else images).float()
        if high - low != 255:
            x = x * ((high - low) / 255)
        return x if low == 0 else x + low

    def examples(self, split_name: str, n: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """(x, y, ids): pixels, labels and ids of the first n examples of a split (None: all), in canonical order."""
        split = self.split(split_name)
        split = split if n is None else split.first(n)
        return self.pixels(split.images), split.labels, split.ids

    def full(self) -> Dataset:
        """Train and validation as one training set, and no validation: for the last run, once every choice is made.

        For Flower this is the paper's training set of 1,224 images. Done once, it changes nothing.
        """
        if not len(self.validation):
            return self
        parts = [self.train, self.validation]
        train = Split(*(torch.cat([getattr(p, f) for p in parts]) for f in ("images", "labels", "ids")))
        return replace(self, train=train, validation=self.validation.first(0))


@dataclass(frozen=True)
class Remote:
    """A file to download: its name, its mirrors in the order to try, what identifies it, and a check of that."""

    file: str
    urls: tuple[str, ...]
    identity: str
    check: Callable[[Path], object]


@dataclass(frozen=True)
class DatasetInfo:
    """What is known about a dataset by name.

    sizes: examples in (train, validation, test).  shape: (C, H, W).  megabytes: of the download.
    remotes: its files; none for an embedded dataset.  prepared: files that replace the downloads.
    read: loads the dataset from its folder.
    """

    name: str
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
        """The error for missing files: which, where, and how to get them."""
        return DataError(
            f"{self.name}: no {' or '.join(files)} in {folder}: run `robattr data fetch {self.name}`, put the file "
            "there by hand, or name another place with --data-dir or ROBATTR_DATA"
        )
