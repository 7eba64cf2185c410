"""Files that survive a crash: atomic writes, and locks so that a directory has one writer."""

from __future__ import annotations

import errno
import json
import os
import secrets
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from glob import escape
from os import PathLike
from pathlib import Path
from typing import IO, Any

from robattr._form import check_form, parse_json
from robattr.errors import CheckpointError, InvalidInput, NoLocks, brief

UNFINISHED = ".*.tmp"


class InUse(CheckpointError):
    """Another process holds the directory or file."""


def write_atomically(path: Path, content: bytes, *, tries: int = 10) -> None:
    """Replace `path` by `content` in one step that survives a crash; on failure `path` is as it was.

    The content is first written to a hidden file, which its writer locks.
    """
    remove_unfinished(path.parent, f".{escape(path.name)}{UNFINISHED[1:]}")
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as file:
            _flock(file)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except FileNotFoundError:
        if path.parent.is_dir() and tries > 1:  # removed before it was locked, by one that took it for unfinished
            return write_atomically(path, content, tries=tries - 1)
        if path.parent.is_dir():  # /proc, for example
            raise CheckpointError(f"could not write {path}: no file can be made there, choose another place") from None
        raise CheckpointError(f"could not write {path}: its folder was removed, so start again") from None
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink()
        if not isinstance(error, OSError):
            raise
        raise CheckpointError(
            f"could not write {path} ({error.strerror}); what was saved before is untouched: make room or choose "
            "another place, then run the same command again"
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


def read_object(path: Path, form: Any = dict) -> dict[str, Any]:
    """Read a JSON object of this form. NaN and infinities, which JSON lacks, become None."""
    try:
        value = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as cause:
        raise CheckpointError(f"{path} could not be read as JSON ({cause}): the file is damaged") from cause
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: expected a JSON object, got {type(value).__name__}")
    check_content(value, form, path)
    return value


def check_content(value: Any, form: Any, path: Path) -> None:
    """Reject what a file contains if it does not have the form."""
    try:
        check_form(value, form)
    except ValueError as cause:
        raise CheckpointError(f"{path} is damaged ({cause}): restore the file, or make it again") from cause


def remove_unfinished(folder: Path, pattern: str = UNFINISHED) -> None:
    """Remove the temporary files that killed processes left: those that no process has locked."""
    for left in folder.glob(pattern):
        with suppress(OSError):
            if left.is_file():
                with open(left, "rb") as file:
                    if _flock(file):
                        left.unlink()


def as_path(out: Any) -> Path:
    """The path of an output; refuses what is not one."""
    if not isinstance(out, str | PathLike):
        raise InvalidInput(f"expected a path as out, such as 'runs/mine', got {brief(out)}")
    return Path(out)


@dataclass(frozen=True)
class Lock:
    """A held lock file."""

    path: Path
    file: IO[Any]

    def check(self) -> None:
        """Raise if the directory was removed, or replaced by another, since it was locked."""
        check_same(self.file, self.path)

    def share(self) -> None:
        """Let other processes take it as `shared`."""
        lock(self.file, f"another process is writing to {self.path.parent}: start again", shared=True)


def check_same(file: IO[Any], path: Path) -> None:
    """Raise if `path` is no longer the open `file`: what is written to it would be lost."""
    try:
        same = os.path.samestat(os.fstat(file.fileno()), path.stat())
    except OSError:
        same = False
    if not same:
        raise CheckpointError(
            f"{path.parent} or {path.name} in it was removed or replaced while this process was writing there: start "
            "again, in a directory that stays"
        )


@contextmanager
def locked(path: Path, name: str = ".lock", *, shared: bool = False) -> Iterator[Lock]:
    """Hold a lock of a directory; the system frees it when this process ends, however it ends.

    A lock that is not `shared` has no other holder, so what killed processes left unfinished is removed.
    """
    with open(path / name, "a") as file:
        lock(file, f"another process is writing to {path}: wait for it, or choose another --out", shared=shared)
        held = Lock(path / name, file)
        held.check()
        if not shared:
            remove_unfinished(path, UNFINISHED if name == ".lock" else f"{escape(name.removesuffix('.lock'))}*.tmp")
        yield held


def lock(file: IO[Any], message: str, *, shared: bool = False) -> None:
    """Lock an open file until it is closed; InUse with `message` if another process has it."""
    taken = _flock(file, shared=shared)
    if taken is False:
        raise InUse(message)
    if taken is None and os.name == "posix":
        warnings.warn(
            f"the file system of {file.name} has no locks: robattr cannot see whether another process writes there; "
            "start one at a time",
            NoLocks,
            stacklevel=3,
        )


def _flock(file: IO[Any], *, shared: bool = False) -> bool | None:
    """Whether the lock was taken; None where the system or the file system has none."""
    try:
        import fcntl
    except ImportError:
        return None
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        return False if error.errno in (errno.EWOULDBLOCK, errno.EACCES) else None
    return True
