"""The curve r from x to x': a value r(t) and a derivative r'(t), for t in [0, 1] (paper, section 2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from robattr.errors import InvalidInput

Waypoint = Tensor | Callable[[Tensor, Tensor], Tensor]


class Path(Protocol):
    """r(0) = x, r(1) = x', differentiable between finitely many kinks."""

    def __call__(self, x: Tensor, x1: Tensor, t: float) -> Tensor: ...

    def derivative(self, x: Tensor, x1: Tensor, t: float) -> Tensor: ...


@dataclass(frozen=True)
class Straight:
    """r(t) = x + t (x' − x)."""

    def __call__(self, x: Tensor, x1: Tensor, t: float) -> Tensor:
        return x + t * (x1 - x)

    def derivative(self, x: Tensor, x1: Tensor, t: float) -> Tensor:
        return x1 - x


@dataclass(frozen=True)
class Polyline:
    """x → w_1 → … → w_n → x', each of the n + 1 segments taking an equal share of the time.

    At a kink the derivative is that of the segment which begins there. A rule keeps its order of accuracy only on
    smooth pieces: choose one that puts equally many nodes into each segment (`midpoint(m)`, m a multiple of n + 1).
    """

    waypoints: tuple[Waypoint, ...]

    def __call__(self, x: Tensor, x1: Tensor, t: float) -> Tensor:
        a, b, share = self._segment(x, x1, t)
        return a + share * (b - a)

    def derivative(self, x: Tensor, x1: Tensor, t: float) -> Tensor:
        a, b, _ = self._segment(x, x1, t)
        return (len(self.waypoints) + 1) * (b - a)

    def _segment(self, x: Tensor, x1: Tensor, t: float) -> tuple[Tensor, Tensor, float]:
        corners = [x, *(w(x, x1) if callable(w) else w.expand_as(x) for w in self.waypoints), x1]
        segments = len(corners) - 1
        i = min(int(t * segments), segments - 1)
        return corners[i], corners[i + 1], t * segments - i


straight = Straight()
"""r(t) = x + t·(x' − x)."""


def polyline(*waypoints: Waypoint) -> Polyline:
    """The broken line through `waypoints`: tensors that broadcast to x, or functions (x, x') ↦ point."""
    if not waypoints:
        raise InvalidInput("polyline expects at least one waypoint, got none: use `straight`")
    return Polyline(waypoints)
