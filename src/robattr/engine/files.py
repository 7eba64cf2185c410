"""Files that survive a crash: atomic writes, and a lock that a directory has one writer."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from robattr.errors import CheckpointError


class InUse(CheckpointError):
    """Another process holds the directory or file."""


def write_atomically(path: Path, content: bytes) -> None:
    """Replace `path` by `content` in one step that survives a crash; on failure `path` is as it was."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise CheckpointError(
            f"could not write {path} ({error.strerror}); what was saved before is untouched: make room, then continue "
            "with --resume"
        ) from error
    with suppress(OSError):  # some file systems cannot sync a folder; the file itself is safe
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write `content` atomically as indented JSON."""
    write_atomically(path, (json.dumps(content, indent=2) + "\n").encode())


@contextmanager
def locked(path: Path, name: str = ".lock") -> Iterator[None]:
    """Hold a lock of a directory; the system frees it when this process ends, however it ends."""
    with open(path / name, "w") as file:
        lock(file, f"another process is writing to {path}: wait for it, or choose another --out")
        yield


def lock(file: IO[Any], message: str) -> None:
    """Lock an open file until it is closed; InUse with `message` if another process has it."""
    try:
        import fcntl
    except ImportError:  # no such locks on this system
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise InUse(message) from error
