"""PGD, APGD, random signs, random search and the best of them: iterators over points of a neighbourhood.

They are driven by z ↦ (∇J(z), J(z)).

Training's max, the prediction attack and IFIA all use them. They take the gradient function rather than the value,
because that is what the engine compiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from robattr.errors import InvalidInput, brief, shape_of
from robattr.formula.checks import check_number, check_whole
from robattr.formula.neighbourhoods import Neighbourhood, Rand, like
from robattr.formula.network import gradient_and_value

Value: TypeAlias = Callable[[Tensor], Tensor]
"""J: z (B, ...) ↦ (B,), what the adversary maximises, each example on its own."""

GradAndValue: TypeAlias = Callable[[Tensor], tuple[Tensor, Tensor]]
"""z (B, ...) ↦ (∇J(z), like z; J(z), (B,))."""


def grad_and_value(value: Value, *, allow_zero: bool = False) -> GradAndValue:
    """z ↦ (∇J(z), J(z)) of a value that treats each example on its own, without a graph.

    Where J does not depend on z the gradient is refused, or zero with `allow_zero`: the attribution maps of a piecewise
    linear network are locally constant, its loss is not.
    """

    def found(z: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            return gradient_and_value(value, z.detach(), allow_zero=allow_zero)

    return found


class Ascent(Protocol):
    """A search of N(x, ε) from `start`; yields the point after each step."""

    def iterates(
        self, grad: GradAndValue, x: Tensor, within: Neighbourhood, *, start: Tensor, rand: Rand = torch.rand_like
    ) -> Iterator[Tensor]: ...


def maximise(
    ascent: Ascent,
    value: Value,
    x: Tensor,
    within: Neighbourhood,
    *,
    start: Tensor | None = None,
    rand: Rand = torch.rand_like,
) -> Tensor:
    """x*: the last iterate of the ascent on J. Starts at `start`, else at a random point of the neighbourhood."""
    z = (within.start(x, rand) if start is None else within.project(start, x)).detach()
    with torch.no_grad():
        return last_iterate(ascent, grad_and_value(value), x, within, start=z, rand=rand)


def last_iterate(
    ascent: Ascent, grad: GradAndValue, x: Tensor, within: Neighbourhood, *, start: Tensor, rand: Rand = torch.rand_like
) -> Tensor:
    """The last point that the ascent yields; `start` where it yields none."""
    last = _point(start, x, within)
    points = ascent.iterates(grad, x, within, start=start, rand=rand)
    if not isinstance(points, Iterable):
        raise InvalidInput(f"expected {brief(ascent)}.iterates to yield points, as `yield z` does, got {points!r}")
    for z in points:
        last = _point(z, x, ascent)
    return last


def _point(z: object, x: Tensor, source: object) -> Tensor:
    if not isinstance(z, Tensor) or z.shape != x.shape:
        raise InvalidInput(
            f"expected points of the shape of x, {tuple(x.shape)}, from {brief(source)}, got {shape_of(z)}: return "
            "that shape from start, project and iterates"
        )
    return z


@dataclass(frozen=True)
class PGD:
    """z ← Π(z + step_size · direction(∇J(z))), `steps` times (sign steps in the L∞ ball)."""

    steps: int
    step_size: float

    def __post_init__(self) -> None:
        check_whole("PGD expects a whole number of steps", self.steps, least=0)
        if not isinstance(self.step_size, Tensor):  # from the engine: a ramp changes it without compiling again
            check_number("PGD expects a finite step size", self.step_size)

    def iterates(
        self, grad: GradAndValue, x: Tensor, within: Neighbourhood, *, start: Tensor, rand: Rand = torch.rand_like
    ) -> Iterator[Tensor]:
        z = start
        for _ in range(self.steps):
            z = within.project(z + self.step_size * within.direction(grad(z)[0]), x)
            yield z


@dataclass(frozen=True)
class RandomSigns:
    """z = Π(x + a·sign ξ), independent draws: the control that uses no gradient."""

    steps: int
    step_size: float

    def iterates(
        self, grad: GradAndValue, x: Tensor, within: Neighbourhood, *, start: Tensor, rand: Rand = torch.rand_like
    ) -> Iterator[Tensor]:
        for _ in range(self.steps):
            yield within.project(x + self.step_size * (rand(x) - 0.5).sign(), x)


@dataclass(frozen=True)
class RandomSearch:
    """Random windows at x ± a, kept where J increases: uses J alone (Andriushchenko et al. 2020, Square Attack).

    The first trial is vertical stripes of random sign. Each later one sets a random square of the best point so far to
    x ± a, in one sign per channel, and the squares shrink from half of the image to 1%; of a flat input, a random
    subset in random signs. Yields the trials.
    """

    steps: int
    step_size: float

    def iterates(
        self, grad: GradAndValue, x: Tensor, within: Neighbourhood, *, start: Tensor, rand: Rand = torch.rand_like
    ) -> Iterator[Tensor]:
        images = x.dim() == 4
        best, highest = start, grad(start)[1]
        for t in range(self.steps):
            share = 0.5 * (1 - t / self.steps) ** 2 + 0.01
            if t == 0:
                trial = x + self.step_size * (rand(x[:, :, :1] if images else x) - 0.5).sign()
            else:
                signs = (rand(x[:, :, :1, :1] if images else x) - 0.5).sign()
                window = _window(x, rand(x.flatten(1)[:, :2]), share) if images else rand(x) < share
                trial = torch.where(window, x + self.step_size * signs, best)
            trial = within.project(trial, x)
            value = grad(trial)[1]
            better = value > highest
            best = torch.where(like(better, x), trial, best)
            highest = torch.where(better, value, highest)
            yield trial


def _window(x: Tensor, at: Tensor, share: float) -> Tensor:
    """(B, 1, H, W) bool: a square that covers `share` of the image, placed by two uniform numbers per example."""
    height, width = x.shape[2:]
    side = max(1, round((share * height * width) ** 0.5))
    inside = []
    for axis, length in enumerate((height, width)):
        first = (at[:, axis] * max(1, length - side + 1)).floor()[:, None]
        place = torch.arange(length, device=x.device)
        inside.append((place >= first) & (place < first + side))
    rows, columns = inside
    window: Tensor = (rows[:, :, None] & columns[:, None, :])[:, None]
    return window


@dataclass(frozen=True)
class APGD:
    """Momentum, and a step that halves per example when progress stalls (Croce & Hein 2020, section 3).

        u = Π(z_t + a·d(∇J)),   z_{t+1} = Π(z_t + 0.75 (u − z_t) + 0.25 (z_t − z_{t−1}))

    At each checkpoint an example halves its step and goes back to its best point if fewer than three quarters of its
    steps went up, or if neither its step nor its best value changed since the last checkpoint. Their first step is 2ε.
    """

    steps: int
    step_size: float

    def iterates(
        self, grad: GradAndValue, x: Tensor, within: Neighbourhood, *, start: Tensor, rand: Rand = torch.rand_like
    ) -> Iterator[Tensor]:
        z = before = best_z = start
        step = x.new_full((len(x),), self.step_size)
        best = last = at_check = torch.full_like(step, -torch.inf)
        best_gradient, rises, since = torch.zeros_like(x), torch.zeros_like(step), 0
        halved = torch.zeros_like(step, dtype=torch.bool)
        checkpoints = self.checkpoints()
        for t in range(self.steps):
            gradient, value = grad(z)
            better = value > best
            rises, since = rises + (value > last), since + 1
            best, last = torch.where(better, value, best), value
            best_z = torch.where(like(better, x), z, best_z)
            best_gradient = torch.where(like(better, x), gradient, best_gradient)
            if t in checkpoints:
                stuck = (rises < 0.75 * since) | (~halved & (at_check >= best))
                step = torch.where(stuck, step / 2, step)
                z, before = (torch.where(like(stuck, x), best_z, p) for p in (z, before))
                gradient = torch.where(like(stuck, x), best_gradient, gradient)
                halved, at_check, rises, since = stuck, best, torch.zeros_like(rises), 0
            u = within.project(z + like(step, x) * within.direction(gradient), x)
            z, before = within.project(z + 0.75 * (u - z) + 0.25 * (z - before), x) if t else u, z
            yield z

    def checkpoints(self) -> set[int]:
        """The iterations at which steps may halve: after 22% of them, then at intervals that shrink to 6%."""
        at, span, found = 0.22, 0.22, set()
        while at < 1:
            found.add(round(at * self.steps))
            span = max(span - 0.03, 0.06)
            at += span
        return found


@dataclass(frozen=True)
class Annealed:
    """Momentum, and a step that shrinks geometrically from `first` to `last`, for a J that changes on the way.

    u = Π(z_t + a_t·d(∇J_t)),   z_{t+1} = Π(z_t + 0.75 (u − z_t) + 0.25 (z_t − z_{t−1}))
    """

    steps: int
    first: float
    last: float

    def iterates(
        self, grad: GradAndValue, x: Tensor, within: Neighbourhood, *, start: Tensor, rand: Rand = torch.rand_like
    ) -> Iterator[Tensor]:
        z = before = start
        for step in geometric(self.first, self.last, self.steps):
            u = within.project(z + step * within.direction(grad(z)[0]), x)
            z, before = within.project(z + 0.75 * (u - z) + 0.25 * (z - before), x), z
            yield z


def geometric(first: float, last: float, count: int) -> list[float]:
    """`count` numbers from `first` to `last` in equal ratios."""
    return [first * (last / first) ** (t / max(1, count - 1)) for t in range(count)]


@dataclass(frozen=True)
class Best:
    """The best point that an ascent visits, over `restarts` of it: max J over every start and iterate, per example.

    The first run begins at the given start, the others at random points of the neighbourhood. One more gradient per run
    than the ascent takes itself.
    """

    ascent: Ascent
    restarts: int = 1

    def __post_init__(self) -> None:
        if not hasattr(self.ascent, "iterates"):
            raise InvalidInput(f"Best expects an ascent such as PGD(steps=7, step_size=0.1), got {self.ascent!r}")
        check_whole("Best expects a whole number of restarts", self.restarts, least=1)

    def iterates(
        self, grad: GradAndValue, x: Tensor, within: Neighbourhood, *, start: Tensor, rand: Rand = torch.rand_like
    ) -> Iterator[Tensor]:
        best_z, best = start, torch.full_like(x.flatten(1)[:, 0], -torch.inf)
        last: tuple[Tensor, tuple[Tensor, Tensor]] | None = None

        def once(z: Tensor) -> tuple[Tensor, Tensor]:
            """∇J and J, not computed again for the point that was asked for last."""
            nonlocal last
            if last is None or last[0] is not z:
                last = z, grad(z)
            return last[1]

        for run in range(self.restarts):
            first = start if run == 0 else within.start(x, rand)
            for z in chain([first], self.ascent.iterates(once, x, within, start=first, rand=rand)):
                value = once(z)[1]
                better = value > best
                best = torch.where(better, value, best)
                best_z = torch.where(like(better, x), z, best_z)
                yield best_z
