"""Untrusted files: digests, archives read without extracting, prepared arrays, and a cache."""

from __future__ import annotations

import hashlib
import io
import lzma
import stat
import tarfile
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator
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
    tokenize.TokenError,  # numpy: the header of an array
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
    total = 0
    try:
        for name, content in _contents(source):
            total += len(content)
            if len(content) > MEMBER_LIMIT or total > TOTAL_LIMIT:
                raise DataError(
                    f"{source} unpacks to more than the dataset's size (at {name!r}): refused, fetch it again"
                )
            yield name, content
    except DAMAGED as cause:
        raise DataError(
            f"{source} is damaged or not the archive its name says ({type(cause).__name__}: {cause}): "
            "delete it and fetch it again"
        ) from cause


def _contents(source: Path) -> Iterator[tuple[str, bytes]]:
    if source.is_dir():
        for path in sorted(source.rglob("*")):
            if path.is_file() and not path.is_symlink():
                yield path.relative_to(source).as_posix(), path.read_bytes()
    elif source.suffix == ".zip":
        with zipfile.ZipFile(source) as archive:
            for info in archive.infolist():
                _refuse_outside(source, info.filename, link=stat.S_ISLNK(info.external_attr >> 16))
                with archive.open(info) as file:
                    yield info.filename, file.read(MEMBER_LIMIT + 1)
    else:
        with tarfile.open(source) as tar:
            for entry in tar:
                _refuse_outside(source, entry.name, link=not (entry.isfile() or entry.isdir()))
                if content := tar.extractfile(entry):
                    yield entry.name, content.read(MEMBER_LIMIT + 1)


def _refuse_outside(source: Path, name: str, *, link: bool) -> None:
    path = PurePosixPath(name.replace("\\", "/"))
    if link or path.is_absolute() or ".." in path.parts or name[1:2] == ":":
        raise DataError(
            f"{source} contains {name!r}, a link or a path outside the archive: refused, get it from another source"
        )


def read_npz(path: Path) -> Arrays:
    """The arrays of an .npz. Nothing is unpickled: an array of objects is refused."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            return dict(stored)
    except (*DAMAGED, TypeError) as cause:
        raise DataError(
            f"{path} is damaged or not an .npz of plain arrays ({type(cause).__name__}: {cause}): prepare it again"
        ) from cause


def cached(path: Path, *, source: str, build: Callable[[], Arrays]) -> Arrays:
    """`build()`, kept at `path` for the next time.

    The file has `source`, which identifies what it was made from: a stale file is made anew, and so is a damaged one,
    which its zip checksums reveal. If the folder cannot be written to, nothing is kept.
    """
    with suppress(DataError):
        kept = read_npz(path)
        if str(kept.pop("source", "")) == source:
            return kept
    arrays = build()
    stream = io.BytesIO()
    np.savez(stream, **arrays, source=np.array(source))  # type: ignore[arg-type]  # not savez's own keyword
    with suppress(OSError, CheckpointError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, stream.getvalue())
    return arrays
