"""Untrusted archives, and the cache of decoded arrays."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from robattr.data import files
from robattr.errors import DataError


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/../../evil", "..\\evil", "C:evil"])
def test_members_that_point_outside_are_refused(tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(name, "x")
    with tarfile.open(tmp_path / "a.tgz", "w:gz") as archive:
        archive.addfile(tarfile.TarInfo(name))
    for file in ("a.zip", "a.tgz"):
        with pytest.raises(DataError, match="a path outside the archive"):
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
    with pytest.raises(DataError, match="more than the dataset's size"):
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
