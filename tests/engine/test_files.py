"""Atomic writes leave the old file or the new one and nothing else; locks tell who is alive."""

from __future__ import annotations

import ast
import errno
import fcntl
import os
import resource
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from robattr.engine.files import InUse, locked, remove_unfinished, write_atomically
from robattr.errors import CheckpointError, NoLocks

ROOT = Path(__file__).parents[2]


def test_a_full_disk_leaves_the_old_file_alone(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    write_atomically(file, b"old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(CheckpointError, match=r"could not write .*page.html .* run the same command again"):
            write_atomically(file, bytes(2000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("page.html", b"old")]


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, OSError(errno.EIO, "I/O error")])
def test_an_interrupted_write_leaves_no_temporary_file(tmp_path: Path, monkeypatch, error) -> None:
    def fail(_: object) -> None:
        raise error

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(CheckpointError if isinstance(error, OSError) else error):
        write_atomically(tmp_path / "page.html", b"new")
    assert not list(tmp_path.iterdir())


def test_a_removed_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="its folder was removed"):
        write_atomically(tmp_path / "gone" / "page.html", b"new")


def test_a_folder_that_takes_no_files_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In /proc, which exists, a new file is "not found"; it was tried again without end."""

    def refused(*_: object) -> None:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    monkeypatch.setattr("builtins.open", refused)
    with pytest.raises(CheckpointError, match="no file can be made there, choose another place"):
        write_atomically(tmp_path / "page.html", b"")


def test_what_a_kill_left_is_removed_and_what_is_being_written_is_not(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    dead, live, other = (tmp_path / name for name in (".page.html.1.tmp", ".page.html.2.tmp", ".other.html.3.tmp"))
    for left in (dead, live, other):
        left.write_bytes(b"half")
    with open(live, "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        write_atomically(file, b"new")
        assert {path.name for path in tmp_path.iterdir()} == {"page.html", live.name, other.name}
        with locked(tmp_path):
            assert {path.name for path in tmp_path.iterdir()} == {"page.html", live.name, ".lock"}
    remove_unfinished(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"page.html", ".lock"}


def test_writers_of_one_file_do_not_mix(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    contents = [bytes([number]) * 20_000 for number in range(8)]

    def write(content: bytes) -> bool:
        for _ in range(5):
            write_atomically(file, content)
            if file.read_bytes() not in contents:
                return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(write, contents))
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_a_lock_has_one_holder_or_several_that_share_it(tmp_path: Path) -> None:
    with locked(tmp_path) as first:
        for shared in (False, True):
            with pytest.raises(InUse, match="another process is writing"), locked(tmp_path, shared=shared):
                pass
        first.share()
        with locked(tmp_path, shared=True), pytest.raises(InUse), locked(tmp_path):
            pass
    with locked(tmp_path):
        pass


def test_a_removed_or_replaced_directory_is_noticed(tmp_path: Path) -> None:
    place = tmp_path / "run"
    place.mkdir()
    with locked(place) as lock:
        lock.check()
        shutil.rmtree(place)
        with pytest.raises(CheckpointError, match="was removed or replaced"):
            lock.check()
        place.mkdir()
        with locked(place), pytest.raises(CheckpointError, match="was removed or replaced"):
            lock.check()


def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.warns(NoLocks, match=r"the file system of .* has no locks.*one at a time"), locked(tmp_path):
        write_atomically(tmp_path / "page.html", b"new")
    assert (tmp_path / "page.html").read_bytes() == b"new"


def test_every_file_is_written_atomically() -> None:
    """No other module writes a file whole by itself."""
    sources = [file for room in ("src/robattr", "benchmarks", "results") for file in (ROOT / room).rglob("*.py")]
    assert len(sources) > 100
    found = []
    for source in sources:
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            modes = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
            if name in ("write_text", "write_bytes") or (name == "open" and any(m[:1] in "wx" for m in modes if m)):
                found.append(f"{source.relative_to(ROOT)}:{node.lineno}")
    assert [place for place in found if "engine/files.py" not in place] == []
