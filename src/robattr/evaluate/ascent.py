"""Two ways to walk a neighbourhood uphill and one that only throws dice, showing every point visited.

They are given the slope, z ↦ (∇J(z), J(z)), rather than the value: a slope is what the engine can compile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from robattr.formula.adversary import Value, grad_and_value
from robattr.formula.neighbourhoods import Neighbourhood, Rand

Slope: TypeAlias = Callable[[Tensor], tuple[Tensor, Tensor]]
"""z (B, ...) ↦ the gradient, like z, and the values (B,)."""


def slope_of(value: Value, *, flat: bool = True) -> Slope:
    """z ↦ (∇J, J); where J does not depend on z, zero or (not `flat`) refused."""
    return grad_and_value(value, allow_zero=flat)


class Ascent(Protocol):
    """A walk from `start` inside N(x, ε); yields the points after each step."""

    def iterates(
        self, slope: Slope, x: Tensor, within: Neighbourhood, *, start: Tensor, rand: Rand
    ) -> Iterator[Tensor]: ...


@dataclass(frozen=True)
class Fixed:
    """z ← Π(z + a·d(∇J)): the formula's PGD with its points shown (sign steps in the L∞ ball)."""

    steps: int
    step_size: float

    def iterates(
        self, slope: Slope, x: Tensor, within: Neighbourhood, *, start: Tensor, rand: Rand
    ) -> Iterator[Tensor]:
        z = start
        for _ in range(self.steps):
            z = within.project(z + self.step_size * within.direction(slope(z)[0]), x)
            yield z


@dataclass(frozen=True)
class RandomSigns:
    """z = Π(x + a·sign ξ), each draw for itself: the control that looks at no slope."""

    steps: int
    step_size: float

    def iterates(
        self, slope: Slope, x: Tensor, within: Neighbourhood, *, start: Tensor, rand: Rand
    ) -> Iterator[Tensor]:
        for _ in range(self.steps):
            yield within.project(x + self.step_size * (rand(x) - 0.5).sign(), x)


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
        self, slope: Slope, x: Tensor, within: Neighbourhood, *, start: Tensor, rand: Rand
    ) -> Iterator[Tensor]:
        def each(flags: Tensor) -> Tensor:
            return flags.view(-1, *(1,) * (x.dim() - 1))

        z = before = best_z = start
        step = x.new_full((len(x),), self.step_size)
        best = last = at_check = torch.full_like(step, -torch.inf)
        best_gradient, rises, since = torch.zeros_like(x), torch.zeros_like(step), 0
        halved = torch.zeros_like(step, dtype=torch.bool)
        checkpoints = self.checkpoints()
        for t in range(self.steps):
            gradient, value = slope(z)
            better = value > best
            rises, since = rises + (value > last), since + 1
            best, last = torch.where(better, value, best), value
            best_z = torch.where(each(better), z, best_z)
            best_gradient = torch.where(each(better), gradient, best_gradient)
            if t in checkpoints:
                stuck = (rises < 0.75 * since) | (~halved & (at_check >= best))
                step = torch.where(stuck, step / 2, step)
                z, before = (torch.where(each(stuck), best_z, p) for p in (z, before))
                gradient = torch.where(each(stuck), best_gradient, gradient)
                halved, at_check, rises, since = stuck, best, torch.zeros_like(rises), 0
            u = within.project(z + each(step) * within.direction(gradient), x)
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
