"""Processes for the tests of distributed training."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest
import torch

from forked import start

FILES = ("test_wrapped", "test_huggingface", "test_lightning")


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
    """A folder in which `on_two` of every file here has run, in its own folder, on two processes."""
    folder = tmp_path_factory.mktemp("two")
    for name in FILES:
        (folder / name).mkdir()
    # As under torchrun, the addresses are in a store of the parent's: a new one for each group of processes.
    stores = [torch.distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False) for _ in FILES]
    ports = [store.port for store in stores]
    ranks = [start(work, rank, ports, folder, log=folder / f"log{rank}") for rank in (0, 1)]
    for rank in ranks:
        rank.join(timeout=300)
    assert [rank.exitcode for rank in ranks] == [0, 0], "".join(log.read_text()[-4000:] for log in folder.glob("log?"))
    return folder


def work(rank: int, ports: list[int], folder: Path) -> None:
    """What each of the two processes does, with the environment that torchrun gives it."""
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "GROUP_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "localhost", "TORCHELASTIC_RUN_ID": "two", "TORCHELASTIC_USE_AGENT_STORE": "True",
        "CUDA_VISIBLE_DEVICES": "",
    }  # fmt: skip
    for name, port in zip(FILES, ports, strict=True):
        os.environ["MASTER_PORT"] = str(port)
        with suppress(pytest.skip.Exception):  # its library is not installed
            import_module(f"integrations.{name}").on_two(folder / name)
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
