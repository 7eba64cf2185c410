"""Untrusted files: digests, archives read without extracting, prepared arrays, and a cache."""

from __future__ import annotations

import hashlib
import io
import lzma
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robattr.engine.files import write_atomically
from robattr.errors import CheckpointError, DataError

Arrays = dict[str, NDArray[Any]]

MEMBER_LIMIT = 1 << 26  # bytes of one archive member: the largest real one is under 1 MB
TOTAL_LIMIT = 1 << 32  # bytes of all members of one archive: the largest real total is about 1 GB
COUNT_LIMIT = 200_000  # members: the largest real archive has about 40,000
DAMAGED = (
    lzma.LZMAError,
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    EOFError,
    OSError,
    ValueError,
    NotImplementedError,  # zipfile: unknown compression
    RuntimeError,  # zipfile: encrypted member
)


def sha256(content: bytes | memoryview | NDArray[Any]) -> str:
    """SHA-256, in hexadecimal, of bytes or of an array's elements in C order."""
    buffer = np.ascontiguousarray(content).data if isinstance(content, np.ndarray) else content
    return hashlib.sha256(buffer).hexdigest()


def sha256_file(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def members(source: Path) -> Iterator[tuple[str, bytes]]:
    """(name, content) of every regular file in a zip, a tar (also compressed) or a folder; nothing is written to disk.

    A member that points outside (absolute, "..", a link, a device), an archive that unpacks to absurd sizes,
    and a damaged or foreign file are a DataError.
    """
    if source.is_dir():
        read = _folder_members
    elif source.suffix == ".zip":
        read = _zip_members
    else:
        read = _tar_members
    total = 0
    try:
        for count, (name, content) in enumerate(read(source)):
            total += len(content)
            if len(content) > MEMBER_LIMIT or total > TOTAL_LIMIT or count >= COUNT_LIMIT:
                raise DataError(
                    f"{source} unpacks to more than the dataset's size (at {name!r}): refused, fetch it again"
                )
            yield name, content
    except DAMAGED as cause:
        raise DataError(
            f"{source} is damaged or not the archive its name says ({type(cause).__name__}: {cause}): "
            "delete it and fetch it again"
        ) from cause


def _folder_members(source: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(source.rglob("*")):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                yield path.relative_to(source).as_posix(), file.read(MEMBER_LIMIT + 1)


def _zip_members(source: Path) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(source) as archive:
        for info in archive.infolist():
            _refuse_outside(source, info.filename, link=stat.S_ISLNK(info.external_attr >> 16))
            if not info.is_dir():
                with archive.open(info) as file:
                    yield info.filename, file.read(MEMBER_LIMIT + 1)


def _tar_members(source: Path) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(source) as archive:
        for info in archive:
            _refuse_outside(source, info.name, link=not (info.isfile() or info.isdir()))
            file = archive.extractfile(info) if info.isfile() else None
            if file is not None:
                yield info.name, file.read(MEMBER_LIMIT + 1)


def _refuse_outside(source: Path, name: str, *, link: bool) -> None:
    path = PurePosixPath(name.replace("\\", "/"))
    if link or path.is_absolute() or ".." in path.parts or name[1:2] == ":":
        raise DataError(
            f"{source} contains {name!r}, a link or a path outside the archive: refused, get it from another source"
        )


def read_npz(path: Path, *, expected: Mapping[str, tuple[str, tuple[int, ...]]]) -> Arrays:
    """The named arrays of an .npz, of exactly the expected dtypes and shapes; −1 is any length.

    Nothing is unpickled: an array of objects is refused.
    """
    try:
        arrays = _stored_arrays(path)
    except (*DAMAGED, KeyError) as cause:
        raise DataError(
            f"{path} is damaged or not an .npz of plain arrays ({type(cause).__name__}: {cause}): prepare it again"
        ) from cause
    if not set(expected) <= set(arrays):
        raise DataError(f"{path}: expected arrays {sorted(expected)}, got {sorted(arrays)}: prepare it again")
    for name, (dtype, shape) in expected.items():
        array = arrays[name]
        fits = array.ndim == len(shape) and all(want in (-1, got) for want, got in zip(shape, array.shape, strict=True))
        if not fits or array.dtype != np.dtype(dtype):
            raise DataError(
                f"{path}: expected {name} of {dtype} {shape}, got {array.dtype} {array.shape}: prepare it again"
            )
    return arrays


def _stored_arrays(path: Path) -> Arrays:
    # Opened here: np.load leaves the file open if it is not a zip.
    with path.open("rb") as file, zipfile.ZipFile(file) as archive:
        if sum(info.file_size for info in archive.infolist()) > TOTAL_LIMIT:
            raise ValueError(f"unpacks to more than {TOTAL_LIMIT} bytes")
        file.seek(0)
        with np.load(file, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}


def cached(path: Path, *, source: str, build: Callable[[], Arrays]) -> Arrays:
    """`build()`, kept at `path` for the next time.

    The file has `source`, which identifies what it was made from, and the digest of its arrays: a stale or damaged file
    is made anew. If the folder cannot be written to, nothing is kept.
    """
    kept = _read_cache(path, source)
    if kept is not None:
        return kept
    arrays = build()
    stream = io.BytesIO()
    # mypy takes the arrays for savez's own keyword.
    np.savez(stream, **arrays, source=np.array(source), digest=np.array(_digest(arrays)))  # type: ignore[arg-type]
    with suppress(OSError, CheckpointError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, stream.getvalue())
    return arrays


def _read_cache(path: Path, source: str) -> Arrays | None:
    try:
        arrays = _stored_arrays(path)
        fresh = str(arrays.pop("source")) == source and str(arrays.pop("digest")) == _digest(arrays)
    except (*DAMAGED, KeyError):
        return None
    return arrays if fresh else None


def _digest(arrays: Mapping[str, NDArray[Any]]) -> str:
    whole = hashlib.sha256()
    for name in sorted(arrays):
        whole.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode())
        whole.update(np.ascontiguousarray(arrays[name]).data)
    return whole.hexdigest()
