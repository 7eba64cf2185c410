"""A file server on this machine, and a small MNIST on it."""

from __future__ import annotations

import gzip
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from robattr.data import catalog, mnist
from robattr.data.files import sha256


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
