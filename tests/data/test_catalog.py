"""The datasets by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from download_fixtures import Server
from robattr import data
from robattr.data import known, mnist
from robattr.errors import DataError, InvalidInput


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "gtsrb", "flower"])
def test_a_missing_dataset_says_what_to_put_where(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=rf"robattr data fetch {name}") as error:
        data.load(name, tmp_path)
    assert str(tmp_path / name) in str(error.value)


def test_the_names_known_without_torch_are_those_of_the_catalog() -> None:
    assert data.names() == known.NAMES


def test_the_environment_names_the_root(tiny_mnist: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROBATTR_DATA", str(tmp_path / "there"))
    assert data.root() == tmp_path / "there"
    assert data.root(tmp_path) == tmp_path
    data.fetch("mnist")
    assert (tmp_path / "there" / "mnist" / f"{mnist.FILES[0]}.gz").is_file()
    monkeypatch.setenv("ROBATTR_DATA", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data.root().parts[-2:] == ("robattr", "data")


def test_every_remote_has_mirrors_and_an_identity() -> None:
    for name in data.names():
        for remote in data.info(name).remotes:
            assert len(remote.urls) >= 2
            assert all(url.startswith(("https://", "http://")) and url.endswith(remote.file) for url in remote.urls)
            assert remote.identity


def test_a_mistyped_name_gets_the_nearest() -> None:
    with pytest.raises(InvalidInput, match="'gtsrb'"):
        data.load("gtrsb")
