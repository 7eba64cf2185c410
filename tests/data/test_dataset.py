"""Splits, datasets, and the pixels that a model sees."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from robattr import data
from robattr.errors import InvalidInput


def dataset(counts: tuple[int, ...], *, per_class: int = 0, size: int = 8, equalised: bool = False) -> data.Dataset:
    """Classes of the given counts; every image is flat, and its level is its id, so that it can be recognised."""
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))]
    ids = torch.arange(len(labels))
    images = ids.to(torch.uint8).view(-1, 1, 1, 1).repeat(1, 3, size, size)
    split = data.Split(images, labels, ids)
    names = tuple(f"c{i}" for i in range(len(counts)))
    return data.Dataset("flat", split, split.first(2), split.first(3), names, (0.0, 255.0), equalised, per_class)


def test_mini_needs_nothing_and_is_balanced() -> None:
    mini = data.load("fashion-mini", root="/does/not/exist")
    for name, each in (("train", 500), ("validation", 50), ("test", 100)):
        split = mini.split(name)
        assert split.labels.bincount().tolist() == [each] * 10
        assert split.images.shape == (each * 10, 1, 28, 28)
        assert split.ids.unique().numel() == each * 10
    assert not set(mini.train.ids.tolist()) & set(mini.validation.ids.tolist())
    x, y, ids = mini.examples("test", 7)
    assert x.dtype == torch.float32
    assert x.shape == (7, 1, 28, 28)
    assert (float(x.min()), float(x.max())) == (0.0, 1.0)
    assert torch.equal(y, mini.test.labels[:7])
    assert torch.equal(ids, mini.test.ids[:7])


def test_a_dataset_prints_as_one_line() -> None:
    said = repr(data.load("fashion-mini"))
    assert said.startswith("Dataset('fashion-mini', train=Split(5,000 × (1, 28, 28) uint8), validation=Split(")
    assert said.endswith("10 classes, bounds=(0.0, 1.0))")


def test_pixels_are_the_reference_loaders() -> None:
    """float32(u) · float32(1/255), bit for bit, and exact levels in [0, 255]."""
    levels = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    expected = np.multiply(np.arange(256, dtype=np.float32), 1.0 / 255.0)
    mini = data.load("fashion-mini")
    assert np.array_equal(mini.pixels(levels).flatten().numpy(), expected)
    assert torch.equal(dataset((2, 2)).pixels(levels).flatten(), torch.arange(256.0))


def test_pixels_map_onto_any_bounds() -> None:
    plain = dataset((3, 3))
    moved = data.Dataset("m", plain.train, plain.validation, plain.test, plain.classes, (-1.0, 1.0))
    x = moved.pixels(torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1)).flatten()
    assert x.tolist() == pytest.approx([-1.0, 1.0])


def test_equalised_pixels() -> None:
    images = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16) // 2
    assert float(dataset((2, 2), equalised=True).pixels(images).max()) == 255.0


def test_full_joins_validation() -> None:
    mini = data.load("fashion-mini").full()
    assert len(mini.train) == 5500
    assert len(mini.validation) == 0
    assert torch.bincount(mini.train.labels).tolist() == [550] * 10


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (torch.zeros(2, 3, 4).byte(), torch.zeros(2).long(), r"expected images \(N, C, H, W\) of uint8"),
        (torch.zeros(2), torch.zeros(2).long(), r"or float32 inputs \(N, ...\), got \(2,\)"),
        (torch.zeros(2, 1, 3, 4).double(), torch.zeros(2).long(), "of torch.float64: convert them first"),
        (torch.zeros(2, 1, 3, 4), torch.zeros(3).long(), r"expected labels \(2,\) of int64, got \(3,\)"),
        (torch.zeros(2, 1, 3, 4), torch.zeros(2), r"expected labels \(2,\) of int64, got \(2,\) of torch.float32"),
    ],
)
def test_a_split_checks_its_tensors(images: torch.Tensor, labels: torch.Tensor, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        data.Split(images, labels, torch.zeros(2).long())
