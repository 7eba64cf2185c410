"""The user's own data: folders, torch datasets, tensors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset, TensorDataset

from robattr import data
from robattr.data.dataset import SPLITS
from robattr.errors import InvalidInput


def sizes(dataset: data.Dataset) -> list[int]:
    return [len(dataset.split(name)) for name in SPLITS]


def test_tensors_are_split_by_class_and_seed() -> None:
    x, y = torch.rand(100, 1, 5, 5), torch.arange(100) % 4
    dataset = data.from_tensors(x, y, validation=0.2, test=0.2)
    assert sizes(dataset) == [60, 20, 20]
    assert dataset.test.labels.bincount().tolist() == [5] * 4
    ids = torch.cat([dataset.split(name).ids for name in SPLITS])
    assert sorted(ids.tolist()) == list(range(100))
    assert torch.equal(dataset.train.images, x[dataset.train.ids])
    again, other = data.from_tensors(x, y, validation=0.2, test=0.2), data.from_tensors(x, y, seed=1)
    assert torch.equal(again.test.ids, dataset.test.ids)
    assert not torch.equal(other.test.ids, data.from_tensors(x, y).test.ids)
    assert dataset.classes == ("0", "1", "2", "3")
    assert torch.equal(dataset.examples("test")[0], dataset.test.images)
    assert len(data.Batches(dataset, 8).batch(3)[1]) == 8


def test_tensors_without_channels_and_of_bytes() -> None:
    x = torch.randint(0, 256, (30, 6, 6), dtype=torch.uint8)
    dataset = data.from_tensors(x, torch.arange(30).to(torch.int32) % 3, classes=["a", "b", "c"], bounds=(0.0, 255.0))
    assert dataset.shape == (1, 6, 6)
    assert torch.equal(dataset.examples("train")[0][:, 0], x[dataset.train.ids].float())
    arrays = data.from_tensors(x.numpy(), (torch.arange(30) % 3).tolist(), bounds=(0.0, 255.0))
    assert torch.equal(arrays.train.images, dataset.train.images)


@pytest.mark.parametrize(
    ("x", "y", "options", "words"),
    [
        (torch.rand(4, 5), torch.zeros(4).long(), {}, "images"),
        (torch.rand(0, 1, 5, 5), torch.zeros(0).long(), {}, "N > 0"),
        (np.zeros((4, 8, 8, 3), np.uint8), torch.zeros(4).long(), {}, r"channels seem to be last.*permute"),
        (torch.rand(4, 1, 5, 5), ["cat", "dog", "cat", "dog"], {}, "whole-number labels"),
        (torch.rand(4, 1, 5, 5) * 2, torch.zeros(4).long(), {}, "bounds"),
        (torch.full((4, 1, 5, 5), torch.nan), torch.zeros(4).long(), {}, "bounds"),
        (torch.zeros(4, 1, 5, 5).int(), torch.zeros(4).long(), {}, "uint8"),
        (torch.rand(4, 1, 5, 5), torch.zeros(3).long(), {}, "4 whole-number labels"),
        (torch.rand(4, 1, 5, 5), torch.zeros(4), {}, "whole-number"),
        (torch.rand(4, 1, 5, 5), torch.full((4,), -1), {}, r"labels in 0\.\."),
        (torch.rand(4, 1, 5, 5), torch.arange(4), {"classes": ["a"]}, "name every class"),
        (torch.rand(4, 1, 5, 5), torch.arange(4), {"validation": 0.5, "test": 0.5}, "shares"),
        (torch.rand(4, 1, 5, 5), torch.arange(4), {"validation": float("nan")}, "shares"),
    ],
)
def test_unfit_tensors_are_refused(x, y, options, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        data.from_tensors(x, y, **options)


class Pictures(TorchDataset):
    """A map-style dataset of Pillow images that, like many, does not end its iteration by itself."""

    classes = ("dark", "light")

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return Image.new("RGB", (4, 3), (index, 100 * (index % 2), 7)), index % 2


class Stream(IterableDataset):
    def __iter__(self):
        return iter((torch.full((1, 2, 2), i / 10), i % 2) for i in range(10))


def test_torch_datasets() -> None:
    x, y = torch.rand(40, 3, 4, 4), torch.arange(40) % 2
    assert torch.equal(data.from_dataset(TensorDataset(x, y)).train.images, data.from_tensors(x, y).train.images)
    pictures = data.from_dataset(Pictures())
    assert pictures.classes == ("dark", "light")
    assert pictures.shape == (3, 3, 4)
    assert pictures.train.images[:, 0, 0, 0].tolist() == pictures.train.ids.tolist()
    assert sum(sizes(data.from_dataset(Stream()))) == 10


@pytest.mark.parametrize(
    ("items", "words"),
    [
        ([], "empty"),
        ([torch.rand(1, 2, 2)], "pair"),
        ([(torch.rand(1, 2, 2), 0), (torch.rand(1, 2, 3), 0)], r"one shape.*\[1, 2, 3\] at entry 1"),
        ([("a name", 0)], "item 0"),
        ([(torch.rand(1, 2, 2), "cat")], "item 0: .* a whole number: 'str' object"),
        ([(torch.rand(1, 2, 2), 1.7)], "a whole number: 'float' object"),
        ([(torch.rand(1, 2, 2), torch.tensor([0, 1]))], "a whole number"),
    ],
)
def test_unfit_torch_datasets_are_refused(items, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        data.from_dataset(items)
