"""Fetching from a server on this machine: mirrors, resuming, bad content, offline."""

from __future__ import annotations

import gzip
import socket
from pathlib import Path

import numpy as np
import pytest

from download_fixtures import Server
from robattr import data
from robattr.data import download, mnist
from robattr.data.dataset import Remote
from robattr.engine.files import InUse
from robattr.errors import DataError

CONTENT = np.random.default_rng(0).bytes(300_000)


def check(path: Path) -> None:
    if path.read_bytes() != CONTENT:
        raise DataError(f"{path}: not the right bytes")


def get(path: Path, *urls: str) -> Path:
    remote = Remote(path.name, urls, "the right bytes", check)
    return download.fetch_file(remote, path, of=mnist.MNIST)


def test_a_file_is_fetched_once(server: Server, tmp_path: Path) -> None:
    server.files["/f.zip"] = CONTENT
    path = tmp_path / "new" / "folder" / "f.zip"
    for _ in range(2):
        assert get(path, f"{server.address}/f.zip").read_bytes() == CONTENT
    assert [status for _, _, status in server.seen] == [200]
    assert [p.name for p in path.parent.iterdir()] == ["f.zip"]


def test_mirrors_are_tried_in_order(server: Server, tmp_path: Path) -> None:
    server.files |= {"/wrong/f.zip": b"<html>sorry</html>", "/right/f.zip": CONTENT}
    urls = [f"{server.address}/{place}/f.zip" for place in ("absent", "wrong", "right", "never")]
    assert get(tmp_path / "f.zip", *urls).read_bytes() == CONTENT
    assert [path.split("/")[1] for path, _, _ in server.seen] == ["absent", "wrong", "right"]


def test_an_interrupted_download_is_resumed(server: Server, tmp_path: Path) -> None:
    server.files["/f.zip"] = CONTENT
    server.cut = 270_000
    with pytest.raises(DataError, match=r"could not fetch mnist/f\.zip"):
        get(tmp_path / "f.zip", f"{server.address}/f.zip")
    assert not (tmp_path / "f.zip").exists()
    begun = (tmp_path / "partial-f.zip").stat().st_size
    assert begun > 0
    assert get(tmp_path / "f.zip", f"{server.address}/f.zip").read_bytes() == CONTENT
    assert server.seen[-1] == ("/f.zip", f"bytes={begun}-", 206)


def test_the_next_mirror_continues_where_one_broke_off(server: Server, tmp_path: Path) -> None:
    server.files |= {"/a/f.zip": CONTENT, "/b/f.zip": CONTENT}
    server.cut = 270_000
    get(tmp_path / "f.zip", f"{server.address}/a/f.zip", f"{server.address}/b/f.zip")
    assert server.seen[-1][2] == 206
    assert (tmp_path / "f.zip").read_bytes() == CONTENT


def test_a_server_without_ranges_starts_over(server: Server, tmp_path: Path) -> None:
    server.files["/f.zip"], server.ranges = CONTENT, False
    (tmp_path / "partial-f.zip").write_bytes(CONTENT[:1000])
    assert get(tmp_path / "f.zip", f"{server.address}/f.zip").read_bytes() == CONTENT


@pytest.mark.parametrize("begun", [b"of another file", CONTENT, CONTENT + b"too long"], ids=["foreign", "done", "long"])
def test_whatever_a_partial_file_holds_the_result_is_right(server: Server, tmp_path: Path, begun: bytes) -> None:
    server.files["/f.zip"] = CONTENT
    (tmp_path / "partial-f.zip").write_bytes(begun)
    assert get(tmp_path / "f.zip", f"{server.address}/f.zip").read_bytes() == CONTENT
    assert not (tmp_path / "partial-f.zip").exists()


def test_bad_content_everywhere_says_what_to_put_where(server: Server, tmp_path: Path) -> None:
    server.files["/f.zip"] = b"not it"
    with pytest.raises(DataError) as error:
        get(tmp_path / "f.zip", f"{server.address}/f.zip", f"{server.address}/absent")
    text = str(error.value)
    for part in (str(tmp_path / "f.zip"), "the right bytes", "robattr data verify mnist", "404", "not the right bytes"):
        assert part in text
    assert not list(tmp_path.iterdir())


def test_offline_says_what_to_put_where(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/f.zip"
        with pytest.raises(DataError, match="Put the file, got elsewhere, at") as error:
            get(tmp_path / "f.zip", url)
    assert str(tmp_path / "f.zip") in str(error.value)


def test_a_terminal_gets_a_progress_bar(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server.files["/f.zip"] = CONTENT
    remote = Remote("f.zip", (f"{server.address}/f.zip",), "the right bytes", check)
    for terminal in (False, True):
        monkeypatch.setattr("sys.stderr.isatty", lambda answer=terminal: answer)
        download.fetch_file(remote, tmp_path / str(terminal) / "f.zip", of=mnist.MNIST)
        shown = capsys.readouterr().err
        assert ("f.zip: 100%" in shown) is terminal


def test_a_damaged_file_that_is_there_is_not_overwritten(server: Server, tmp_path: Path) -> None:
    (tmp_path / "f.zip").write_bytes(b"mine")
    with pytest.raises(DataError, match="not the right bytes"):
        get(tmp_path / "f.zip", f"{server.address}/f.zip")
    assert (tmp_path / "f.zip").read_bytes() == b"mine"
    assert server.seen == []


def test_an_unwritable_folder_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError, match=str(tmp_path / "file")):
        get(tmp_path / "file" / "f.zip", "http://127.0.0.1:9/f.zip")


def test_two_downloads_of_one_file_do_not_mix(server: Server, tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    server.files["/f.zip"] = CONTENT
    with (tmp_path / "partial-f.zip").open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(InUse, match="another process"):
            get(tmp_path / "f.zip", f"{server.address}/f.zip")


def test_prepared_data_need_no_download(tmp_path: Path) -> None:
    (tmp_path / "flower" / "jpg").mkdir(parents=True)
    assert data.fetch("flower", tmp_path) == [tmp_path / "flower" / "jpg"]
    assert data.fetch("fashion-mini", tmp_path) == []


def test_files_that_the_user_unpacked_are_not_fetched_again(tiny_mnist: Server, tmp_path: Path) -> None:
    first, *others = data.fetch("mnist", tmp_path)
    plain = first.with_suffix("")
    plain.write_bytes(gzip.decompress(first.read_bytes()))
    first.unlink()
    tiny_mnist.seen.clear()
    assert data.fetch("mnist", tmp_path) == [plain, *others]
    assert not tiny_mnist.seen
    plain.write_bytes(b"junk")
    with pytest.raises(DataError, match=str(plain)):
        data.fetch("mnist", tmp_path)
