"""The user's data as a dataset: folders, arrays, torch datasets, datasets by name."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, TensorDataset

from audit_fixtures import bars, folder
from robattr.auditing.as_dataset import as_dataset, draw
from robattr.data import Dataset
from robattr.errors import DataError, InvalidInput


def test_a_folder_of_images_with_its_class_names(tmp_path) -> None:
    top = folder(tmp_path / "images", ("x", "y", "z"))
    (top / "x" / "broken.png").write_bytes(b"\x89PNG not really")
    (top / "x" / "\x1b[31mred.jpg").write_bytes(b"")
    thumbs = folder(top / ".thumbs", each=1)
    Image.new("RGB", (5, 5)).save(thumbs / "small.png")
    data = as_dataset(top)
    assert data.shape == (3, 8, 8)
    assert data.classes == ("x", "y", "z")
    assert len(data.skipped) == 2
    x, y, ids = draw(data, 7, seed=5)
    assert (len(x), ids) == (7, sorted(ids))
    assert len(set(y.tolist())) > 1  # not the first seven, which are all of one class
    named = as_dataset(top, classes=["z", "other", "y", "x"])
    assert sorted(set(named.train.labels.tolist())) == [0, 2, 3]
    assert torch.equal(named.train.images, data.train.images)
    with pytest.raises(InvalidInput, match=r"got 'x' more than once.*rename"):
        as_dataset(top, classes=["x", "y", "z", "x"])
    with pytest.raises(InvalidInput, match="not among the 2 class names"):
        as_dataset(top, classes=["x", "y"])
    with pytest.raises(DataError, match="neither a folder"):
        as_dataset(tmp_path / "nowhere")
    (tmp_path / "bare").mkdir()
    with pytest.raises(DataError, match="no readable image"):
        as_dataset(tmp_path / "bare")
    folder(top / "w", ("deep",), each=1)
    Image.new("RGB", (9, 7)).save(top / "x" / "odd.png")
    with pytest.raises(InvalidInput, match="--size 224"):
        as_dataset(top)


def test_a_name_that_is_a_dataset_and_a_folder_is_not_guessed(tmp_path, monkeypatch) -> None:
    folder(tmp_path / "mnist", each=4)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match=r"a dataset and a folder here: write \./mnist"):
        as_dataset("mnist")
    assert len(as_dataset("./mnist").train) + len(as_dataset("./mnist").test) < 100  # the folder's few, not MNIST's


def test_examples_come_from_what_was_set_apart(tmp_path) -> None:
    for name, each in (("train", 8), ("val", 2)):
        folder(tmp_path / name, each=each)
    data = as_dataset(tmp_path)
    assert [len(data.train), len(data.validation), len(data.test)] == [24, 6, 0]
    assert torch.equal(draw(data, None)[0], data.pixels(data.validation.images))


def test_data_in_other_forms() -> None:
    x, y = bars(12)
    given = as_dataset((x, y))
    assert as_dataset(given) is given
    with pytest.raises(
        InvalidInput, match=r"expected the bounds of the dataset tensors, \(0\.0, 1\.0\), got \(0, 255\)"
    ):
        as_dataset(given, bounds=(0, 255))
    bytes_ = (x * 255).round().to(torch.uint8)
    torch.testing.assert_close(as_dataset((bytes_, y), bounds=(0.0, 255.0)).train.images, bytes_.float())
    far, hollow = x.clone(), x.clone()
    far[3], hollow[3] = 50, torch.nan
    for wrong, words in ((far, r"within the bounds \(0, 1\), got .* … 50"), (hollow, "finite inputs")):
        with pytest.raises(InvalidInput, match=words):
            as_dataset((wrong, y), held_out=0.25)
    pairs = as_dataset(list(zip(x, y.tolist(), strict=True)))
    assert torch.equal(pairs.train.images, x)
    table = x.flatten(1)
    counts = (10 * table).to(torch.uint8)
    assert torch.equal(as_dataset((counts, y), bounds=(0.0, 10.0)).train.images, counts.float())
    for rows in ((table, y.tolist()), (table.numpy(), y.numpy()), TensorDataset(table, y)):
        assert torch.equal(as_dataset(rows).train.images, table)
        assert torch.equal(as_dataset(rows).train.labels, y)
    for odd, words in (
        (DataLoader(TensorDataset(x, y), 4), r"got DataLoader: pass a loader's \.dataset"),
        ({"x": x, "y": y}, r"got dict: pass .* a pair \(x, y\)"),
        ((x, ["cat"] * len(x)), "number the classes from 0"),
        ((x.numpy().astype(object), y), r"astype\('float32'\)"),
    ):
        with pytest.raises(InvalidInput, match=words):
            as_dataset(odd)
    for bounds in (None, (1.0,), (1.0, 0.0), (0.0, math.inf), (math.nan, 1.0)):
        with pytest.raises(InvalidInput, match="with low < high"):
            as_dataset((x, y), bounds=bounds)
    parts = as_dataset((x, y), held_out=0.25)
    assert [len(parts.train), len(parts.validation), len(parts.test)] == [6, 3, 3]
    mini = as_dataset("fashion-mini")
    assert isinstance(mini, Dataset)
    turned = as_dataset("fashion-mini", classes=mini.classes[::-1])
    assert torch.equal(turned.test.labels, 9 - mini.test.labels)
    with pytest.raises(InvalidInput, match="got None"):
        as_dataset(None)
    with pytest.raises(InvalidInput, match=r"expected train labels in 0\.\.1, got -1\.\.1"):
        as_dataset((x, 2 * (y > 0).long() - 1))
    for wrong, words in (
        ((x.long(), y), r"inputs \(N, \.\.\.\) of floats, or uint8 images, got \(12, 1, 8, 8\) of torch.int64"),
        ((x, y.float()), r"12 whole-number labels \(N,\), got \(12,\) of torch.float32"),
        ((x, y[:3]), r"12 whole-number labels \(N,\), got \(3,\)"),
        ((x[:0], y[:0]), r"inputs .* got \(0, 1, 8, 8\)"),
    ):
        with pytest.raises(InvalidInput, match=words):
            as_dataset(wrong)


def test_the_examples_of_an_audit_are_a_function_of_the_seed() -> None:
    data = as_dataset(bars(30))
    assert draw(data, 5, seed=1)[2] == draw(data, 5, seed=1)[2]
    assert draw(data, 5, seed=1)[2] != draw(data, 5, seed=2)[2]
    assert np.array_equal(draw(data, None)[2], np.arange(30))
