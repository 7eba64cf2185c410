"""GTSRB: small official archives and prepared arrays, whole, damaged and foreign."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from robattr.data import files, gtsrb
from robattr.data.images import resize_bilinear
from robattr.errors import DataError

RANDOM = np.random.default_rng(0)
TRACKS, FRAMES = 3, 2  # of each class
COUNTS = (TRACKS * FRAMES - FRAMES,) * 43


def ppm(image: np.ndarray) -> bytes:
    return b"P6\n%d %d\n255\n" % (image.shape[1], image.shape[0]) + image.tobytes()


def table(rows: list[tuple[str, np.ndarray, int]]) -> str:
    lines = ["Filename;Width;Height;Roi.X1;Roi.Y1;Roi.X2;Roi.Y2;ClassId"]
    lines += [f"{name};{image.shape[1]};{image.shape[0]};1;1;9;9;{label}" for name, image, label in rows]
    return "\r\n".join(lines) + "\r\n\r\n"


def frame() -> np.ndarray:
    height, width = RANDOM.integers(15, 60, 2)
    return RANDOM.integers(0, 256, (height, width, 3), np.uint8)


@pytest.fixture(scope="module")
def signs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str], np.ndarray]:
    """The three official archives in small: 43 classes, 3 tracks of 2 frames; what they hold; a test frame."""
    folder = tmp_path_factory.mktemp("gtsrb")
    with zipfile.ZipFile(folder / gtsrb.TRAIN_ZIP, "w") as archive:
        archive.writestr("GTSRB/Readme-Images.txt", "read me")
        for label in reversed(range(43)):
            names = [f"{t:05d}_{f:05d}.ppm" for t in range(TRACKS) for f in range(FRAMES)]
            rows = [(name, frame(), label) for name in names]
            for name, image, _ in rows:
                archive.writestr(f"GTSRB/Final_Training/Images/{label:05d}/{name}", ppm(image))
            archive.writestr(f"GTSRB/Final_Training/Images/{label:05d}/GT-{label:05d}.csv", table(rows))
    tests = [(f"{n:05d}.ppm", frame(), int(RANDOM.integers(43))) for n in range(20)]
    with zipfile.ZipFile(folder / gtsrb.TEST_ZIP, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, image, _ in tests:
            archive.writestr(f"GTSRB/Final_Test/Images/{name}", ppm(image))
        archive.writestr("GTSRB/Final_Test/Images/GT-final_test.test.csv", "Filename;Width\r\n")
    with zipfile.ZipFile(folder / gtsrb.TRUTH_ZIP, "w") as archive:
        archive.writestr("GT-final_test.csv", table(tests))
    labels = np.repeat(np.arange(43, dtype=np.uint8), TRACKS * FRAMES)
    tracks = np.tile(np.repeat(np.arange(TRACKS, dtype=np.int16), FRAMES), 43)
    digests = {
        "train_labels": files.sha256(labels),
        "train_tracks": files.sha256(tracks),
        "test_labels": files.sha256(np.array([label for _, _, label in tests], np.uint8)),
    }
    return folder, digests, tests[0][1]


def copied(folder: Path, target: Path) -> Path:
    target.mkdir(exist_ok=True)
    for name in gtsrb.ARCHIVES:
        (target / name).write_bytes((folder / name).read_bytes())
    return target


def test_sign_archives_become_splits(signs, tmp_path: Path) -> None:
    folder, digests, first_test = signs
    folder = copied(folder, tmp_path)
    dataset = gtsrb.read(folder, digests, COUNTS)
    assert [len(dataset.split(s)) for s in ("train", "validation", "test")] == [43 * 4, 43 * 2, 20]
    assert dataset.validation.labels.tolist() == sorted(list(range(43)) * 2)
    assert torch.equal(dataset.test.images[0], torch.from_numpy(resize_bilinear(first_test, 32)).permute(2, 0, 1))
    # whole tracks: consecutive pairs of ids, each pair in one split
    assert torch.equal(dataset.validation.ids[::2] + 1, dataset.validation.ids[1::2])
    assert bool((dataset.validation.ids[::2] % 2 == 0).all())
    assert (dataset.bounds, dataset.equalised, dataset.per_class) == ((0.0, 255.0), True, 10_000)

    (folder / "decoded-32.npz").stat()
    again = gtsrb.read(folder, digests, COUNTS)
    assert torch.equal(again.train.images, dataset.train.images)


def test_prepared_arrays_equal_the_archives(signs, tmp_path: Path) -> None:
    folder, digests, _ = signs
    arrays = gtsrb._decode(folder)
    for split in ("train", "test"):
        parts = {name.removeprefix(f"{split}_"): array for name, array in arrays.items() if name.startswith(split)}
        np.savez(tmp_path / f"{split}.npz", **parts)
    digests |= {name: files.sha256(arrays[name]) for name in ("train_images", "test_images")}
    prepared = gtsrb.read(tmp_path, digests, COUNTS)
    decoded = gtsrb.read(copied(folder, tmp_path / "archives"), digests, COUNTS)
    assert torch.equal(prepared.train.images, decoded.train.images)
    assert torch.equal(prepared.test.labels, decoded.test.labels)
    with pytest.raises(DataError, match="train_images of SHA-256"):
        gtsrb.read(tmp_path)


def rewrite(path: Path, change: Callable[[str, bytes], bytes | None]) -> None:
    """Rewrite a zip member by member; None drops one."""
    with zipfile.ZipFile(path) as old:
        kept = [(name, change(name, old.read(name))) for name in old.namelist()]
    with zipfile.ZipFile(path, "w") as new:
        for name, content in kept:
            if content is not None:
                new.writestr(name, content)


def drop_frame(name: str, content: bytes) -> bytes | None:
    return None if name.endswith("00007/00001_00001.ppm") else content


def cut_frame(name: str, content: bytes) -> bytes | None:
    return content[:-100] if name.endswith("00007/00001_00001.ppm") else content


def spoil_table(name: str, content: bytes) -> bytes | None:
    return b"a,b,c\n1,2,3\n" if name.endswith("GT-00007.csv") else content


def empty_table(name: str, content: bytes) -> bytes | None:
    return b"" if name.endswith("GT-00007.csv") else content


def name_oddly(name: str, content: bytes) -> bytes | None:
    return content.replace(b"00001_00001.ppm", b"one_two.ppm") if name.endswith("GT-00007.csv") else content


def change_class(name: str, content: bytes) -> bytes | None:
    return content.replace(b";7\r\n", b";8\r\n") if name.endswith("GT-00007.csv") else content


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (drop_frame, "257 frames but 258 table rows"),
        (cut_frame, r"00007/00001_00001\.ppm is not a readable PPM"),
        (spoil_table, "258 frames but 252 table rows"),
        (empty_table, "258 frames but 252 table rows"),
        (name_oddly, "258 frames but 257 table rows"),
        (change_class, "incomplete"),
    ],
)
def test_spoilt_sign_archives_are_refused(signs, tmp_path: Path, change, words: str) -> None:
    folder, digests, _ = signs
    rewrite(copied(folder, tmp_path) / gtsrb.TRAIN_ZIP, change)
    with pytest.raises(DataError, match=words):
        gtsrb.read(tmp_path, digests, COUNTS)


@pytest.mark.parametrize("name", gtsrb.ARCHIVES)
def test_truncated_sign_archives_are_refused(signs, tmp_path: Path, name: str) -> None:
    folder, digests, _ = signs
    path = copied(folder, tmp_path) / name
    path.write_bytes(path.read_bytes()[:-300])
    with pytest.raises(DataError, match=f"{name} is damaged"):
        gtsrb.read(tmp_path, digests, COUNTS)


def test_foreign_labels_are_refused(signs) -> None:
    with pytest.raises(DataError, match="train_labels of SHA-256"):
        gtsrb.read(signs[0])


def test_a_damaged_cache_is_made_anew(signs, tmp_path: Path) -> None:
    folder, digests, _ = signs
    copied(folder, tmp_path)
    expected = gtsrb.read(tmp_path, digests, COUNTS).train.images
    cache = tmp_path / "decoded-32.npz"
    whole = bytearray(cache.read_bytes())
    whole[len(whole) // 2] ^= 1
    cache.write_bytes(whole)
    assert torch.equal(gtsrb.read(tmp_path, digests, COUNTS).train.images, expected)
    cache.write_bytes(whole[:1000])
    assert torch.equal(gtsrb.read(tmp_path, digests, COUNTS).train.images, expected)
    assert not list(tmp_path.glob(".decoded*"))


def test_hold_out_needs_whole_tracks() -> None:
    labels, tracks = np.zeros(60, np.uint8), np.repeat(np.arange(2, dtype=np.int16), 30)
    assert gtsrb.hold_out(labels, tracks, (30,)).sum() == 30
    with pytest.raises(DataError, match="whole tracks"):
        gtsrb.hold_out(labels, tracks, (40,))


@pytest.mark.parametrize(
    "arrays",
    [
        {"images": np.zeros((2, 32, 32, 3), np.uint8), "labels": np.zeros(2, np.uint8)},
        {
            "images": np.zeros((2, 32, 32), np.uint8),
            "labels": np.zeros(2, np.uint8),
            "tracks": np.zeros(2, np.int16),
        },
        {
            "images": np.array([{"an": "object"}], dtype=object),
            "labels": np.zeros(1, np.uint8),
            "tracks": np.zeros(1, np.int16),
        },
    ],
    ids=["array missing", "wrong shape", "pickled"],
)
def test_foreign_prepared_arrays_are_refused(tmp_path: Path, arrays) -> None:
    for name in ("train.npz", "test.npz"):
        np.savez(tmp_path / name, **arrays)
    with pytest.raises(DataError, match=r"train_images of SHA-256|train\.npz is damaged"):
        gtsrb.read(tmp_path)
    (tmp_path / "train.npz").write_bytes(b"PK\x03\x04 not really")
    with pytest.raises(DataError, match=r"train\.npz is damaged"):
        gtsrb.read(tmp_path)
