"""The commands that are tortured, each small: what it finds, what it is called with, what it leaves."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

RUN = "fashion-mini/natural"
SHORT = [
    f"--set={word}"
    for word in ("steps=4", "batch=4", "log_every=1", "validate_every=2", "checkpoint_every=1", "precision=fp32")
]
CPU = ["--device", "cpu"]
AUDIT = [
    "audit_fixtures:factory",
    "--data",
    "images",
    "--examples",
    "8",
    "--iterations",
    "1",
    "--points",
    "2",
]
TIMES = re.compile(r"(started|finished|seconds|earlier|resumed|rate|command|digest)")


@dataclass(frozen=True)
class Command:
    """`words` in a folder that has `needs`; what it leaves is compared below `leaves`."""

    name: str
    words: list[str]
    needs: tuple[str, ...] = ()
    leaves: tuple[str, ...] = ("out",)
    first: Callable[[], None] = lambda: None

    def place(self, at: Path, stock: Path) -> Path:
        """A new folder with what the command needs."""
        at.mkdir(parents=True)
        for name in self.needs:
            source = stock / name
            (shutil.copytree if source.is_dir() else shutil.copy)(source, at / name)
        return at

    def content(self, place: Path) -> dict[str, Any]:
        """All that the command left, without times: visible file → content."""
        found = {}
        for name in self.leaves:
            for path in sorted((place / name).rglob("*")) if (place / name).is_dir() else [place / name]:
                if path.is_file() and not path.name.endswith(".lock"):
                    found[re.sub(r"-[0-9a-f]{16}\.pt$", ".pt", path.relative_to(place).as_posix())] = _content(path)
        return found


def shrink() -> None:
    """Make everything small, in this process and those forked from it: the data, the protocol, the batches."""
    from robattr import data
    from robattr.certificates import examples
    from robattr.data import catalog
    from robattr.evaluation import diagnostics, job, protocol
    from robattr.reporting import audit_sections, html
    from robattr.training import run_directory

    whole = data.load("fashion-mini")
    few = replace(whole, train=whole.train.first(400), validation=whole.validation.first(20), test=whole.test.first(20))
    catalog.DATASETS["fashion-mini"] = replace(data.info("fashion-mini"), read=lambda folder: few, sizes=(400, 20, 20))
    protocol._PAPER["fashion-mini"] = replace(protocol.paper("fashion-mini"), steps=2, pgd_steps=1, repeats=1, N=2)
    job.BATCH = (4, 4)  # so that eight examples are written by more than one batch
    examples.rows_that_fit = lambda *_, **__: 4 * 10  # type: ignore[assignment]
    diagnostics.QUERIES = 2
    html.inline_svg = audit_sections.inline_svg = lambda figure, name: "<svg></svg>"  # drawing takes a second
    run_directory._git_state = lambda: None


def mnist_at(address: str) -> Callable[[], None]:
    """Put a small MNIST on a local server in the place of the real one."""

    def patch() -> None:
        from robattr.data import catalog, mnist
        from robattr.data.files import sha256

        digests = {name: sha256(content) for name, content in small_mnist().items()}
        catalog.DATASETS["mnist"] = replace(
            mnist.MNIST,
            sizes=(110, 10, 30),
            remotes=mnist._remotes(digests, (address,)),
            read=lambda folder: mnist.read(folder, mnist.MNIST, digests),
        )

    return patch


def small_mnist() -> dict[str, bytes]:
    """The four files of a small MNIST, unpacked; of noise, so that they stay large when packed."""
    from robattr.data import mnist

    rng = np.random.default_rng(0)
    return {
        name: bytes((0, 0, 8, 3)) + struct.pack(">3I", n, 28, 28) + rng.bytes(n * 784)
        if "images" in name
        else bytes((0, 0, 8, 1)) + struct.pack(">I", n) + bytes(i % 10 for i in range(n))
        for name, n in zip(mnist.FILES, (120, 120, 30, 30), strict=True)
    }


def packed_mnist() -> dict[str, bytes]:
    """What the server offers."""
    return {f"/{name}.gz": gzip.compress(content, mtime=0) for name, content in small_mnist().items()}


def commands(address: str) -> list[Command]:
    """The nine commands, and what sweeps differ in."""
    train = ["train", RUN, *SHORT, *CPU, "--out", "out"]
    sweep = ["sweep", RUN, *SHORT, *CPU, "--set=steps=1", "--examples", "2", "--out", "out"]
    evaluate = ["evaluate", "run", "--examples", "8", "--iterations", "1", *CPU, "--out", "out/records"]
    certify = ["certify", "audit_fixtures:factory", "--data", "images", "--examples", "8", "--samples", "10", *CPU]
    harden = ["harden", *AUDIT, *CPU, "--steps", "2", "--batch", "4", "--set", "m=1", "--set", "m_attack=1"]
    return [
        Command("train", train),
        Command("evaluate", evaluate, needs=("run",)),
        Command(
            "audit",
            ["audit", *AUDIT, *CPU, "--protocol", "paper", "-o", "out.html"],
            ("images",),
            ("out", "out.html"),
        ),
        Command("harden", [*harden, "--set", "attack_steps=1", "-o", "out"], ("images",)),
        Command("sweep", [*sweep, "--over", "lr=0.01,0.02"]),
        Command("search", [*sweep, "--over", "lr=0.001..0.1", "--trials", "2"]),
        Command("certify", [*certify, "--points", "2", "-o", "out"], ("images",)),
        Command("record", ["record", "evaluated", "-o", "out"], ("evaluated",)),
        Command("report", ["report", "evaluated", "-o", "out.html"], ("evaluated",), ("out.html",)),
        Command("fetch", ["data", "fetch", "mnist", "--data-dir", "out"], first=mnist_at(address)),
    ]


def _content(path: Path) -> Any:
    data = path.read_bytes()
    if path.name.startswith("."):
        return "left over"
    if path.suffix in (".json", ".settings"):
        return _timeless(json.loads(data))
    if path.suffix == ".jsonl":
        return [_timeless(json.loads(line)) for line in data.splitlines()]
    if path.suffix == ".npz":
        with np.load(io.BytesIO(data)) as stored:
            return {key: (value.shape, hashlib.sha256(value.tobytes()).hexdigest()) for key, value in stored.items()}
    if path.suffix == ".pt":  # named by its hash, so whole; compared through the weights at the end
        return hashlib.sha256(data).hexdigest()[:16] == path.stem.rpartition("-")[2]
    if path.suffix == ".html":
        return data.rstrip().endswith(b"</html>")  # it names times and seconds
    return hashlib.sha256(data).hexdigest()


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _timeless(item) for key, item in value.items() if not TIMES.search(key)}
    return [_timeless(item) for item in value] if isinstance(value, list) else value
