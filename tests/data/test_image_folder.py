"""Folders of class folders of images."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from robattr import data
from robattr.auditing.as_dataset import common_size
from robattr.data.dataset import SPLITS
from robattr.errors import DataError, InvalidInput
from robattr.evaluation import for_dataset
from robattr.training import TrainConfig
from robattr.training.setup import build_model


def sizes(dataset: data.Dataset) -> list[int]:
    return [len(dataset.split(name)) for name in SPLITS]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    top = tmp_path / "animals"
    for label, name in enumerate(("cat", "dog")):
        (top / name).mkdir(parents=True)
        for number in range(10):
            Image.new("RGB", (30 + number, 20), (label * 200, number * 10, 0)).save(top / name / f"{number}.png")
    return top


def test_folder_of_class_folders(folder: Path) -> None:
    (folder / "cat" / ".hidden.png").write_bytes(b"junk")
    (folder / "cat" / "notes.txt").write_text("a note")
    (folder / ".git").mkdir()
    (folder / "readme.md").write_text("about")
    dataset = data.from_folder(folder, size=16)
    assert dataset.classes == ("cat", "dog")
    assert dataset.name == "animals"
    assert sizes(dataset) == [16, 2, 2]
    assert dataset.shape == (3, 16, 16)
    assert dataset.skipped == ()
    assert torch.equal(dataset.train.images[:, 0, 0, 0].float(), dataset.train.labels * 200.0)
    assert torch.equal(dataset.train.images[:, 1, 5, 5].long(), dataset.train.ids % 10 * 10)
    assert float(dataset.examples("train")[0].max()) <= 1.0
    assert data.from_folder(folder, size=8, channels=1).shape == (1, 8, 8)


def test_a_folder_called_like_a_dataset_is_not_that_dataset(folder: Path) -> None:
    flower = data.from_folder(folder.rename(folder.with_name("flower")), size=16)
    assert flower.name == "folder flower"
    protocol = for_dataset(flower)
    assert protocol.bounds == flower.bounds
    assert protocol.eps == pytest.approx(8 / 255)  # Flower's own is 8, of [0, 255]
    net = build_model(TrainConfig(), flower)
    assert net(flower.examples("train", 1)[0]).shape == (1, len(flower.classes))


def test_broken_images_are_skipped_with_one_warning(folder: Path) -> None:
    (folder / "cat" / "broken.png").write_bytes(b"\x89PNG junk")
    whole = (folder / "dog" / "0.png").read_bytes()
    (folder / "dog" / "cut.png").write_bytes(whole[: len(whole) // 2])
    (folder / "dog" / "dangling.png").symlink_to(folder / "nowhere.png")
    with pytest.warns(UserWarning, match="3 images") as caught:
        dataset = data.from_folder(folder, size=8)
    assert len(caught) == 1
    assert sorted(Path(p).name for p in dataset.skipped) == ["broken.png", "cut.png", "dangling.png"]
    assert sum(sizes(dataset)) == 20


def test_deep_images_are_scaled_or_skipped_never_clipped(tmp_path: Path) -> None:
    ramp = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(3):
            Image.fromarray(ramp).save(tmp_path / name / f"{number}.png")
            Image.fromarray(ramp).save(tmp_path / name / f"{number}.tif")
        Image.fromarray(ramp.astype(np.float32)).save(tmp_path / name / "float.tif")
        Image.fromarray(ramp.astype(np.int32)).save(tmp_path / name / "integer.tif")
    with pytest.warns(UserWarning, match="4 images"):
        dataset = data.from_folder(tmp_path, size=256, channels=1, validation=0.0, test=0.0)
    assert {Path(path).name for path in dataset.skipped} == {"float.tif", "integer.tif"}
    assert len(dataset.train) == 12
    eight = np.round(ramp / 257).astype(np.uint8)
    assert np.array_equal(dataset.train.images.numpy(), np.broadcast_to(eight, (12, 1, 256, 256)))


def test_images_are_turned_upright(tmp_path: Path) -> None:
    """A JPEG whose EXIF says "turn by 90°" is read as a viewer shows it."""
    pixels = np.zeros((16, 16, 3), np.uint8)
    pixels[:, 8:] = 255
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        exif = Image.Exif()
        exif[0x0112] = 6  # the stored right side is shown at the bottom
        Image.fromarray(pixels).save(tmp_path / name / "x.jpg", exif=exif, quality=100)
    image = data.from_folder(tmp_path, size=16).train.images[0, 0].float()
    assert float(image[:7].mean()) < 10
    assert float(image[9:].mean()) > 245


def test_given_splits_are_kept(folder: Path, tmp_path: Path) -> None:
    top = tmp_path / "split"
    for split in ("train", "test"):
        for name in ("cat", "dog"):
            (top / split / name).mkdir(parents=True)
            for number in range(10 if split == "train" else 3):
                Image.new("L", (8, 8), number).save(top / split / name / f"{number}.png")
    dataset = data.from_folder(top, size=8)
    assert sizes(dataset) == [18, 2, 6]
    (top / "validation" / "dog").mkdir(parents=True)
    Image.new("L", (8, 8), 1).save(top / "validation" / "dog" / "v.png")
    dataset = data.from_folder(top, size=8)
    assert sizes(dataset) == [20, 1, 6]
    assert dataset.validation.labels.tolist() == [1]
    (top / "test" / "horse").mkdir()
    with pytest.raises(DataError, match="horse"):
        data.from_folder(top, size=8)


@pytest.mark.parametrize("name", ["validation", "val", "valid"])
def test_a_validation_folder_makes_splits_with_or_without_a_test_folder(name: str, tmp_path: Path) -> None:
    for split, each in (("train", 10), (name, 3)):
        for label, kind in enumerate(("cat", "dog")):
            (tmp_path / split / kind).mkdir(parents=True)
            for number in range(each):
                Image.new("L", (8, 8), 100 * label).save(tmp_path / split / kind / f"{number}.png")
    dataset = data.from_folder(tmp_path, size=8)
    assert dataset.classes == ("cat", "dog")
    assert sizes(dataset) == [18, 6, 2]
    assert sizes(data.from_folder(tmp_path, size=8, test=0.0)) == [20, 6, 0]
    (tmp_path / "test" / "dog").mkdir(parents=True)
    Image.new("L", (8, 8), 100).save(tmp_path / "test" / "dog" / "t.png")
    assert sizes(data.from_folder(tmp_path, size=8)) == [20, 6, 1]
    other = "val" if name != "val" else "valid"
    (tmp_path / other).mkdir()
    with pytest.raises(DataError, match="expected one validation folder"):
        data.from_folder(tmp_path, size=8)


def test_unfit_folders_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such folder"):
        data.from_folder(tmp_path / "nothing", size=8)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="class folders"):
        data.from_folder(tmp_path / "empty", size=8)
    (folder / "bird").mkdir()
    with pytest.raises(DataError, match="bird"):
        data.from_folder(folder, size=8)
    for options in ({"size": 0}, {"size": 8, "channels": 2}):
        with pytest.raises(InvalidInput, match="channels"):
            data.from_folder(folder, **options)


def test_links_to_images_are_followed(folder: Path, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    linked.mkdir()
    for name in ("cat", "dog"):
        (linked / name).symlink_to(folder / name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert sum(sizes(data.from_folder(linked, size=8))) == 20


def test_a_limit_reads_some_of_the_images_drawn_by_the_seed(folder: Path) -> None:
    whole = data.from_folder(folder, size=8, validation=0.0, test=0.0)
    some = data.from_folder(folder, size=8, validation=0.0, test=0.0, limit=5, seed=3)
    assert sizes(some) == [5, 0, 0]
    assert some.classes == whole.classes
    known = {image.numpy().tobytes() for image in whole.train.images}
    assert all(image.numpy().tobytes() in known for image in some.train.images)
    again = data.from_folder(folder, size=8, validation=0.0, test=0.0, limit=5, seed=3)
    assert torch.equal(again.train.images, some.train.images)
    assert sizes(data.from_folder(folder, size=8, validation=0.0, test=0.0, limit=10**6)) == sizes(whole)


def test_a_pipe_with_the_name_of_an_image_is_skipped(folder: Path) -> None:
    """Reading it would wait for a writer, forever."""
    os.mkfifo(folder / "cat" / "pipe.png")
    with pytest.warns(UserWarning, match=r"1 images .* cannot be read .*pipe\.png"):
        dataset = data.from_folder(folder, size=8)
    assert dataset.skipped == (str(folder / "cat" / "pipe.png"),)
    with pytest.raises(InvalidInput, match="expected square images of one size"):
        common_size(folder)


@pytest.mark.parametrize("target", ["..", ".", "../../animals"])
def test_a_link_that_leads_back_is_refused(folder: Path, target: str) -> None:
    (folder / "cat" / "more").symlink_to(target)
    for read in (lambda: data.from_folder(folder, size=8), lambda: common_size(folder)):
        with pytest.raises(DataError, match=r"more.*, a link back to a folder above: remove it"):
            read()


def test_one_image_in_two_classes_is_refused(folder: Path) -> None:
    (folder / "dog" / "again.png").symlink_to(folder / "dog" / "0.png")
    data.from_folder(folder, size=8)  # twice in one class is the user's choice
    (folder / "dog" / "more").symlink_to(folder / "cat")
    with pytest.raises(DataError, match="are one file in two classes, cat and dog: remove the link"):
        data.from_folder(folder, size=8)
