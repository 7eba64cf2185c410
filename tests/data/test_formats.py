"""Every reader on small files in the canonical formats: whole, truncated, corrupted, foreign, hostile."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from robattr import data
from robattr.data import fashion_mini, files, flower, gtsrb, mnist
from robattr.data.images import resize_bilinear
from robattr.errors import DataError

RANDOM = np.random.default_rng(0)


# --- idx ---------------------------------------------------------------------------------------------------------


def idx(array: np.ndarray) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.fixture
def idx_folder(tmp_path: Path) -> tuple[Path, dict[str, str], dict[str, np.ndarray]]:
    """A folder of four gzipped idx files, what their contents hash to, and the arrays."""
    arrays = {
        name: RANDOM.integers(0, 10 if "labels" in name else 256, (n, 28, 28) if "images" in name else (n,), np.uint8)
        for name, n in zip(mnist.FILES, (120, 120, 30, 30), strict=True)
    }
    for name, array in arrays.items():
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
    return tmp_path, {name: files.sha256(idx(array)) for name, array in arrays.items()}, arrays


def test_idx_files_become_splits(idx_folder) -> None:
    folder, digests, arrays = idx_folder
    dataset = mnist.read(folder, mnist.MNIST, digests)
    assert [len(dataset.split(name)) for name in ("train", "validation", "test")] == [110, 10, 30]
    assert np.array_equal(dataset.validation.images[:, 0].numpy(), arrays[mnist.FILES[0]][:10])
    assert np.array_equal(dataset.train.images[:, 0].numpy(), arrays[mnist.FILES[0]][10:])
    assert np.array_equal(dataset.test.labels.numpy(), arrays[mnist.FILES[3]])
    assert dataset.train.ids.tolist() == list(range(10, 120))


def test_unpacked_idx_files_serve_too(idx_folder) -> None:
    folder, digests, _ = idx_folder
    for name in mnist.FILES:
        (folder / name).write_bytes(gzip.decompress((folder / f"{name}.gz").read_bytes()))
        (folder / f"{name}.gz").unlink()
    assert len(mnist.read(folder, mnist.MNIST, digests).train) == 110


BREAK_IDX: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "truncated": (lambda b: b[: len(b) // 2], "truncated"),
    "empty": (lambda b: b"", "starts with nothing"),
    "flipped bit": (lambda b: b[:200] + bytes([b[200] ^ 1]) + b[201:], "damaged|SHA-256"),
    "a web page": (lambda b: b"<html>not found</html>", "no gzip file"),
    "another gzip": (lambda b: gzip.compress(b"hello, world"), "idx file"),
    "other contents": (lambda b: gzip.compress(idx(np.zeros((120, 28, 28), np.uint8))), "SHA-256"),
    "short contents": (lambda b: gzip.compress(gzip.decompress(b)[:-1]), "promises"),
    "wrong dimensions": (lambda b: gzip.compress(idx(np.zeros((120, 784), np.uint8))), "3 dimensions"),
}


@pytest.mark.parametrize(("damage", "words"), BREAK_IDX.values(), ids=BREAK_IDX)
def test_a_broken_idx_file_is_named(idx_folder, damage: Callable[[bytes], bytes], words: str) -> None:
    folder, digests, _ = idx_folder
    path = folder / f"{mnist.FILES[0]}.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=words) as error:
        mnist.read(folder, mnist.MNIST, digests)
    assert str(path) in str(error.value)


def test_a_gzip_bomb_is_refused(idx_folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, digests, _ = idx_folder
    monkeypatch.setattr(mnist, "LIMIT", 1000)
    with pytest.raises(DataError, match="unpacks to more"):
        mnist.read(folder, mnist.MNIST, digests)


def test_labels_must_match_images(idx_folder) -> None:
    folder, digests, _ = idx_folder
    content = idx(np.zeros(119, np.uint8))
    (folder / f"{mnist.FILES[1]}.gz").write_bytes(gzip.compress(content))
    with pytest.raises(DataError, match="expected 120 labels"):
        mnist.read(folder, mnist.MNIST, digests | {mnist.FILES[1]: files.sha256(content)})


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "gtsrb", "flower"])
def test_a_missing_dataset_says_what_to_put_where(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=rf"robattr data fetch {name}") as error:
        data.load(name, tmp_path)
    assert str(tmp_path / name) in str(error.value)


# --- gtsrb -------------------------------------------------------------------------------------------------------

TRACKS, FRAMES = 3, 2  # of each class


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
def signs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, gtsrb.Facts, np.ndarray]:
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
    facts = gtsrb.Facts(
        train_counts=(TRACKS * FRAMES - FRAMES,) * 43,
        train_labels=files.sha256(labels),
        train_tracks=files.sha256(tracks),
        test_labels=files.sha256(np.array([label for _, _, label in tests], np.uint8)),
        train_pixels="",
        test_pixels="",
    )
    return folder, facts, tests[0][1]


def copied(folder: Path, target: Path) -> Path:
    for name in gtsrb.ARCHIVES:
        (target / name).write_bytes((folder / name).read_bytes())
    return target


def test_sign_archives_become_splits(signs, tmp_path: Path) -> None:
    folder, facts, first_test = signs
    folder = copied(folder, tmp_path)
    dataset = gtsrb.read(folder, facts)
    assert [len(dataset.split(s)) for s in ("train", "validation", "test")] == [43 * 4, 43 * 2, 20]
    assert dataset.validation.labels.tolist() == sorted(list(range(43)) * 2)
    assert torch.equal(dataset.test.images[0], torch.from_numpy(resize_bilinear(first_test, 32)).permute(2, 0, 1))
    # whole tracks: consecutive pairs of ids, each pair in one split
    assert torch.equal(dataset.validation.ids[::2] + 1, dataset.validation.ids[1::2])
    assert bool((dataset.validation.ids[::2] % 2 == 0).all())
    assert (dataset.bounds, dataset.equalised, dataset.per_class) == ((0.0, 255.0), True, 10_000)

    (folder / "decoded-32.npz").stat()
    again = gtsrb.read(folder, facts)
    assert torch.equal(again.train.images, dataset.train.images)


def test_prepared_arrays_equal_the_archives(signs, tmp_path: Path) -> None:
    folder, facts, _ = signs
    arrays = gtsrb._decode(folder)
    for split in ("train", "test"):
        parts = {name.removeprefix(f"{split}_"): array for name, array in arrays.items() if name.startswith(split)}
        np.savez(tmp_path / f"{split}.npz", **parts)
    digests = {
        "train_pixels": files.sha256(arrays["train_images"]),
        "test_pixels": files.sha256(arrays["test_images"]),
    }
    facts = gtsrb.Facts(**{**facts.__dict__, **digests})
    prepared, decoded = gtsrb.read(tmp_path, facts), gtsrb.read(copied(folder, tmp_path), facts)
    assert torch.equal(prepared.train.images, decoded.train.images)
    assert torch.equal(prepared.test.labels, decoded.test.labels)
    with pytest.raises(DataError, match=r"train\.npz images of SHA-256"):
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
        (cut_frame, r"00007/00001_00001\.ppm is no readable PPM"),
        (spoil_table, "official table format"),
        (empty_table, "official table format"),
        (name_oddly, "official table format"),
        (change_class, "incomplete"),
    ],
)
def test_spoilt_sign_archives_are_refused(signs, tmp_path: Path, change, words: str) -> None:
    folder, facts, _ = signs
    rewrite(copied(folder, tmp_path) / gtsrb.TRAIN_ZIP, change)
    with pytest.raises(DataError, match=words):
        gtsrb.read(tmp_path, facts)


@pytest.mark.parametrize("name", gtsrb.ARCHIVES)
def test_truncated_sign_archives_are_refused(signs, tmp_path: Path, name: str) -> None:
    folder, facts, _ = signs
    path = copied(folder, tmp_path) / name
    path.write_bytes(path.read_bytes()[:-300])
    with pytest.raises(DataError, match=f"{name} is damaged"):
        gtsrb.read(tmp_path, facts)


def test_foreign_labels_are_refused(signs) -> None:
    with pytest.raises(DataError, match="train_labels of SHA-256"):
        gtsrb.read(signs[0])


def test_a_damaged_cache_is_made_anew(signs, tmp_path: Path) -> None:
    folder, facts, _ = signs
    copied(folder, tmp_path)
    expected = gtsrb.read(tmp_path, facts).train.images
    cache = tmp_path / "decoded-32.npz"
    whole = bytearray(cache.read_bytes())
    whole[len(whole) // 2] ^= 1
    cache.write_bytes(whole)
    assert torch.equal(gtsrb.read(tmp_path, facts).train.images, expected)
    cache.write_bytes(whole[:1000])
    assert torch.equal(gtsrb.read(tmp_path, facts).train.images, expected)
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
    with pytest.raises(DataError, match=r"train\.npz"):
        gtsrb.read(tmp_path)
    (tmp_path / "train.npz").write_bytes(b"PK\x03\x04 not really")
    with pytest.raises(DataError, match=r"train\.npz is damaged"):
        gtsrb.read(tmp_path)


# --- flower ------------------------------------------------------------------------------------------------------


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
    with pytest.raises(DataError, match=r"damaged or not the originals, first image_0667\.jpg"):
        flower.read(tmp_path, digests)
    (tmp_path / "jpg" / "image_0003.jpg").unlink()
    with pytest.raises(DataError, match=r"1 of 1360 images are missing, first image_0003\.jpg"):
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


# --- hostile archives --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/../../evil", "..\\evil", "C:evil"])
def test_members_that_point_outside_are_refused(tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(name, "x")
    with tarfile.open(tmp_path / "a.tgz", "w:gz") as archive:
        archive.addfile(tarfile.TarInfo(name))
    for file in ("a.zip", "a.tgz"):
        with pytest.raises(DataError, match="points outside"):
            list(files.members(tmp_path / file))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices_are_refused(tmp_path: Path, kind: bytes) -> None:
    with tarfile.open(tmp_path / "a.tgz", "w:gz") as archive:
        info = tarfile.TarInfo("innocent")
        info.type, info.linkname = kind, "/etc/passwd"
        archive.addfile(info)
    with pytest.raises(DataError, match="link"):
        list(files.members(tmp_path / "a.tgz"))


def test_zip_links_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        info = zipfile.ZipInfo("innocent")
        info.external_attr = 0o120777 << 16
        archive.writestr(info, "/etc/passwd")
    with pytest.raises(DataError, match="link"):
        list(files.members(tmp_path / "a.zip"))


@pytest.mark.parametrize("limit", ["MEMBER_LIMIT", "TOTAL_LIMIT"])
def test_archive_bombs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(files, limit, 5000)
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(3):
            archive.writestr(f"zeros{number}", bytes(4000 if limit == "TOTAL_LIMIT" else 6000))
    with pytest.raises(DataError, match="more than the dataset can hold"):
        list(files.members(tmp_path / "a.zip"))


def test_too_many_members_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "COUNT_LIMIT", 2)
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for number in range(3):
            archive.writestr(str(number), "")
    with pytest.raises(DataError, match="more than"):
        list(files.members(tmp_path / "a.zip"))


def test_folder_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "link").symlink_to(tmp_path / "secret")
    assert list(files.members(tmp_path / "in")) == []


def test_cache_is_optional(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    built = files.cached(blocked / "cache.npz", source="s", build=lambda: {"x": np.arange(2)})
    assert built["x"].tolist() == [0, 1]


def test_stale_cache_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "c.npz"
    for source, value in (("one", 1), ("one", 2), ("two", 3)):
        got = files.cached(path, source=source, build=lambda v=value: {"x": np.array([v])})
        assert got["x"].tolist() == [{1: 1, 2: 1, 3: 3}[value]]


# --- the embedded file -------------------------------------------------------------------------------------------


def test_embedded_file_is_small_and_checked() -> None:
    packed = Path(fashion_mini.__file__).parent.joinpath("embedded", fashion_mini.FILE).read_bytes()
    assert len(packed) <= 2_500_000
    with pytest.raises(DataError, match="install robattr again"):
        fashion_mini._unpack(packed[:-1000])
    with pytest.raises(DataError, match="install robattr again"):
        fashion_mini._unpack(b"rubbish")
    notice = Path(fashion_mini.__file__).parent.joinpath("embedded", "NOTICE").read_text()
    assert "Zalando" in notice
    assert "MIT" in notice
