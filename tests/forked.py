"""Processes that start with torch imported: forks of one server. A new Python takes seconds to import it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from itertools import count
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # a server that has asked CUDA itself leaves forks that cannot use it
FORKS = get_context("forkserver")
FORKS.set_forkserver_preload(["torch", "torch._dynamo", "torch.distributed.run", "robattr.cli", "robattr.training"])


def start(function: Callable[..., object], *arguments: object, log: Path) -> BaseProcess:
    """Call `function` in a process with one thread, whose stdout and stderr are the file `log`."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = FORKS.Process(target=_call, args=(function, arguments, log, environment))
    process.start()
    return process


def _call(
    function: Callable[..., object], arguments: tuple[object, ...], log: Path, environment: dict[str, str]
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    torch.set_num_threads(1)
    with log.open("a") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    function(*arguments)


def torchrun(function: Callable[..., object], *arguments: object) -> None:
    """`torchrun --standalone --nproc-per-node=2 --max-restarts=1`, whose two workers are forks that call `function`."""
    config = LaunchConfig(
        1, 1, 2, rdzv_backend="c10d", rdzv_endpoint="localhost:0", run_id=str(os.getpid()), max_restarts=1,
        start_method="fork",
    )  # fmt: skip
    elastic_launch(config, function)(*arguments)


def robattr(*words: str) -> None:
    """The command `robattr`."""
    from robattr.__main__ import main

    sys.argv = ["robattr", *words]
    main()


def signalled(number: int, step: int | None, *words: str) -> None:
    """The command `robattr`, which gets a signal in its training step number `step`, counted from 0."""
    from robattr.training import loop

    steps, train_step = count(), loop.train_step

    def next_step(*arguments: object, **settings: object) -> object:
        if next(steps) == step:
            signal.raise_signal(number)
        return train_step(*arguments, **settings)

    loop.train_step = next_step
    robattr(*words)
