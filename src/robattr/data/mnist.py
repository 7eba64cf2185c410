"""MNIST and Fashion-MNIST from their four canonical idx files, gzipped or not.

Splits as in the reference's loader: the first 5,000 training images are the validation set, the other 55,000
the training set; the test set is in file order. Pixels are u · (1/255), in [0, 1]; no augmentation.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
LIMIT = 1 << 26  # bytes of one unpacked idx file: the largest real one has 47 MB
DIGITS = tuple("0123456789")
CLOTHES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip

# SHA-256 of the unpacked content: the gzip wrapper differs from mirror to mirror, what is inside does not.
MNIST_CONTENT = dict(
    zip(
        FILES,
        (
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
        strict=True,
    )
)
FASHION_CONTENT = dict(
    zip(
        FILES,
        (
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
        strict=True,
    )
)


def read_idx(path: Path, *, dims: int, digest: str) -> NDArray[np.uint8]:
    """An idx file of unsigned bytes with `dims` dimensions, whose unpacked content has the SHA-256 `digest`.

    Layout: two zero bytes, 0x08 (unsigned byte), the number of dimensions, each length as a big-endian uint32,
    the elements.
    """
    content = _unpacked(path)
    remedy = "delete it and fetch it again"
    head = 4 + 4 * dims
    if len(content) < head or content[:4] != bytes((0, 0, 8, dims)):
        raise DataError(
            f"{path}: expected an idx file of unsigned bytes with {dims} dimensions, got one that starts with "
            f"{content[:4].hex(' ') or 'nothing'}: {remedy}"
        )
    shape = struct.unpack(f">{dims}I", content[4:head])
    expected = head + int(np.prod(shape, dtype=np.int64))
    if len(content) != expected:
        raise DataError(f"{path}: its header promises {expected} bytes, it has {len(content)}: {remedy}")
    got = sha256(content)
    if got != digest:
        raise DataError(f"{path}: expected content of SHA-256 {digest}, got {got}: {remedy}")
    return np.frombuffer(content, np.uint8, offset=head).reshape(shape)


def _unpacked(path: Path) -> bytes:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(LIMIT + 1)
    except (OSError, EOFError, zlib.error) as cause:
        raise DataError(
            f"{path} is truncated, damaged or not a gzip file ({type(cause).__name__}: {cause}): "
            "delete it and fetch it again"
        ) from cause
    if len(content) > LIMIT:
        raise DataError(f"{path} unpacks to more than {LIMIT} bytes, more than any idx file of this dataset: refused")
    return content


def read(folder: Path, info: DatasetInfo, content: Mapping[str, str]) -> Dataset:
    """The dataset in `folder`; `content` maps each file to the SHA-256 of what it unpacks to."""
    parts: list[NDArray[Any]] = []
    for name in FILES:
        path = folder / f"{name}.gz"
        plain = folder / name
        if not path.is_file() and not plain.is_file():
            raise info.missing(folder, [f"{name}.gz"])
        chosen = path if path.is_file() else plain
        parts.append(read_idx(chosen, dims=_dims(name), digest=content[name]))
    train = _split(parts[0], parts[1], where=folder / FILES[1])
    held_out = min(VALIDATION, len(train) // 12)  # 5,000 of the real 60,000
    index = torch.arange(len(train))
    return Dataset(
        name=info.name,
        train=train.take(index[held_out:]),
        validation=train.take(index[:held_out]),
        test=_split(parts[2], parts[3], where=folder / FILES[3]),
        classes=info.classes,
        bounds=(0.0, 1.0),
    )


def _split(images: NDArray[np.uint8], labels: NDArray[np.uint8], *, where: Path) -> Split:
    if len(images) != len(labels):
        raise DataError(f"{where}: expected {len(images)} labels, one an image, got {len(labels)}: fetch it again")
    return Split(
        torch.from_numpy(images.copy())[:, None],
        torch.from_numpy(labels.astype(np.int64)),
        torch.arange(len(labels)),
    )


def _remotes(content: Mapping[str, str], mirrors: tuple[str, ...]) -> tuple[Remote, ...]:
    def remote(name: str) -> Remote:
        def check(path: Path) -> None:
            read_idx(path, dims=_dims(name), digest=content[name])

        urls = tuple(f"{mirror}/{name}.gz" for mirror in mirrors)
        return Remote(f"{name}.gz", urls, f"SHA-256 of its unpacked content {content[name]}", check)

    return tuple(remote(name) for name in FILES)


def _dims(name: str) -> int:
    return 3 if "images" in name else 1


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
