"""A change d(x, x'): how much something moves from x to x', closed under +, − and scalar multiples.

IG-SUM-NORM is `shift + beta * spread`; the Lagrangian of the distributional form is `d - gamma * c` (paper, sections 3
and 4).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Protocol

import torch
from torch import Tensor

from robattr.errors import InvalidInput
from robattr.formula.attribution import Attribution
from robattr.formula.checks import check_batch, check_model
from robattr.formula.network import Bound, Model, bind, per_example, second_order


class Term(Protocol):
    """d_i(model, x, x', y) -> (B,)."""

    def __call__(self, model: Model, x: Tensor, x1: Tensor, y: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Measured:
    """s∘a: the size of an attribution."""

    size: Callable[[Tensor], Tensor]
    attribution: Attribution

    def __call__(self, model: Model, x: Tensor, x1: Tensor, y: Tensor) -> Tensor:
        return per_example(self.size(self.attribution(model, x, x1, y)), x, self.size)


@dataclass(frozen=True)
class Change:
    """d(x, x') = Σ_i c_i · d_i(x, x'); the empty sum is no change at all. The engine's c_i are tensors."""

    terms: tuple[tuple[float | Tensor, Term], ...] = ()

    def __call__(self, model: Model, x: Tensor, x1: Tensor, y: Tensor) -> Tensor:
        if isinstance(model, Bound):
            return self._value(model, x, x1, y)
        check_model(model)
        check_batch(model, x, y, x1)
        with second_order(model):
            return self._value(bind(model), x, x1, y)

    def _value(self, net: Bound, x: Tensor, x1: Tensor, y: Tensor) -> Tensor:
        value = torch.zeros(len(x), dtype=x.dtype, device=x.device)
        for c, term in self.terms:
            value = value + c * per_example(term(net, x, x1, y), x, term)
        return value

    def __add__(self, other: Change) -> Change:
        if not isinstance(other, Change):
            return NotImplemented
        return Change(self.terms + other.terms)

    def __sub__(self, other: Change) -> Change:
        if not isinstance(other, Change):
            return NotImplemented
        return self + (-1.0) * other

    def __mul__(self, factor: float) -> Change:
        if not isinstance(factor, Real):
            return NotImplemented
        if factor != factor or abs(factor) == float("inf"):
            raise InvalidInput(f"a change is scaled by a finite number, got {factor!r}")
        return Change(tuple((float(factor) * c, term) for c, term in self.terms))

    __rmul__ = __mul__

    def __neg__(self) -> Change:
        return -1.0 * self


def displacement(model: Model, x: Tensor, x1: Tensor, y: Tensor) -> Tensor:
    """x' − x, as an attribution: `power(l2, 2) @ displacement` is the transport cost c(x, x') = ‖x' − x‖₂²."""
    return x1 - x
