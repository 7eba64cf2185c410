"""fashion-mini: a class-balanced subset of Fashion-MNIST inside the package, for runs without any download.

5,000 / 500 / 1,000 images: of each class the first 500 among the last 55,000 training images, the first 50
among the first 5,000 (so validation is part of Fashion-MNIST's validation set), and the first 100 of the test
set; ids are the original indices.
"""

from __future__ import annotations

import io
import lzma
from contextlib import suppress
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

import numpy as np

from robattr.data.dataset import SPLITS, Dataset, DatasetInfo, Split
from robattr.data.files import Arrays, sha256
from robattr.data.mnist import CLOTHES
from robattr.errors import DataError

FILE = "fashion-mini.npz.xz"
CONTENT = "c4638a8cd37fdc24056e1e643654ea3395784b5b6834af888487c3e11db1683f"  # SHA-256 of the unpacked .npz


def read(folder: Path) -> Dataset:
    """The embedded dataset; `folder` is ignored."""
    del folder
    arrays = _unpack(files("robattr.data").joinpath(f"embedded/{FILE}").read_bytes())
    train, validation, test = (
        Split.of_arrays(*(arrays[f"{name}_{part}"] for part in ("images", "labels", "ids"))) for name in SPLITS
    )
    return Dataset("fashion-mini", train, validation, test, classes=CLOTHES, bounds=(0.0, 1.0))


def _unpack(packed: bytes) -> Arrays:
    with np.load(io.BytesIO(_content(packed)), allow_pickle=False) as stored:
        return dict(stored)


@lru_cache(maxsize=1)
def _content(packed: bytes) -> bytes:
    """The .npz, unpacked once in a process: it takes 0.3 s."""
    with suppress(lzma.LZMAError):
        content = lzma.decompress(packed)
        if sha256(content) == CONTENT:
            return content
    raise DataError(f"the embedded {FILE} is damaged: install robattr again")


FASHION_MINI = DatasetInfo(
    name="fashion-mini",
    classes=CLOTHES,
    sizes=(5_000, 500, 1_000),
    shape=(1, 28, 28),
    megabytes=0,
    licence="MIT",
    citation="Xiao, Rasul, Vollgraf: Fashion-MNIST, a novel image dataset for benchmarking, 2017",
    remotes=(),
    read=read,
)
