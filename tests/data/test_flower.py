"""Flower: a small archive, the split of the reference, damaged files."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from robattr import data
from robattr.data import files, flower
from robattr.errors import DataError


def jpeg(number: int) -> bytes:
    stream = io.BytesIO()
    colour = (number % 256, number // 256 * 40, 100)
    Image.new("RGB", (24 + number % 5, 20), colour).save(stream, "JPEG", quality=95)
    return stream.getvalue()


@pytest.fixture(scope="module")
def flowers(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """17flowers.tgz in small images, and the digests of its members."""
    folder = tmp_path_factory.mktemp("flower")
    contents = {name: jpeg(number) for number, name in enumerate(flower.NAMES)}
    with tarfile.open(folder / flower.ARCHIVE, "w:gz") as archive:
        for name, content in [*contents.items(), ("files.txt", b"image_0001.jpg\n")]:
            info = tarfile.TarInfo(f"jpg/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return folder, {name: files.sha256(content) for name, content in contents.items()}


def test_flower_archive_becomes_splits(flowers, tmp_path: Path) -> None:
    folder, digests = flowers
    (tmp_path / flower.ARCHIVE).write_bytes((folder / flower.ARCHIVE).read_bytes())
    dataset = flower.read(tmp_path, digests)
    assert [len(dataset.split(s)) for s in ("train", "validation", "test")] == [1088, 136, 136]
    assert dataset.full().train.labels.bincount().tolist() == [72] * 17
    assert dataset.validation.labels.bincount().tolist() == dataset.test.labels.bincount().tolist() == [8] * 17
    everything = torch.cat([dataset.train.ids, dataset.validation.ids, dataset.test.ids])
    assert sorted(everything.tolist()) == list(range(1360))

    # the images are those their ids name, and the labels the string rank of their block of eighty
    number = int(dataset.test.ids[28])
    picture = Image.open(io.BytesIO(jpeg(number))).convert("RGB").resize((128, 128), Image.Resampling.LANCZOS)
    assert np.array_equal(dataset.test.images[28].permute(1, 2, 0).numpy(), np.asarray(picture))
    ranks = sorted(map(str, range(17)))
    assert all(ranks.index(str(i // 80)) == y for i, y in zip(everything.tolist(), _labels(dataset), strict=True))
    assert (number + 1, int(dataset.test.labels[28])) == (643, 15)
    assert dataset.classes[15] == "Fritillary"

    # the jpg folder gives the same, and takes precedence
    (tmp_path / "jpg").mkdir()
    for name, content in files.members(tmp_path / flower.ARCHIVE):
        (tmp_path / name).write_bytes(content)
    (tmp_path / flower.ARCHIVE).unlink()
    assert torch.equal(flower.read(tmp_path, digests).train.images, dataset.train.images)

    (tmp_path / "jpg" / "image_0667.jpg").write_bytes(jpeg(1))
    with pytest.raises(DataError, match=r"1 of 1360 images are .* not the originals, first image_0667\.jpg"):
        flower.read(tmp_path, digests)
    (tmp_path / "jpg" / "image_0003.jpg").unlink()
    with pytest.raises(DataError, match=r"2 of 1360 images are missing, .* first image_0003\.jpg"):
        flower.read(tmp_path, digests)


def _labels(dataset: data.Dataset) -> list[int]:
    return torch.cat([dataset.train.labels, dataset.validation.labels, dataset.test.labels]).tolist()


def test_the_reference_permutation_gives_the_reference_labels() -> None:
    """Names in string order; one permutation of all; the first 72 of a class train: written out once more, naively."""
    dataset = flower.split(np.zeros((1360, 1, 1, 3), np.uint8))
    np.random.seed(4557077)  # the legacy call, as the reference makes it
    names = [(folder, k) for folder in sorted(map(str, range(17))) for k in range(80)]
    seen: dict[str, int] = {}
    tests = []
    for position in np.random.permutation(1360):
        folder, k = names[position]
        seen[folder] = seen.get(folder, 0) + 1
        if seen[folder] > 72:
            tests.append(int(folder) * 80 + k)
    assert dataset.test.ids.tolist() == tests


def test_truncated_flower_archive_is_refused(flowers, tmp_path: Path) -> None:
    folder, digests = flowers
    whole = (folder / flower.ARCHIVE).read_bytes()
    (tmp_path / flower.ARCHIVE).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"17flowers\.tgz"):
        flower.read(tmp_path, digests)
    (tmp_path / flower.ARCHIVE).write_bytes(b"<html>")
    with pytest.raises(DataError, match=r"17flowers\.tgz is damaged"):
        flower.read(tmp_path, digests)
