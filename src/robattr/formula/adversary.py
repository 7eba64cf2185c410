"""The adversary that searches the neighbourhood: projected gradient ascent on any value."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from robattr.errors import InvalidInput
from robattr.formula.neighbourhoods import Neighbourhood, Rand
from robattr.formula.network import gradient

Value: TypeAlias = Callable[[Tensor], Tensor]
"""x' ↦ (B,): what the adversary maximises, each example for itself."""


class Adversary(Protocol):
    """Finds x* in N(x, ε) with a large value."""

    def __call__(
        self,
        value: Value,
        x: Tensor,
        within: Neighbourhood,
        *,
        start: Tensor | None = None,
        rand: Rand = torch.rand_like,
    ) -> Tensor: ...


@dataclass(frozen=True)
class PGD:
    """x ← project(x + step_size · direction(∇ value(x))), `steps` times; the last iterate is kept."""

    steps: int
    step_size: float

    def __post_init__(self) -> None:
        if isinstance(self.steps, bool) or not isinstance(self.steps, Integral) or self.steps < 0:
            raise InvalidInput(f"PGD expects a whole number of steps ≥ 0, got {self.steps!r}")
        if not isinstance(self.step_size, Real) or not 0.0 <= self.step_size < float("inf"):
            raise InvalidInput(f"PGD expects a step size ≥ 0, got {self.step_size!r}")

    def __call__(
        self,
        value: Value,
        x: Tensor,
        within: Neighbourhood,
        *,
        start: Tensor | None = None,
        rand: Rand = torch.rand_like,
    ) -> Tensor:
        """x*: the last iterate. Starts at `start`, else at a random point of the neighbourhood."""
        z = self._begin(x, within, start, rand)
        for _ in range(self.steps):
            z = self.step(value, z, x, within)
        return z

    def iterates(
        self,
        value: Value,
        x: Tensor,
        within: Neighbourhood,
        *,
        start: Tensor | None = None,
        rand: Rand = torch.rand_like,
    ) -> Iterator[Tensor]:
        """x₁, x₂, …: for attacks that keep the best one."""
        z = self._begin(x, within, start, rand)
        for _ in range(self.steps):
            z = self.step(value, z, x, within)
            yield z

    def step(self, value: Value, z: Tensor, x: Tensor, within: Neighbourhood) -> Tensor:
        """One projected step from z."""
        with torch.no_grad():
            return within.project(z + self.step_size * within.direction(gradient(value, z)), x)

    @staticmethod
    def _begin(x: Tensor, within: Neighbourhood, start: Tensor | None, rand: Rand) -> Tensor:
        return (within.start(x, rand) if start is None else within.project(start, x)).detach()
