"""The size s of an attribution: s(a) -> (B,), and its composition with one, s @ IG = s∘IG."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from torch import Tensor

from robattr.errors import InvalidInput
from robattr.formula.attribution import Attribution
from robattr.formula.change import Change, Measured


@dataclass(frozen=True)
class Size:
    """s(a) for a of shape (B, ...): one number per example. `s @ attribution` is the change d = s∘attribution."""

    name: str
    of: Callable[[Tensor], Tensor]

    def __call__(self, a: Tensor) -> Tensor:
        return self.of(a.reshape(len(a), -1))

    def __matmul__(self, attribution: Attribution) -> Change:
        return Change(((1.0, Measured(self, attribution)),))

    def __repr__(self) -> str:
        return self.name


total = Size("total", lambda a: a.sum(1))
"""sum(a): the weak size of proposition 1; parts may cancel."""

l1 = Size("l1", lambda a: a.abs().sum(1))
"""‖a‖₁: nothing cancels. Its gradient at x' = x is zero, so an ascent must not start there."""

l2 = Size("l2", lambda a: a.square().sum(1).clamp_min(1e-24).sqrt())
"""‖a‖₂ (the floor 1e-12 keeps the derivative finite at zero)."""

linf = Size("linf", lambda a: a.abs().amax(1))
"""‖a‖∞."""


@lru_cache  # equal powers are one object, so that what was compiled for one serves the other
def power(size: Size, q: float) -> Size:
    """s(a)^q; `power(l1, q)` is the size of proposition 2. Where s(a) = 0 the derivative is 0, for q < 1 by choice."""
    if not q > 0:
        raise InvalidInput(f"power expects an exponent q > 0, got {q!r}")

    def raised(a: Tensor) -> Tensor:
        s = size(a)
        none = s == 0  # there 0^q has no finite slope for q < 1, and inf · 0 is not a number
        return s.masked_fill(none, 1.0).pow(q).masked_fill(none, 0.0)

    return Size(f"power({size}, {q:g})", raised)
