"""Processes for the tests of distributed training."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib import import_module

import pytest
import torch


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


@pytest.fixture
def forking(monkeypatch) -> Iterator[None]:
    """Let a test fork this process: no packages to import again. One thread, because OpenMP's do not survive a fork."""
    if torch.cuda.is_available():
        pytest.skip("a process that may have used a GPU cannot be forked")
    import_module("torch._dynamo")  # by DistributedDataParallel, which would take seconds in each process
    threads = torch.get_num_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
