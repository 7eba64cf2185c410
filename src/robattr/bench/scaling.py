"""How the cost of a training step grows: with m, attack steps, batch, image size and model width.

One small convolutional network, so that every axis can be doubled by itself. On a GPU the step is replayed as a CUDA
graph of torch's own kernels: growth is what matters here, and no code has to be generated for each point.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import nn

from robattr import objectives
from robattr.bench.results import Case, Table
from robattr.bench.timing import timed
from robattr.engine import Step
from robattr.engine.compiled import traced
from robattr.formula import PGD, LinfBall


@dataclass(frozen=True)
class Point:
    """One training step: everything its cost depends on."""

    m: int
    steps: int
    batch: int
    size: int
    width: int


CUDA = Point(m=10, steps=8, batch=64, size=32, width=16)
CPU = Point(m=4, steps=2, batch=8, size=16, width=8)
AXES = ("m", "steps", "batch", "size", "width")


def measure(device: torch.device, arithmetic: str, *, quick: bool) -> Case:
    """Each axis at 1, 2 and 4 times the base, the others fixed."""
    base = CUDA if device.type == "cuda" else CPU
    factors = (1, 2) if quick else (1, 2, 4)
    times: dict[Point, float] = {}

    def cost(point: Point) -> float:
        if point not in times:
            times[point] = step_ms(point, device, arithmetic)
        return times[point]

    rows: list[tuple[str | float, ...]] = []
    for axis in AXES:
        middle = getattr(base, axis)
        for factor in factors:
            value = factor * middle
            ms = cost(replace(base, **{axis: value}))
            rows.append((axis, value, ms, ms / cost(base)))
    setting = ", ".join(f"{axis} {getattr(base, axis)}" for axis in AXES)
    columns = ("axis", "value", "ms per training step", "times the base")
    return Case(
        "scaling", f"base: {setting}; {arithmetic}", tables=(Table("Growth of the cost", columns, tuple(rows)),)
    )


def step_ms(point: Point, device: torch.device, arithmetic: str) -> float:
    """Milliseconds of one IG-NORM step (half of m in the attack)."""
    torch.manual_seed(0)
    model = network(point.width).to(device)
    x = torch.rand(point.batch, 3, point.size, point.size, device=device)
    y = torch.arange(point.batch, device=device) % 10
    by = PGD(point.steps, 0.01)
    rho = objectives.ig_norm(1.0, LinfBall(0.1), by, m=point.m, m_attack=max(1, point.m // 2))
    start = rho.within.start(x)
    step = Step(model, compiled=device.type == "cuda", arithmetic=arithmetic, backend=traced)

    def run() -> None:
        model.zero_grad()
        step(rho, x, y, start=start)

    return timed(run, device, repeats=5, seconds=1.0).ms


def network(width: int) -> nn.Module:
    """Three 3×3 convolutions (w, 2w, 4w channels, the last two at stride 2), global average, 10 classes."""
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1), nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(2 * width, 4 * width, 3, stride=2, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 10),
    )  # fmt: skip
