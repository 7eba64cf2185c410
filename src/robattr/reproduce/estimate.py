"""How long a plan will take here: a few gradients are timed on random images and multiplied out.

A training step costs a fixed part and a part for each step of its attack; two short runs tell both.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import torch
from torch import nn

from robattr import models
from robattr.data import card
from robattr.evaluate import IFIA, paper
from robattr.evaluate.maps import by_name
from robattr.reproduce.job import Job
from robattr.train.distributed import choose_device
from robattr.train.run import Run

SAMPLE = 4  # images timed on a processor, where the time of a large net is proportional to them


def seconds_to_train(job: Job, device: str = "auto") -> float:
    """Steps × the time of one, on this machine."""
    fixed, each = _training_step(_typical(job.run), device)
    return job.run.steps * (fixed + each * _attack_steps(job.run))


def seconds_to_evaluate(job: Job, device: str = "auto") -> float:
    """Examples × repeats × iterations × the time of one."""
    protocol = paper(job.run.dataset)
    return job.examples * protocol.repeats * protocol.steps * _attack_iteration(job.run.dataset, job.map, device)


def words(seconds: float) -> str:
    """`40 s`, `12 min`, `3.5 h`, `12 days`."""
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            amount = seconds / size
            return f"{amount:.0f} {unit}" if amount >= 10 else f"{amount:.1f} {unit}"
    return f"{seconds:.0f} s"


def _typical(run: Run) -> Run:
    """The run without what does not change the time of a step, so that a time measured once serves alike runs."""
    return replace(
        run, recipe="", steps=1, seed=0, schedule="constant", boundaries=(), rates=(), weight=1.0, attack_steps=1
    )


def _attack_steps(run: Run) -> int:
    return 0 if run.method == "natural" else run.attack_steps


@cache
def _training_step(run: Run, device: str) -> tuple[float, float]:
    """(seconds of a step without its attack, seconds of each attack step)."""
    where = choose_device(device)
    model = models.for_dataset(run.dataset).to(where)
    many = run.batch if where.type == "cuda" or _small(model) else SAMPLE
    x, y = _images(run.dataset, many, where)
    bounds = paper(run.dataset).bounds

    def step(attack_steps: int) -> Callable[[], object]:
        rho = replace(run, attack_steps=attack_steps).objective(bounds)
        return lambda: rho(model, x, y).value.mean().backward()

    one, three = _time(step(1), where), _time(step(3), where)
    each = max(0.0, (three - one) / 2)
    scale = run.batch / many
    return scale * max(one - each, 0.0), scale * each


@cache
def _attack_iteration(dataset: str, map_name: str, device: str) -> float:
    """Seconds of one iteration of the attribution attack on one example."""
    where = choose_device(device)
    protocol = paper(dataset)
    model: nn.Module = models.for_dataset(dataset).to(where).eval()
    many = 16 if where.type == "cuda" or _small(model) else SAMPLE
    x, y = _images(dataset, many, where)
    map = by_name(map_name, N=protocol.N, bounds=protocol.bounds)

    def attack(steps: int) -> Callable[[], object]:
        ifia = IFIA(model, protocol.eps, protocol.alpha, steps, k=protocol.k, map=map, bounds=protocol.bounds)
        return lambda: ifia(x, y)

    return max(1e-9, (_time(attack(3), where) - _time(attack(1), where)) / (2 * many))


def _small(model: nn.Module) -> bool:
    """A net so small that calling it costs more than computing it: it must be timed on whole batches."""
    return sum(p.numel() for p in model.parameters()) < 50_000


def _images(dataset: str, many: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    about = card(dataset)
    low, high = paper(dataset).bounds
    source = torch.Generator().manual_seed(0)
    x = low + (high - low) * torch.rand(many, *about.shape, generator=source)
    return x.to(device), (torch.arange(many) % len(about.classes)).to(device)


def _time(work: Callable[[], object], device: torch.device) -> float:
    """Seconds of the second call: the first pays for what is prepared once."""
    work()
    _settle(device)
    began = time.perf_counter()
    work()
    _settle(device)
    return time.perf_counter() - began


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
