"""Two more ways to walk a neighbourhood, beside the formula's PGD and with the same `iterates`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from robattr.formula.adversary import Value
from robattr.formula.neighbourhoods import Neighbourhood, Rand


class Ascent(Protocol):
    """Anything that walks uphill inside a neighbourhood and shows every point it visits."""

    def iterates(
        self, value: Value, x: Tensor, within: Neighbourhood, *, start: Tensor | None = None, rand: Rand = ...
    ) -> Iterator[Tensor]: ...


@dataclass(frozen=True)
class RandomWalk:
    """x ← Π(x + a·sign ξ): the control that looks at no gradient. `value` is never called."""

    steps: int
    step_size: float

    def iterates(
        self,
        value: Value,
        x: Tensor,
        within: Neighbourhood,
        *,
        start: Tensor | None = None,
        rand: Rand = torch.rand_like,
    ) -> Iterator[Tensor]:
        z = x if start is None else start
        for _ in range(self.steps):
            z = within.project(z + self.step_size * (rand(x) - 0.5).sign(), x)
            yield z


@dataclass(frozen=True)
class APGD:
    """PGD with momentum and a step that halves per example when progress stalls (Croce & Hein 2020, section 3).

        u = Π(z_t + a·d(∇)),   z_{t+1} = Π(z_t + 0.75 (u − z_t) + 0.25 (z_t − z_{t−1}))

    At each checkpoint an example halves its step and goes back to its best point if fewer than three quarters
    of its steps went up, or if neither its step nor its best value changed since the last checkpoint. Their
    first step is 2ε.
    """

    steps: int
    step_size: float

    def iterates(
        self,
        value: Value,
        x: Tensor,
        within: Neighbourhood,
        *,
        start: Tensor | None = None,
        rand: Rand = torch.rand_like,
    ) -> Iterator[Tensor]:
        climb = torch.func.grad_and_value(lambda z: _sum_and_each(value(z)), has_aux=True)
        z = before = within.start(x, rand) if start is None else start
        wide = (-1, *(1,) * (x.dim() - 1))
        step = x.new_full((len(x),), self.step_size)
        best = last = x.new_full((len(x),), -torch.inf)
        best_z, best_gradient = z, torch.zeros_like(x)
        best_at_check, rises = best, torch.zeros_like(step)
        halved = torch.zeros_like(step, dtype=torch.bool)
        checkpoints, since = self._checkpoints(), 0
        for t in range(self.steps):
            gradient, (_, each) = climb(z)
            rises = rises + (each > last)
            better = each > best
            best, last = torch.where(better, each, best), each
            best_z = torch.where(better.view(wide), z, best_z)
            best_gradient = torch.where(better.view(wide), gradient, best_gradient)
            since += 1
            if t in checkpoints:
                stuck = (rises < 0.75 * since) | (~halved & (best_at_check >= best))
                step = torch.where(stuck, step / 2, step)
                halved, best_at_check = stuck, best
                rises, since = torch.zeros_like(rises), 0
                z, before = (torch.where(stuck.view(wide), best_z, p) for p in (z, before))
                gradient = torch.where(stuck.view(wide), best_gradient, gradient)
            u = within.project(z + step.view(wide) * within.direction(gradient), x)
            z, before = within.project(z + 0.75 * (u - z) + 0.25 * (z - before), x) if t else u, z
            yield z

    def _checkpoints(self) -> set[int]:
        at, span, found = 0.22, 0.22, set()
        while at < 1:
            found.add(round(at * self.steps))
            span = max(span - 0.03, 0.06)
            at += span
        return found


def _sum_and_each(each: Tensor) -> tuple[Tensor, Tensor]:
    return each.sum(), each
