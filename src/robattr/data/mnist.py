"""MNIST and Fashion-MNIST from their four canonical idx files, gzipped or not.

Splits as in the reference's loader: the first 5,000 training images are the validation set, the other 55,000
the training set; the test set is in file order. Pixels are u · (1/255), in [0, 1]; no augmentation.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from robattr.data.dataset import Dataset, DatasetInfo, Remote, Split
from robattr.data.files import sha256
from robattr.errors import DataError

VALIDATION = 5_000
FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
LIMIT = 1 << 26  # bytes read of one unpacked idx file: the largest real one has 47 MB
DIGITS = tuple("0123456789")
CLOTHES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip

# SHA-256 of the unpacked content: the gzip wrapper differs from mirror to mirror, what is inside does not.
MNIST_CONTENT = {
    FILES[0]: "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    FILES[1]: "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    FILES[2]: "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    FILES[3]: "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
FASHION_CONTENT = {
    FILES[0]: "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    FILES[1]: "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    FILES[2]: "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    FILES[3]: "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}


def read_idx(path: Path, digest: str) -> NDArray[np.uint8]:
    """The array in an idx file, gzipped or not, whose unpacked content has the SHA-256 `digest`.

    Layout: two zero bytes, 0x08 (unsigned byte), the number of dimensions, each length as a big-endian uint32,
    the elements.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(LIMIT)
    except (OSError, EOFError, zlib.error) as cause:
        raise DataError(
            f"{path} is truncated, damaged or not a gzip file ({type(cause).__name__}: {cause}): "
            "delete it and fetch it again"
        ) from cause
    got = sha256(content)
    if got != digest:
        raise DataError(f"{path}: expected content of SHA-256 {digest}, got {got}: delete it and fetch it again")
    shape = np.frombuffer(content, ">u4", count=content[3], offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + shape.nbytes).reshape(shape)


def read(folder: Path, info: DatasetInfo, content: Mapping[str, str]) -> Dataset:
    """The dataset in `folder`; `content` maps each file to the SHA-256 of what it unpacks to."""
    arrays = []
    for name in FILES:
        path = next((path for path in (folder / f"{name}.gz", folder / name) if path.is_file()), None)
        if path is None:
            raise info.missing(folder, [f"{name}.gz"])
        arrays.append(read_idx(path, content[name]))
    train, test = Split.of_arrays(*arrays[:2]), Split.of_arrays(*arrays[2:])
    index = torch.arange(len(train))
    held_out = min(VALIDATION, len(train) // 12)  # 5,000 of the real 60,000
    return Dataset(
        name=info.name,
        train=train.take(index[held_out:]),
        validation=train.take(index[:held_out]),
        test=test,
        classes=info.classes,
        bounds=(0.0, 1.0),
    )


def _remotes(content: Mapping[str, str], mirrors: tuple[str, ...]) -> tuple[Remote, ...]:
    return tuple(
        Remote(
            f"{name}.gz",
            tuple(f"{mirror}/{name}.gz" for mirror in mirrors),
            f"SHA-256 of its unpacked content {digest}",
            partial(read_idx, digest=digest),
        )
        for name, digest in content.items()
    )


MNIST: DatasetInfo = DatasetInfo(
    name="mnist",
    classes=DIGITS,
    sizes=(55_000, 5_000, 10_000),
    shape=(1, 28, 28),
    megabytes=12,
    licence="CC BY-SA 3.0",
    citation="LeCun, Bottou, Bengio, Haffner: Gradient-based learning applied to document recognition, 1998",
    remotes=_remotes(
        MNIST_CONTENT,
        (
            "https://ossci-datasets.s3.amazonaws.com/mnist",
            "https://storage.googleapis.com/cvdf-datasets/mnist",
            "http://yann.lecun.com/exdb/mnist",
        ),
    ),
    read=lambda folder: read(folder, MNIST, MNIST_CONTENT),
)

FASHION_MNIST: DatasetInfo = DatasetInfo(
    name="fashion-mnist",
    classes=CLOTHES,
    sizes=(55_000, 5_000, 10_000),
    shape=(1, 28, 28),
    megabytes=31,
    licence="MIT",
    citation="Xiao, Rasul, Vollgraf: Fashion-MNIST, a novel image dataset for benchmarking, 2017",
    remotes=_remotes(
        FASHION_CONTENT,
        (
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
            "https://storage.googleapis.com/tensorflow/tf-keras-datasets",
        ),
    ),
    read=lambda folder: read(folder, FASHION_MNIST, FASHION_CONTENT),
)
