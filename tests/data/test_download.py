"""Fetching from a server on this machine: mirrors, resuming, bad content, offline; and the command line over it."""

from __future__ import annotations

import gzip
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from robattr import data
from robattr.cli import app
from robattr.data import catalog, download, mnist
from robattr.data.dataset import Remote
from robattr.data.files import sha256
from robattr.engine.files import InUse
from robattr.errors import DataError, InvalidInput

CONTENT = np.random.default_rng(0).bytes(300_000)


def check(path: Path) -> None:
    if path.read_bytes() != CONTENT:
        raise DataError(f"{path}: not the right bytes")


@dataclass
class Server:
    """What a path answers with, and which requests came: (path, Range header, status)."""

    files: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True
    cut: int | None = None  # close the connection after so many bytes, once
    seen: list[tuple[str, str | None, int]] = field(default_factory=list)
    address: str = ""


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def answer(self, status: int, body: bytes, **headers: str) -> None:
            state.seen.append((self.path, self.headers.get("Range"), status))
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            if state.cut is not None and status in (200, 206):
                body, state.cut = body[: state.cut], None
            self.wfile.write(body)

        def do_GET(self) -> None:
            body = state.files.get(self.path)
            wanted = self.headers.get("Range")
            if body is None:
                self.answer(404, b"nothing here")
            elif wanted and state.ranges:
                start = int(wanted.removeprefix("bytes=").removesuffix("-"))
                if start >= len(body):
                    self.answer(416, b"", Content_Range=f"bytes */{len(body)}")
                else:
                    self.answer(206, body[start:], Content_Range=f"bytes {start}-{len(body) - 1}/{len(body)}")
            else:
                self.answer(200, body)

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    state.address = f"http://127.0.0.1:{running.server_port}"
    yield state
    running.shutdown()
    running.server_close()
    thread.join()


def get(path: Path, *urls: str) -> Path:
    remote = Remote(path.name, urls, "the right bytes", check)
    return download.fetch_file(remote, path, of=mnist.MNIST, progress=False)


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
        download.fetch_file(remote, tmp_path / str(terminal) / "f.zip", of=mnist.MNIST, progress=True)
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
    with pytest.raises(DataError, match="--data-dir"):
        get(tmp_path / "file" / "f.zip", "http://127.0.0.1:9/f.zip")


def test_two_downloads_of_one_file_do_not_mix(server: Server, tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    server.files["/f.zip"] = CONTENT
    with (tmp_path / "partial-f.zip").open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(InUse, match="another process"):
            get(tmp_path / "f.zip", f"{server.address}/f.zip")


# --- the command line --------------------------------------------------------------------------------------------


@pytest.fixture
def tiny_mnist(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """MNIST, small, on the local server, in place of the real one in the catalog."""
    contents = {
        name: bytes((0, 0, 8, 3)) + struct.pack(">3I", n, 28, 28) + bytes(n * 784)
        if "images" in name
        else bytes((0, 0, 8, 1)) + struct.pack(">I", n) + bytes(i % 10 for i in range(n))
        for name, n in zip(mnist.FILES, (120, 120, 30, 30), strict=True)
    }
    digests = {name: sha256(content) for name, content in contents.items()}
    server.files |= {f"/{name}.gz": gzip.compress(content) for name, content in contents.items()}
    card = replace(
        mnist.MNIST,
        sizes=(110, 10, 30),
        remotes=mnist._remotes(digests, (f"{server.address}/absent", server.address)),
        read=lambda folder: mnist.read(folder, mnist.MNIST, digests),
    )
    monkeypatch.setitem(catalog.DATASETS, "mnist", card)
    return server


def run(*arguments: str | Path):
    return CliRunner().invoke(app, ["data", *map(str, arguments)])


def test_fetch_verify_list(tiny_mnist: Server, tmp_path: Path) -> None:
    before = run("list", "--data-dir", tmp_path)
    assert before.exit_code == 0
    assert all(name in before.output for name in data.names())
    assert "missing" in before.output
    assert "embedded" in before.output

    missing = run("verify", "mnist", "--data-dir", tmp_path)
    assert (missing.exit_code, "missing" in missing.output) == (1, True)

    fetched = run("fetch", "mnist", "--data-dir", tmp_path)
    assert fetched.exit_code == 0, fetched.output
    assert "verified" in fetched.output
    assert sorted(p.name for p in (tmp_path / "mnist").iterdir()) == sorted(f"{name}.gz" for name in mnist.FILES)
    assert len(data.load("mnist", tmp_path).train) == 110

    everything = run("verify", "--data-dir", tmp_path)
    assert everything.exit_code == 0
    assert everything.output.count("verified") == 2  # and fashion-mini

    path = tmp_path / "mnist" / f"{mnist.FILES[2]}.gz"
    path.write_bytes(path.read_bytes()[:-9])
    damaged = run("verify", "mnist", "--data-dir", tmp_path)
    assert damaged.exit_code == 1
    assert "damaged" in damaged.output
    assert str(path) in damaged.output.replace("\n", "")


def test_the_environment_names_the_root(tiny_mnist: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROBATTR_DATA", str(tmp_path / "there"))
    assert data.root() == tmp_path / "there"
    assert data.root(tmp_path) == tmp_path
    data.fetch("mnist", progress=False)
    assert (tmp_path / "there" / "mnist" / f"{mnist.FILES[0]}.gz").is_file()
    monkeypatch.setenv("ROBATTR_DATA", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data.root().parts[-2:] == ("robattr", "data")


def test_prepared_data_need_no_download(tmp_path: Path) -> None:
    (tmp_path / "flower" / "jpg").mkdir(parents=True)
    assert data.fetch("flower", tmp_path) == [tmp_path / "flower" / "jpg"]
    assert data.fetch("fashion-mini", tmp_path) == []


def test_files_that_the_user_unpacked_are_not_fetched_again(tiny_mnist: Server, tmp_path: Path) -> None:
    first, *others = data.fetch("mnist", tmp_path, progress=False)
    plain = first.with_suffix("")
    plain.write_bytes(gzip.decompress(first.read_bytes()))
    first.unlink()
    tiny_mnist.seen.clear()
    assert data.fetch("mnist", tmp_path, progress=False) == [plain, *others]
    assert not tiny_mnist.seen
    plain.write_bytes(b"junk")
    with pytest.raises(DataError, match=str(plain)):
        data.fetch("mnist", tmp_path, progress=False)


def test_a_mistyped_name_gets_the_nearest() -> None:
    result = run("fetch", "fashon-mnist")
    assert isinstance(result.exception, InvalidInput)
    assert "did you mean 'fashion-mnist'" in str(result.exception)
    with pytest.raises(InvalidInput, match="'gtsrb'"):
        data.load("gtrsb")


def test_every_remote_has_mirrors_and_an_identity() -> None:
    for name in data.names():
        for remote in data.info(name).remotes:
            assert len(remote.urls) >= 2
            assert all(url.startswith(("https://", "http://")) and url.endswith(remote.file) for url in remote.urls)
            assert remote.identity
