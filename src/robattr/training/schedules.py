"""Learning rates and ramps as functions of the step, so that there is no schedule state to save.

The step t counts the updates done so far: t = 0 for the first one.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import cos, pi


def piecewise(step: int, boundaries: Sequence[int], rates: Sequence[float]) -> float:
    """η_t = r_0 for t ≤ b_0, r_1 for b_0 < t ≤ b_1, …: a boundary belongs to the piece before it.

    The reference code of the paper (GTSRB, Flower) has boundaries (500, 60,000) and three rates.
    """
    return rates[sum(step > boundary for boundary in boundaries)]


def linear(step: int, rate: float, *, steps: int, warmup: int = 0) -> float:
    """η_t rises linearly to η over `warmup` steps, then falls linearly to 0 at t = `steps`."""
    return rate * _rise(step, warmup) * (1 - _progress(step, warmup, steps))


def cosine(step: int, rate: float, *, steps: int, warmup: int = 0) -> float:
    """η_t rises linearly to η over `warmup` steps, then falls along half a cosine to 0 at t = `steps`."""
    return rate * _rise(step, warmup) * (1 + cos(pi * _progress(step, warmup, steps))) / 2


def one_cycle(step: int, rate: float, *, steps: int, warmup: int = 0) -> float:
    """η_t rises from η/25 to η over `warmup` steps (0: 30 % of the run), then falls to η/10⁴, along cosines."""
    peak = warmup or max(1, round(0.3 * steps))
    if step < peak:
        return _interpolate(rate / 25, rate, step / peak)
    return _interpolate(rate, rate / 1e4, _progress(step, peak, steps))


def ramp(step: int, bounds: Sequence[int]) -> float:
    """The factor of a ramp (start, end): 0 before `start`, 1 from `end` on, linear between; () is always 1."""
    if not bounds:
        return 1.0
    start, end = bounds
    return min(1.0, max(0.0, (step - start) / (end - start)))


def _rise(step: int, warmup: int) -> float:
    return min(1.0, (step + 1) / warmup) if warmup else 1.0


def _progress(step: int, start: int, end: int) -> float:
    return min(1.0, max(0.0, (step - start) / max(1, end - start)))


def _interpolate(a: float, b: float, t: float) -> float:
    """From a (t = 0) to b (t = 1) along half a cosine."""
    return b + (a - b) * (1 + cos(pi * t)) / 2
