"""The neighbourhood N(x, ε): where an ascent starts, in which direction it steps, and how it is projected back.

    start(x)        a random point of N(x, ε): ‖IG‖₁ has zero gradient at x itself
    direction(g)    the unit step that gains most along the gradient g
    project(z, x)   the point of N(x, ε) that replaces z

`rand` is any function like `torch.rand_like`: U(0, 1) numbers of its argument's shape.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from numbers import Real
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from robattr.errors import InvalidInput
from robattr.formula.checks import check_number, check_whole

Rand: TypeAlias = Callable[[Tensor], Tensor]
Bounds: TypeAlias = tuple[float, float]
BISECTIONS = 24  # the digits of float32


class Neighbourhood(Protocol):
    """N(x, ε), with the range of valid inputs (None where there is none)."""

    @property
    def bounds(self) -> Bounds | None: ...

    def start(self, x: Tensor, rand: Rand = torch.rand_like) -> Tensor: ...

    def direction(self, g: Tensor) -> Tensor: ...

    def project(self, z: Tensor, x: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class LinfBall:
    """‖x' − x‖∞ ≤ radius, inside the bounds of valid inputs.

    >>> LinfBall(0.25).project(torch.tensor([[1.5, 0.5]]), torch.tensor([[1.0, 0.0]]))
    tensor([[1.0000, 0.2500]])
    """

    radius: float
    bounds: Bounds | None = (0.0, 1.0)

    def __post_init__(self) -> None:
        _check(self, self.radius)

    def start(self, x: Tensor, rand: Rand = torch.rand_like) -> Tensor:
        """x + U(−ε, ε), clipped to the bounds (the reference clips only after the first step)."""
        return _clip(x + self.radius * (2.0 * rand(x) - 1.0), self.bounds)

    def direction(self, g: Tensor) -> Tensor:
        return g.sign()

    def project(self, z: Tensor, x: Tensor) -> Tensor:
        return _clip(torch.clamp(z, x - self.radius, x + self.radius), self.bounds)


@dataclass(frozen=True)
class LpBall:
    """‖x' − x‖_p ≤ radius for 1 < p < ∞, inside the bounds of valid inputs.

    With 1/p + 1/q = 1 the steepest unit step is sign(g)|g|^{q−1} / ‖g‖_q^{q−1}, by Hölder's inequality. `project`
    takes clip(x + s·(z − x)) with the largest s ≤ 1 that lies in the ball: the nearest point of ball and bounds for
    p = 2, a point of both for every p.
    """

    radius: float
    p: float
    bounds: Bounds | None = (0.0, 1.0)

    def __post_init__(self) -> None:
        _check(self, self.radius)
        if not 1.0 < self.p < float("inf"):
            raise InvalidInput(f"LpBall expects 1 < p < ∞, got {self.p!r}: use LinfBall for p = ∞, L1Ball for p = 1")

    def start(self, x: Tensor, rand: Rand = torch.rand_like) -> Tensor:
        """x + ε·u^{1/d}·v: v a Gaussian direction of unit p-norm, u the first example-wise uniform number."""
        u = rand(x).clamp(1e-6, 1.0 - 1e-6)
        gauss = torch.erfinv(2.0 * u - 1.0)
        depth = rand(x).flatten(1)[:, 0].pow(1.0 / x[0].numel())
        step = gauss / self._norm(gauss).clamp_min(1e-12) * like(depth, x)
        return _clip(x + self.radius * step, self.bounds)

    def direction(self, g: Tensor) -> Tensor:
        q = self.p / (self.p - 1.0)
        largest = like(g.abs().flatten(1).amax(1), g)
        scaled = g.abs() / torch.where(largest > 0, largest, 1.0)
        step = g.sign() * scaled.pow(q - 1.0)
        norm = self._norm(step)
        return step / torch.where(norm > 0, norm, 1.0)

    def project(self, z: Tensor, x: Tensor) -> Tensor:
        step = z - x
        s = (self.radius / self._norm(step).clamp_min(1e-12)).clamp_max(1.0)
        if self.bounds is not None:  # clipping shortens the step, so that s may grow again
            longest = torch.ones_like(s)
            s = torch.where(self._holds(_clip(z, self.bounds), x), longest, s)
            for _ in range(BISECTIONS):
                middle = (s + longest) / 2
                fits = self._holds(_clip(x + middle * step, self.bounds), x)
                s, longest = torch.where(fits, middle, s), torch.where(fits, longest, middle)
        return _clip(x + s * step, self.bounds)

    def _holds(self, z: Tensor, x: Tensor) -> Tensor:
        return self._norm(z - x) <= self.radius

    def _norm(self, a: Tensor) -> Tensor:
        """‖a‖_p per example; of a over its largest entry, because |a|^p leaves float32 where p is large."""
        flat = a.flatten(1)
        largest = torch.linalg.vector_norm(flat, float("inf"), dim=1, keepdim=True)
        scaled = flat / torch.where(largest > 0, largest, 1.0)
        return like(largest[:, 0] * torch.linalg.vector_norm(scaled, self.p, dim=1), a)


def L2Ball(radius: float, bounds: Bounds | None = (0.0, 1.0)) -> LpBall:
    """‖x' − x‖₂ ≤ radius, inside the bounds of valid inputs."""
    return LpBall(radius, 2.0, bounds)


@dataclass(frozen=True)
class L1Ball:
    """‖x' − x‖₁ ≤ radius, inside the bounds of valid inputs.

    A unit step goes along the `coordinates` largest entries of the gradient in equal parts; 1 is steepest, more are
    faster in practice. `project` is the nearest point of ball and bounds: clip(x + soft(z − x, τ)), soft(δ, τ) =
    sign(δ)·max(|δ| − τ, 0), with the least τ ≥ 0 that reaches the ball, by bisection.
    """

    radius: float
    bounds: Bounds | None = (0.0, 1.0)
    coordinates: int = 1

    def __post_init__(self) -> None:
        _check(self, self.radius)
        check_whole("L1Ball expects a whole number of coordinates", self.coordinates, least=1)

    def start(self, x: Tensor, rand: Rand = torch.rand_like) -> Tensor:
        """x + ε·u^{1/d}·v: v of exponential entries with random signs and unit 1-norm, which is uniform in the ball."""
        sizes = -rand(x).clamp_min(1e-12).log()
        v = sizes * torch.where(rand(x) < 0.5, -1.0, 1.0).to(x.dtype)
        depth = rand(x).flatten(1)[:, 0].pow(1.0 / x[0].numel())
        return _clip(x + self.radius * v / like(sizes.flatten(1).sum(1).clamp_min(1e-12) / depth, x), self.bounds)

    def direction(self, g: Tensor) -> Tensor:
        flat = g.flatten(1)
        k = min(self.coordinates, flat.shape[1])
        top = flat.abs().topk(k, dim=1).indices
        return torch.zeros_like(flat).scatter(1, top, flat.gather(1, top).sign() / k).reshape(g.shape)

    def project(self, z: Tensor, x: Tensor) -> Tensor:
        step = z - x
        low, high = torch.zeros_like(step.flatten(1)[:, 0]), step.abs().flatten(1).amax(1)
        inside = self._holds(self._shrunk(step, low, x), x)
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            fits = self._holds(self._shrunk(step, middle, x), x)
            low, high = torch.where(fits, low, middle), torch.where(fits, middle, high)
        return self._shrunk(step, torch.where(inside, torch.zeros_like(high), high), x)

    def _shrunk(self, step: Tensor, tau: Tensor, x: Tensor) -> Tensor:
        return _clip(x + step.sign() * (step.abs() - like(tau, x)).clamp_min(0.0), self.bounds)

    def _holds(self, z: Tensor, x: Tensor) -> Tensor:
        return (z - x).abs().flatten(1).sum(1) <= self.radius


@dataclass(frozen=True)
class Box:
    """x − below ≤ x' ≤ x + above in each coordinate, inside the bounds of valid inputs.

    `below` and `above` are numbers, or tensors that broadcast to one example: 0 where a coordinate must not change.
    """

    below: float | Tensor
    above: float | Tensor
    bounds: Bounds | None = (0.0, 1.0)

    def __post_init__(self) -> None:
        for name, side in (("below", self.below), ("above", self.above)):
            numbers = side if isinstance(side, Tensor) else torch.as_tensor(side) if isinstance(side, Real) else None
            if numbers is None or not bool(((numbers >= 0) & torch.isfinite(numbers)).all()):
                raise InvalidInput(f"Box expects `{name}` ≥ 0, a finite number or a tensor of such, got {side!r}")
        _check(self, 0.0)

    def start(self, x: Tensor, rand: Rand = torch.rand_like) -> Tensor:
        """A uniform point of the box, clipped to the bounds."""
        below, above = self._sides(x)
        return _clip(x - below + (below + above) * rand(x), self.bounds)

    def direction(self, g: Tensor) -> Tensor:
        return g.sign()

    def project(self, z: Tensor, x: Tensor) -> Tensor:
        below, above = self._sides(x)
        return _clip(torch.minimum(torch.maximum(z, x - below), x + above), self.bounds)

    def _sides(self, x: Tensor) -> tuple[float | Tensor, float | Tensor]:
        """`below` and `above` on the device of x."""
        below, above = (s.to(x.device) if isinstance(s, Tensor) else s for s in (self.below, self.above))
        return below, above


@dataclass(frozen=True)
class Everywhere:
    """All valid inputs: the unconstrained supremum of the distributional form, limited by its cost alone.

    The direction is the gradient itself (plain ascent), and the start a point within `nearby` of x in each coordinate,
    because d_IG is flat at x.
    """

    bounds: Bounds | None = None
    nearby: float = 1e-2

    def __post_init__(self) -> None:
        _check(self, self.nearby)

    def start(self, x: Tensor, rand: Rand = torch.rand_like) -> Tensor:
        return _clip(x + self.nearby * (2.0 * rand(x) - 1.0), self.bounds)

    def direction(self, g: Tensor) -> Tensor:
        return g

    def project(self, z: Tensor, x: Tensor) -> Tensor:
        return _clip(z, self.bounds)


def check_range(bounds: object) -> None:
    """Refuse bounds that are not two rising numbers."""
    numbers = isinstance(bounds, tuple | list) and len(bounds) == 2 and all(isinstance(b, Real) for b in bounds)
    if not (numbers and bounds[0] < bounds[1]):  # type: ignore[index]
        raise InvalidInput(f"expected bounds (low, high) with low < high, such as (0, 255), got {bounds!r}")


def check_bounds(x: Tensor, bounds: Bounds | None) -> None:
    """Refuse inputs outside the bounds, which clipping would change."""
    if bounds is None:
        return
    check_range(bounds)
    low, high = bounds
    slack = 1e-5 * (high - low if isfinite(high - low) else 1.0)
    if x.min() < low - slack or x.max() > high + slack:
        raise InvalidInput(
            f"expected inputs within the bounds ({low:g}, {high:g}), got {float(x.min()):g} … {float(x.max()):g}: "
            "scale the data, or give the neighbourhood the right bounds"
        )


def _clip(z: Tensor, bounds: Bounds | None) -> Tensor:
    return z if bounds is None else z.clamp(*bounds)


def like(per_example: Tensor, x: Tensor) -> Tensor:
    """(B,) numbers as (B, 1, …), which broadcast over x."""
    return per_example.reshape(-1, *(1,) * (x.dim() - 1))


def _check(ball: LinfBall | LpBall | L1Ball | Box | Everywhere, radius: float) -> None:
    if isinstance(radius, Tensor):  # the engine's ε, which a ramp changes without compiling anything again
        return
    bounds = ball.bounds
    check_number("expected a finite radius ε", radius)
    if bounds is not None:
        check_range(bounds)
    if isinstance(bounds, list):  # as JSON has them; the engine keeps steps by their objective, which must hash
        object.__setattr__(ball, "bounds", tuple(bounds))
