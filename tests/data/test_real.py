"""The real files, where ROBATTR_DATA holds them: counts, splits and order as the reference has them."""

from __future__ import annotations

import functools
import io
import lzma
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from robattr import data
from robattr.data import fashion_mini, gtsrb
from robattr.data.files import sha256


@functools.cache
def real(name: str) -> data.Dataset:
    if not os.environ.get("ROBATTR_DATA") or data.status(name).state == "missing":
        pytest.skip(f"ROBATTR_DATA does not hold {name}")
    return data.load(name)


@pytest.mark.parametrize("name", data.names())
def test_sizes_shapes_and_classes(name: str) -> None:
    dataset = data.load(name) if name == "fashion-mini" else real(name)
    card = data.info(name)
    assert tuple(len(dataset.split(split)) for split in ("train", "validation", "test")) == card.sizes
    assert dataset.shape == card.shape
    assert dataset.classes == card.classes
    assert len(set(dataset.classes)) == len(dataset.classes)
    assert dataset.train.labels.unique().tolist() == list(range(len(dataset.classes)))
    assert not set(dataset.train.ids.tolist()) & set(dataset.validation.ids.tolist())


def test_mnist_order_and_batches() -> None:
    mnist = real("mnist")
    assert mnist.test.labels[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    assert mnist.validation.labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert mnist.train.ids[0] == 5000
    assert mnist.test.labels.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert data.Batches(mnist, 50).per_epoch == 1100
    x, y = data.Batches(mnist, 50).batch(1234)
    assert x.shape == (50, 1, 28, 28)
    assert y.shape == (50,)


def test_fashion_is_balanced() -> None:
    fashion = real("fashion-mnist")
    assert fashion.test.labels.bincount().tolist() == [1000] * 10
    assert fashion.full().train.labels.bincount().tolist() == [6000] * 10


def test_the_embedded_file_is_the_first_examples_of_each_class() -> None:
    """An .npz of images, labels and ids by split, compressed by `lzma.compress(…, preset=9 | lzma.PRESET_EXTREME)`."""
    fashion, arrays = real("fashion-mnist"), {}
    for name, each in {"train": 500, "validation": 50, "test": 100}.items():
        split = fashion.split(name)
        labels = split.labels.numpy()
        chosen = np.sort(np.concatenate([np.flatnonzero(labels == c)[:each] for c in range(10)]))
        arrays[f"{name}_images"] = split.images.numpy()[chosen, 0]
        arrays[f"{name}_labels"] = labels[chosen].astype(np.uint8)
        arrays[f"{name}_ids"] = split.ids.numpy()[chosen].astype("<u2")
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    embedded = Path(fashion_mini.__file__).parent / "embedded" / fashion_mini.FILE
    assert lzma.decompress(embedded.read_bytes()) == stream.getvalue()


def test_sign_counts_are_the_references() -> None:
    signs = real("gtsrb")
    assert tuple(signs.train.labels.bincount().tolist()) == gtsrb.TRAIN_COUNTS
    assert signs.test.labels[:6].tolist() == [16, 1, 38, 33, 11, 38]
    assert int(signs.test.labels[1000]) == 17
    labels = torch.cat([signs.train.labels, signs.validation.labels])
    ids = torch.cat([signs.train.ids, signs.validation.ids])
    assert sorted(ids.tolist()) == list(range(39_209))
    assert bool((labels[ids.argsort()].diff() >= 0).all())


def test_tracks_of_signs_stay_whole() -> None:
    signs = real("gtsrb")
    prepared = data.folder("gtsrb") / "train.npz"
    if not prepared.is_file():
        pytest.skip("the official archives are there, not the prepared arrays that list the tracks")
    with np.load(prepared) as stored:
        track = stored["labels"].astype(int) * 1000 + stored["tracks"]
    held = set(track[signs.validation.ids.numpy()])
    assert len(held) == 4_410 // 30
    assert not held & set(track[signs.train.ids.numpy()])


@pytest.mark.parametrize(
    ("name", "held_out"),
    [
        ("gtsrb", "e453d073fb73a43ff5851617c1f6af3d307680c14236096e32bf91443352e7a5"),
        ("flower", "8524e5b909b751919f1d1349846210bec3da3bde5b3996e0ad84353dd8719d2c"),
    ],
)
def test_what_is_held_out_never_changes(name: str, held_out: str) -> None:
    """Numbers of one release are compared with those of the next: the choice, once made, is part of the data."""
    assert sha256(real(name).validation.ids.numpy()) == held_out


def test_sign_batches_are_equalised_and_balanced() -> None:
    batches = data.Batches(real("gtsrb"), 64, seed=1)
    assert batches.per_epoch == 430_000 // 64
    x, y = batches.batch(0)
    assert (float(x.min()), float(x.max())) == (0.0, 255.0)
    counts = torch.cat([y] + [batches.batch(step)[1] for step in range(1, 60)]).bincount(minlength=43)
    assert int(counts.min()) > 40  # 3,840 drawn evenly over 43 classes: 89 each; unbalanced, the smallest would see 20
    assert torch.equal(x, x.round())


def test_flower_is_the_papers_split() -> None:
    flower = real("flower")
    assert len(flower.full().train) == 1_224
    assert flower.full().train.labels.bincount().tolist() == [72] * 17
    assert flower.test.labels.bincount().tolist() == [8] * 17
    assert (int(flower.test.labels[28]), int(flower.test.ids[28]) + 1) == (15, 643)
    batches = data.Batches(flower, 16)
    assert batches.per_epoch == 17_000 // 16
    assert batches.batch(0)[0].shape == (16, 3, 128, 128)
