"""Learning rates and ramps as plain functions of the step: there is no schedule state to save.

A step t counts the updates done so far: t = 0 for the first one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import cos, pi

Schedule = Callable[[int], float]


def constant(rate: float) -> Schedule:
    """η_t = η."""
    return lambda step: rate


def piecewise(boundaries: Sequence[int], rates: Sequence[float]) -> Schedule:
    """η_t = r_0 for t ≤ b_0, r_1 for b_0 < t ≤ b_1, …: the boundary itself belongs to the piece before it.

    The reference code of the paper (GTSRB, Flower): boundaries (500, 60,000), three rates.
    """
    bounds, values = tuple(boundaries), tuple(rates)
    return lambda step: values[sum(step > b for b in bounds)]


def linear(rate: float, *, steps: int, warmup: int = 0) -> Schedule:
    """η_t rises linearly to η over `warmup` steps, then falls linearly to 0 at t = `steps`."""
    return lambda step: rate * _rise(step, warmup) * (1 - _progress(step, warmup, steps))


def cosine(rate: float, *, steps: int, warmup: int = 0) -> Schedule:
    """η_t rises linearly to η over `warmup` steps, then falls along half a cosine to 0 at t = `steps`."""
    return lambda step: rate * _rise(step, warmup) * (1 + cos(pi * _progress(step, warmup, steps))) / 2


def one_cycle(rate: float, *, steps: int, warmup: int = 0) -> Schedule:
    """η/25 rises along a cosine to η over `warmup` steps (0: 30 % of the run), then falls along one to η/10⁴."""
    peak = warmup or max(1, round(0.3 * steps))

    def at(step: int) -> float:
        if step < peak:
            return _between(rate / 25, rate, step / peak)
        return _between(rate, rate / 1e4, _progress(step, peak, steps))

    return at


def ramp(step: int, bounds: Sequence[int]) -> float:
    """The factor of a warm-up (start, end): 0 before `start`, 1 from `end` on, linear between; () is always 1."""
    if not bounds:
        return 1.0
    start, end = bounds
    return min(1.0, max(0.0, (step - start) / (end - start)))


def _rise(step: int, warmup: int) -> float:
    return min(1.0, (step + 1) / warmup) if warmup else 1.0


def _progress(step: int, start: int, end: int) -> float:
    return min(1.0, max(0.0, (step - start) / max(1, end - start)))


def _between(a: float, b: float, t: float) -> float:
    """From a (t = 0) to b (t = 1) along half a cosine."""
    return b + (a - b) * (1 + cos(pi * t)) / 2
