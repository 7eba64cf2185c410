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
from robattr.formula.network import no_gradient, per_example

Value: TypeAlias = Callable[[Tensor], Tensor]
"""x' ↦ (B,): what the adversary maximises, each example for itself."""

GradAndValue: TypeAlias = Callable[[Tensor], tuple[Tensor, Tensor]]
"""z (B, ...) ↦ (∇J(z), like z; J(z), (B,))."""


def grad_and_value(value: Value, *, allow_zero: bool = False) -> GradAndValue:
    """z ↦ (∇J(z), J(z)) of a value that treats each example on its own.

    Where J does not depend on z the gradient is refused, or zero with `allow_zero`: the attribution maps of a piecewise
    linear network are locally constant, its loss is not.
    """

    def found(z: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            v = z.detach().requires_grad_()
            each = per_example(value(v), z)
            if not each.requires_grad:
                if not allow_zero:
                    raise no_gradient()
                return torch.zeros_like(z), each
            (gradient,) = torch.autograd.grad(each.sum(), v, materialize_grads=True)
        return gradient, each.detach()

    return found


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
        if isinstance(self.step_size, Tensor):  # the engine's, which a ramp changes without compiling again
            return
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
        z = (within.start(x, rand) if start is None else within.project(start, x)).detach()
        with torch.no_grad():
            for z in self.iterates(grad_and_value(value), x, within, start=z, rand=rand):  # noqa: B007, B020
                pass
        return z

    def iterates(
        self, grad: GradAndValue, x: Tensor, within: Neighbourhood, *, start: Tensor, rand: Rand = torch.rand_like
    ) -> Iterator[Tensor]:
        """The points after each step, from z ↦ (∇J(z), J(z)): what the engine compiles."""
        z = start
        for _ in range(self.steps):
            z = within.project(z + self.step_size * within.direction(grad(z)[0]), x)
            yield z
