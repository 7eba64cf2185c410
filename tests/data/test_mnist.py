"""MNIST and Fashion-MNIST: small idx files, whole, damaged and foreign."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from robattr.data import files, mnist
from robattr.errors import DataError

RANDOM = np.random.default_rng(0)


def idx(array: np.ndarray) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


BREAK_IDX: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "truncated": (lambda b: b[: len(b) // 2], "truncated"),
    "empty": (lambda b: b"", "SHA-256"),
    "flipped bit": (lambda b: b[:200] + bytes([b[200] ^ 1]) + b[201:], "damaged|SHA-256"),
    "a web page": (lambda b: b"<html>not found</html>", "not a gzip file"),
    "another gzip": (lambda b: gzip.compress(b"hello, world"), "SHA-256"),
    "other contents": (lambda b: gzip.compress(idx(np.zeros((120, 28, 28), np.uint8))), "SHA-256"),
    "short contents": (lambda b: gzip.compress(gzip.decompress(b)[:-1]), "SHA-256"),
}


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
    with pytest.raises(DataError, match="SHA-256"):
        mnist.read(folder, mnist.MNIST, digests)
