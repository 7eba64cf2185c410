"""The size s of an attribution: s(a) -> (B,), and its composition with one, s @ IG = s∘IG.

Any function of a (B, n) array that returns (B,) becomes a size by `Size(function)`, also as a decorator:

    @Size
    def energy(a):
        return a.square().sum(1)

    d = (energy + 2 * l1) @ IG()
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeGuard

from torch import Tensor

from robattr.errors import InvalidInput, brief
from robattr.formula.algebra import Measure
from robattr.formula.attribution import Attribution
from robattr.formula.change import Change, Compared, Measured
from robattr.formula.checks import check_callable, check_number
from robattr.formula.network import per_example

PAIR = "an attribution such as IG(), or a pair (attribution, reference) such as (Gradient(), frozen(Gradient()))"


@dataclass(frozen=True, repr=False)
class Size(Measure):
    """s(a) for a of shape (B, ...), which `of` sees as (B, n): one number per example.

    s @ attribution             the change s(attribution(x, x'))
    s @ (attribution, ref)      the change s(attribution − ref), such as ‖a(x') − a(x)‖₁ for l1 @ (a, clean(a))
    s + t, s - t, c * s, s / c  sizes again; `sum([s, t])` too

    >>> import torch
    >>> largest_two = Size(lambda a: a.abs().topk(2).values.sum(1), "largest_two")
    >>> (largest_two + 2 * linf)(torch.tensor([[3.0, -4.0, 1.0]]))
    tensor([15.])
    """

    kind = ("size", "l1 + 2 * l2")
    of: Callable[[Tensor], Tensor]
    name: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        check_callable("Size expects a function of a (B, n) array that returns (B,)", self.of)

    def __call__(self, a: Tensor) -> Tensor:
        return per_example(self.of(a.reshape(len(a), -1)), a, self)

    def __matmul__(self, attribution: Attribution | tuple[Attribution, Attribution]) -> Change:
        if isinstance(attribution, tuple):
            return Change.of(Compared(Difference(self), *pair(repr(self), attribution)))
        if not is_map(attribution):
            raise InvalidInput(f"`{self} @ a` expects {PAIR}, got {brief(attribution)}")
        return Change.of(Measured(self, attribution))


@dataclass(frozen=True)
class Difference:
    """s(a − b)."""

    size: Size

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        return self.size(a - b)


def is_map(a: object) -> TypeGuard[Attribution]:
    """Whether `a` may be an attribution; `IG` without brackets and a size are not."""
    return callable(a) and not isinstance(a, Measure | type)


def pair(name: str, given: object) -> tuple[Attribution, Attribution]:
    """(attribution, reference), refused where either is something else."""
    if not (isinstance(given, tuple) and len(given) == 2 and all(map(is_map, given))):
        raise InvalidInput(f"`{name} @ a` expects {PAIR}, got {brief(given)}")
    return given


total = Size(lambda a: a.sum(1), "total")
"""sum(a): the weak size of proposition 1; parts may cancel."""

l1 = Size(lambda a: a.abs().sum(1), "l1")
"""‖a‖₁: nothing cancels. Its gradient at x' = x is zero, so an ascent must not start there."""

l2 = Size(lambda a: a.square().sum(1).clamp_min(1e-24).sqrt(), "l2")
"""‖a‖₂ (the floor 1e-12 keeps the derivative finite at zero)."""

linf = Size(lambda a: a.abs().amax(1), "linf")
"""‖a‖∞."""


@lru_cache  # equal powers are one object, so that what was compiled for one serves the other
def power(size: Size, q: float) -> Size:
    """s(a)^q; `power(l1, q)` is the size of proposition 2. Where s(a) = 0 the derivative is 0, for q < 1 by choice."""
    if not isinstance(size, Size):
        raise InvalidInput(f"power expects a size such as l1, got {size!r}: make one by Size(function)")
    check_number("power expects a finite exponent q", q, positive=True)

    def raised(a: Tensor) -> Tensor:
        s = size(a)
        none = s == 0  # there 0^q has no finite slope for q < 1, and inf · 0 is not a number
        return s.masked_fill(none, 1.0).pow(q).masked_fill(none, 0.0)

    return Size(raised, f"power({size}, {q:g})")
