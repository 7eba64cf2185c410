"""How long a plan will take here: a few gradients are timed on random images and multiplied out.

A training step costs a fixed part and a part for each step of its attack; two short runs tell both.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import torch

from robattr import models
from robattr.attacks import IFIA
from robattr.attacks.maps import by_name
from robattr.data import info
from robattr.engine.processes import choose_device
from robattr.evaluation import paper
from robattr.evaluation.protocol import named
from robattr.reproduce.job import Job
from robattr.training.config import TrainConfig

FEW, LONG = 2, 0.25  # images timed first on a processor, and the seconds that are long enough
BLOCK = 16  # examples attacked together


def seconds_to_train(job: Job, device: str = "auto") -> float:
    """Steps × the time of one, on this machine."""
    fixed, each = _training_step(_typical(job.run), device)
    return job.run.steps * (fixed + each * _attack_steps(job.run))


def seconds_to_evaluate(job: Job, device: str = "auto") -> float:
    """Examples × restarts of all attacks × iterations × the time of one."""
    protocol = named(job.protocol, paper(job.run.dataset))
    restarts = protocol.repeats + sum(n for _, n in protocol.sweep)
    return job.examples * restarts * protocol.steps * _attack_iteration(job.run.dataset, job.map, device)


def words(seconds: float) -> str:
    """`40 s`, `12 min`, `3.5 h`, `12 days`."""
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            amount = seconds / size
            return f"{amount:.0f} {unit}" if amount >= 10 else f"{amount:.1f} {unit}"
    return f"{seconds:.0f} s"


def _typical(run: TrainConfig) -> TrainConfig:
    """The run without what does not change the time of a step, so that a time measured once serves alike runs."""
    return replace(
        run, recipe="", steps=1, seed=0, schedule="constant", boundaries=(), rates=(), weight=1.0, attack_steps=1
    )


def _attack_steps(run: TrainConfig) -> int:
    return 0 if run.method == "natural" else run.attack_steps


@cache
def _training_step(run: TrainConfig, device: str) -> tuple[float, float]:
    """(seconds of a step without its attack, seconds of each attack step)."""
    where = choose_device(device)
    model = models.for_dataset(run.dataset).to(where)
    x, y = _images(run.dataset, run.batch, where)
    bounds = paper(run.dataset).bounds

    def seconds(attack_steps: int) -> float:
        rho = replace(run, attack_steps=attack_steps).objective(bounds)
        return _time(lambda n: rho(model, x[:n], y[:n]).value.mean().backward(), run.batch, where)

    one, three = seconds(1), seconds(3)
    each = max(0.0, (three - one) / 2)
    return max(one - each, 0.0), each


@cache
def _attack_iteration(dataset: str, map_name: str, device: str) -> float:
    """Seconds of one iteration of the attribution attack on one example."""
    where = choose_device(device)
    protocol = paper(dataset)
    model = models.for_dataset(dataset).to(where).eval()
    x, y = _images(dataset, BLOCK, where)
    map = by_name(map_name, N=protocol.N, bounds=protocol.bounds)

    def seconds(steps: int) -> float:
        attack = IFIA(model, protocol.eps, protocol.alpha, steps, k=protocol.k, map=map, bounds=protocol.bounds)
        return _time(lambda n: attack(x[:n], y[:n]), BLOCK, where)

    return max(1e-9, (seconds(3) - seconds(1)) / (2 * BLOCK))


def _images(dataset: str, many: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    about = info(dataset)
    low, high = paper(dataset).bounds
    source = torch.Generator().manual_seed(0)
    x = low + (high - low) * torch.rand(many, *about.shape, generator=source)
    return x.to(device), (torch.arange(many) % len(about.classes)).to(device)


def _time(work: Callable[[int], object], many: int, device: torch.device) -> float:
    """Seconds of work on `many` images, after a first call that pays for what is prepared once.

    On a processor a few images are timed first: where they take long, the work is proportional to the images.
    """
    few = many if device.type == "cuda" else min(FEW, many)
    work(few)
    took = _clock(work, few, device)
    if few == many or took > LONG:
        return took * many / few
    return _clock(work, many, device)


def _clock(work: Callable[[int], object], many: int, device: torch.device) -> float:
    _settle(device)
    began = time.perf_counter()
    work(many)
    _settle(device)
    return time.perf_counter() - began


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
