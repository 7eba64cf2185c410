"""`python -m torture [kills] [load] [input] [faults]`: exit code 1 if a section, or any of all, finds something."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

os.environ.update(OMP_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1", MPLBACKEND="agg")
os.environ.pop("ROBATTR_DATA", None)

MEMORY = "/dev/shm"  # where syncing costs nothing; a kill of a process, unlike one of the machine, loses no write
SECTIONS = ("kills", "load", "input", "faults")
IMPORTED = (
    "optuna", "safetensors.torch", "matplotlib.pyplot", "jinja2", "PIL.Image", "requests", "tqdm", "scipy.stats",
    "torch._dynamo", "robattr.auditing", "robattr.reporting.html", "robattr.reporting.figures",
    "robattr.training.sweep", "robattr.certificates", "robattr.runs", "robattr.cli.reproduce", "audit_fixtures",
)  # fmt: skip


def main() -> None:
    """Run the sections."""
    parser = argparse.ArgumentParser(prog="torture", description=__doc__)
    parser.add_argument("sections", nargs="*", help=f"{', '.join(SECTIONS)} (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--examples", type=int, default=400, help="damaged files, and odd options")
    parser.add_argument("--only", default="", help="commands to kill, with commas")
    asked = parser.parse_args()
    import torch

    from torture.commands import shrink

    torch.set_num_threads(1)
    for name in IMPORTED:  # once: a forked process has them already
        importlib.import_module(name)
    shrink()
    server = serve()
    held = True
    with tempfile.TemporaryDirectory(prefix="torture-", dir=MEMORY if os.path.isdir(MEMORY) else None) as folder:
        place = Path(folder)
        stock = prepare(place / "stock", server)
        from torture import faults, inputs, kills, load

        began, wanted = time.monotonic(), asked.sections or SECTIONS
        if "kills" in wanted:
            only = set(filter(None, asked.only.split(",")))
            found = kills.torture(place, stock, server, seed=asked.seed, kills=asked.kills, only=only)
            held &= kills.total(found, began)
        if "load" in wanted:
            held &= load.torture(place)
        if "input" in wanted:
            held &= inputs.torture(place, stock, number=asked.seed, examples=asked.examples)
        if "faults" in wanted:
            held &= faults.Faults(place, stock, server, seed=asked.seed).torture()
    sys.exit(not held)


def prepare(stock: Path, server: str) -> Path:
    """What the commands need: images, a trained run, an evaluated one; and import what they import."""
    from audit_fixtures import folder
    from torture.commands import CPU, RUN, commands
    from torture.processes import run

    stock.mkdir()
    folder(stock / "images")
    for words in (
        ["train", RUN, *CPU, "--set=steps=60", "--set=precision=fp32", "--out", "run"],
        ["train", RUN, *CPU, "--set=steps=60", "--set=precision=fp32", "--out", "evaluated"],
        ["evaluate", "evaluated", "--examples", "12", "--iterations", "1", *CPU],
    ):
        ended = run(words, stock)
        if ended.code:
            raise SystemExit(ended.output)
    for command in commands(server):
        place = command.place(stock / "first" / command.name, stock)
        run(command.words, place, first=command.first)
        for module in place.with_name(f"{command.name}.modules").read_text().split():
            with suppress(ImportError, AttributeError):
                importlib.import_module(module)
    return stock


def serve() -> str:
    """The address of a file server with a small MNIST, in a process of its own."""
    from torture.commands import packed_mnist

    files = packed_mnist()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            body, wanted = files.get(self.path, b""), self.headers.get("Range")
            at = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
            self.send_response(416 if wanted and at >= len(body) else 206 if wanted else 200 if body else 404)
            self.send_header("Content-Length", str(len(body[at:])))
            self.end_headers()
            try:
                self.wfile.write(body[at:])
            except OSError:  # the client was killed
                self.close_connection = True

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if not os.fork():
        parent = os.getppid()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(0)
    server.server_close()
    return f"http://127.0.0.1:{server.server_port}"


if __name__ == "__main__":
    main()
