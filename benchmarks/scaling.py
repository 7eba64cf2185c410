"""The cost of a training step against m, attack steps, batch, image size and model width.

One small convolutional network, one axis at a time. Steps are not compiled, because only the growth matters here; on a
GPU they are replayed as a CUDA graph.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

import torch
from torch import nn

from benchmarks.measure import timed
from benchmarks.results import Case, Table
from robattr import objectives
from robattr.engine import Step
from robattr.formula import PGD, LinfBall


@dataclass(frozen=True)
class Size:
    """Everything that the cost of a step depends on."""

    m: int
    steps: int
    batch: int
    size: int
    width: int


BASE = {"cuda": Size(m=10, steps=8, batch=64, size=32, width=16), "cpu": Size(m=4, steps=2, batch=8, size=16, width=8)}


def measure(device: torch.device, arithmetic: str, *, quick: bool) -> Case:
    """Each axis at 1, 2 and 4 times the base, the others fixed."""
    base = BASE[device.type]
    least = step_ms(base, device, arithmetic)
    rows: list[tuple[str | float, ...]] = []
    for axis, value in asdict(base).items():
        rows.append((axis, value, least, 1.0))
        for factor in (2,) if quick else (2, 4):
            ms = step_ms(replace(base, **{axis: factor * value}), device, arithmetic)
            rows.append((axis, factor * value, ms, ms / least))
    setting = ", ".join(f"{axis} {value}" for axis, value in asdict(base).items())
    columns = ("axis", "value", "ms per training step", "times the base")
    growth = Table("Growth of the cost", columns, tuple(rows))
    return Case("scaling", f"base: {setting}; {arithmetic}", tables=(growth,))


def step_ms(size: Size, device: torch.device, arithmetic: str) -> float:
    """Milliseconds of one IG-NORM step (half of m in the attack)."""
    torch.manual_seed(0)
    model = network(size.width).to(device)
    x = torch.rand(size.batch, 3, size.size, size.size, device=device)
    y = torch.arange(size.batch, device=device) % 10
    by = PGD(size.steps, 0.01)
    rho = objectives.ig_norm(1.0, LinfBall(0.1), by, m=size.m, m_attack=max(1, size.m // 2))
    step, start = Step(model, arithmetic=arithmetic), rho.within.start(x)

    def run() -> None:
        model.zero_grad()
        step(rho, x, y, start=start)

    return timed(run, device=device, repeats=5, seconds=1.0)[0].ms


def network(width: int) -> nn.Module:
    """Three 3×3 convolutions (w, 2w, 4w channels, the last two with stride 2), global average pool, 10 classes."""
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1), nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(2 * width, 4 * width, 3, stride=2, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 10),
    )  # fmt: skip
