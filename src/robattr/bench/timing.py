"""Clocks: medians of repeated runs after a warm-up, the device waited for; and what the device can do at best."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from robattr.engine import precision

SHORTEST = 2e-3  # seconds: briefer calls are timed several at once


@dataclass(frozen=True)
class Times:
    """Milliseconds per call: the median, the fastest and the slowest of `repeats` samples of `calls` calls each."""

    ms: float
    low: float
    high: float
    repeats: int
    calls: int = 1

    def per(self, n: int) -> Times:
        """The same for one of n equal parts of the call."""
        return Times(self.ms / n, self.low / n, self.high / n, self.repeats, self.calls)


def wait(device: torch.device) -> None:
    """Until everything sent to the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def once(fn: Callable[[], object], device: torch.device, *, calls: int = 1) -> float:
    """Seconds of `calls` calls: by device events on a GPU, else by the clock."""
    wait(device)
    if device.type == "cuda":
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(calls):
            fn()
        end.record()
        wait(device)
        return float(begin.elapsed_time(end)) / 1e3
    begun = time.perf_counter()
    for _ in range(calls):
        fn()
    return time.perf_counter() - begun


def timed(fn: Callable[[], object], device: torch.device, *, repeats: int = 10, seconds: float = 5.0) -> Times:
    """The median over `repeats` samples after a warm-up; fewer, but three, where they would exceed `seconds`."""
    return side_by_side([fn], device, repeats=repeats, seconds=seconds)[0]


def side_by_side(
    ways: Sequence[Callable[[], object]], device: torch.device, *, repeats: int = 10, seconds: float = 5.0
) -> list[Times]:
    """`timed` for several ways at once, their samples interleaved: whatever else slows the machine slows all alike."""
    plans = []
    for fn in ways:
        once(fn, device)
        first = once(fn, device)
        calls = max(1, round(SHORTEST / max(first, 1e-7)))
        fits = int(seconds / max(first * calls, 1e-7))
        plans.append((fn, calls, min(repeats, max(fits, 3 if first < seconds else 1))))
    samples: list[list[float]] = [[] for _ in ways]
    for turn in range(repeats):
        for (fn, calls, wanted), taken in zip(plans, samples, strict=True):
            if turn < wanted:
                taken.append(1e3 * once(fn, device, calls=calls) / calls)
    return [
        Times(median(taken), min(taken), max(taken), len(taken), calls)
        for (_, calls, _), taken in zip(plans, samples, strict=True)
    ]


@dataclass(frozen=True)
class Rates:
    """Measured ceilings of the device: operations per second in matrix products, bytes per second in a copy."""

    operations: float
    bytes: float


def measured_rates(device: torch.device, arithmetic: str) -> Rates:
    """A large matrix product in the precision used, and a large copy (bytes read plus bytes written)."""
    n, size = (8192, 2**28) if device.type == "cuda" else (1536, 2**25)
    dtype = torch.bfloat16 if arithmetic == "bf16" else torch.float32
    a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    product = torch.empty_like(a)
    with precision("fp32" if arithmetic == "bf16" else arithmetic, device.type):
        multiply = timed(lambda: torch.mm(a, b, out=product), device, seconds=2.0)
    source = torch.randn(size, device=device)
    target = torch.empty_like(source)
    copy = timed(lambda: target.copy_(source), device, seconds=2.0)
    return Rates(2 * n**3 / (multiply.low / 1e3), 2 * 4 * size / (copy.low / 1e3))
