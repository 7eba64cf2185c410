"""Processes for the tests of distributed training."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
import torch

from forked import start, torchrun


@pytest.fixture(autouse=True)
def leave_nothing() -> Iterator[None]:
    """Take back the process group and the addresses in the environment that a library leaves for the next test."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@pytest.fixture(scope="session")
def two_processes(tmp_path_factory) -> Path:
    """A folder in which `on_two` of every file has run, in a folder of its own, on two processes."""
    folder = tmp_path_factory.mktemp("two")
    launcher = start(on_two_processes, folder, log=folder / "log")
    launcher.join(timeout=300)
    assert launcher.exitcode == 0, (folder / "log").read_text()[-4000:]
    return folder


def on_two_processes(folder: Path) -> None:
    """Import the files once, and fork: their libraries take longer to import than to train."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    modules = []
    for name in ("test_wrapped", "test_huggingface", "test_lightning"):
        with suppress(pytest.skip.Exception):  # its library is not installed
            modules.append(import_module(f"integrations.{name}"))
            (folder / name).mkdir()
    torchrun(work, modules, folder)


def work(modules: list[ModuleType], folder: Path) -> None:
    """What each of the two processes does, in one process group, which the libraries find."""
    torch.distributed.init_process_group("gloo")
    for module in modules:
        module.on_two(folder / module.__name__.split(".")[-1])
    torch.distributed.destroy_process_group()
