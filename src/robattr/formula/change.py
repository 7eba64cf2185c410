"""A change d(x, x'): how much something moves from x to x', closed under +, − and scalar multiples.

IG-SUM-NORM is `shift + beta * spread`; the Lagrangian of the distributional form is `d - gamma * c` (paper, sections 3
and 4). `combine(f, d1, d2, ...)` takes any other function of changes, `clean(d)` and `frozen(d)` evaluate at x' = x.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from robattr.errors import InvalidInput, brief, shape_of
from robattr.formula.algebra import Operand, Summable
from robattr.formula.attribution import IG, Attribution
from robattr.formula.checks import check_callable, checked
from robattr.formula.layers import AtOutput
from robattr.formula.neighbourhoods import Neighbourhood
from robattr.formula.network import Bound, Model, per_example
from robattr.formula.scalars import Scalar, margin


class Term(Protocol):
    """d_i(model, x, x', y) -> (B,)."""

    def __call__(self, model: Model, x: Tensor, x1: Tensor, y: Tensor) -> Tensor: ...


def _map(attribution: Attribution, model: Model, x: Tensor, x1: Tensor, y: Tensor) -> Tensor:
    """The map; refuse one without a row per example."""
    a = attribution(model, x, x1, y)
    if not isinstance(a, Tensor) or a.dim() == 0 or len(a) != len(x):
        raise InvalidInput(
            f"expected a map of shape ({len(x)}, ...), one row per example, from {brief(attribution)}, got "
            f"{shape_of(a)}: an attribution is a function (model, x, x', y) -> (B, ...), such as x' - x"
        )
    return a


@dataclass(frozen=True)
class Measured:
    """s∘a: the size of an attribution."""

    size: Callable[[Tensor], Tensor]
    attribution: Attribution

    def __call__(self, model: Model, x: Tensor, x1: Tensor, y: Tensor) -> Tensor:
        return per_example(self.size(_map(self.attribution, model, x, x1, y)), x, self.size)


@dataclass(frozen=True)
class Compared:
    """C(a, b): the distance of an attribution from a reference."""

    distance: Callable[[Tensor, Tensor], Tensor]
    attribution: Attribution
    reference: Attribution

    def __call__(self, model: Model, x: Tensor, x1: Tensor, y: Tensor) -> Tensor:
        a, b = _map(self.attribution, model, x, x1, y), self.reference(model, x, x1, y)
        if b.shape != a.shape:
            try:
                b = b.expand_as(a)
            except RuntimeError:
                raise InvalidInput(
                    f"expected a reference of the map's shape {tuple(a.shape)}, got {tuple(b.shape)}: compare maps at "
                    "one layer, or give a target that broadcasts"
                ) from None
        return per_example(self.distance(a, b), x, self.distance)


@dataclass(frozen=True)
class Combined:
    """f(d_1, d_2, …), example by example."""

    function: Callable[..., Tensor]
    changes: tuple[Change, ...]

    def __call__(self, model: Model, x: Tensor, x1: Tensor, y: Tensor) -> Tensor:
        return per_example(self.function(*(d(model, x, x1, y) for d in self.changes)), x, self.function)

    def over(self, within: Neighbourhood) -> Combined:
        return Combined(self.function, tuple(d.over(within) for d in self.changes))


@dataclass(frozen=True)
class Value:
    """f(x', y)."""

    of: Scalar

    def __call__(self, model: Model, x: Tensor, x1: Tensor, y: Tensor) -> Tensor:
        return per_example(self.of(model, x1, y), x1, self.of)


@dataclass(frozen=True)
class Clean(Operand):
    """An attribution or a change with x in the place of x'; with `detach` a constant."""

    part: Callable[..., Tensor]
    detach: bool = False

    def __call__(self, model: Model, x: Tensor, x1: Tensor, y: Tensor) -> Tensor:
        if not self.detach:
            return self.part(model, x, x, y)
        with torch.no_grad():
            return self.part(model, x, x, y).detach()

    def over(self, within: Neighbourhood) -> Clean:
        return Clean(_over(self.part, within), self.detach)


@dataclass(frozen=True)
class Change(Summable):
    """d(x, x') = Σ_i c_i · d_i(x, x'); the empty sum is 0. The engine's c_i are tensors.

    Changes compose by `+`, `-`, `sum([...])`, and `*` and `/` with a number. A term is any function
    (model, x, x', y) -> (B,); `Change.of(function)` makes a change of one.
    """

    kind = ("change", "l1 @ IG()")
    terms: tuple[tuple[float | Tensor, Term], ...] = ()

    @staticmethod
    def of(term: Term) -> Change:
        """The change of one term, any function (model, x, x', y) -> (B,)."""
        check_callable("Change.of expects a function (model, x, x', y) -> (B,)", term)
        return Change(((1.0, term),))

    def __call__(self, model: Model, x: Tensor, x1: Tensor, y: Tensor) -> Tensor:
        with checked(model, x, x1, y) as net:
            value = torch.zeros(len(x), dtype=x.dtype, device=x.device)
            for (c, term), known in zip(self.terms, self._with_shared_ends(net, x, x1, y), strict=True):
                value = value + c * per_example(term(net, x, x1, y) if known is None else known, x, term)
        return value

    def _with_shared_ends(self, net: Bound, x: Tensor, x1: Tensor, y: Tensor) -> list[Tensor | None]:
        """The values of ℓ(x') − ℓ(x) and ‖IG(x, x')‖₁ of one ℓ where x' is a node of IG; None for other terms."""
        known: list[Tensor | None] = [None] * len(self.terms)
        measured = {i: (t.size, t.attribution) for i, (_, t) in enumerate(self.terms) if isinstance(t, Measured)}
        igs = {i: (size, a) for i, (size, a) in measured.items() if isinstance(a, IG)}
        for i, (size, path) in igs.items():
            ends = {j: s for j, (s, ig) in igs.items() if isinstance(ig.at, AtOutput) and ig.of == path.of}
            if path.runs_at_end and ends and all(known[j] is None for j in ends):
                a, at_x1 = path.with_end(net, x, x1, y)
                shift = at_x1 - per_example(path.of(net, x, y), x, path.of)
                known[i] = size(a)
                for j, total in ends.items():
                    known[j] = total(shift)
        return known

    def over(self, within: Neighbourhood) -> Change:
        """The change with N(x, ε) given to the terms that bound it as a whole, such as `spread_bound()`."""
        return Change(tuple((c, _over(term, within)) for c, term in self.terms))

    def _plus(self, other: Change) -> Change:
        return Change(self.terms + other.terms)

    def _times(self, factor: float) -> Change:
        return Change(tuple((factor * c, term) for c, term in self.terms))


def _over(part: Any, within: Neighbourhood) -> Any:
    return part.over(within) if hasattr(part, "over") else part


def combine(function: Callable[..., Tensor], *changes: Change) -> Change:
    """f(d_1, d_2, …) as a change: `combine(torch.maximum, d, clean(d))` is the larger of d at x' and at x.

    The function takes one (B,) tensor per change and returns (B,). Use a named function: a new lambda at every step
    would be compiled anew.
    """
    check_callable("combine expects a function of (B,) tensors, such as torch.maximum", function)
    for d in changes:
        if not isinstance(d, Change):
            raise InvalidInput(f"combine expects changes, such as l1 @ IG(), got {brief(d)}")
    return Change.of(Combined(function, changes))


def soft_margin(positive: Change, negative: Change) -> Change:
    """log(1 + exp(d⁺ − d⁻)): the soft-margin triplet loss, small where d⁺ is far below d⁻ (ART)."""
    return combine(F.softplus, positive - negative)


def clean(part: Callable[..., Tensor]) -> Any:
    """An attribution or a change at x instead of x': the reference a(x), with its gradient in θ."""
    return _at_x(part, detach=False)


def frozen(part: Callable[..., Tensor]) -> Any:
    """`clean(part)` as a constant of the gradient step: the detached reference, and frozen ranks."""
    return _at_x(part, detach=True)


def _at_x(part: Any, *, detach: bool) -> Any:
    check_callable("expected an attribution such as Gradient(), or a change", part)
    return Change.of(Clean(part, detach)) if isinstance(part, Change) else Clean(part, detach)


def value_of(of: Scalar) -> Change:
    """f(x', y) itself: `value_of(cross_entropy)` is the loss at x'."""
    check_callable("value_of expects a scalar such as cross_entropy or margin", of)
    return Change.of(Value(of))


keep_label: Change = -combine(F.relu, value_of(margin))
"""−max(0, margin(x')): 0 where the prediction is the label, below 0 elsewhere.

Added to what the adversary climbs, with a large factor, it keeps the search among points of the same prediction:
`Robust(change=d, attacked=d + 10 * keep_label, ...)`.
"""


def displacement(model: Model, x: Tensor, x1: Tensor, y: Tensor) -> Tensor:
    """x' − x, as an attribution: `power(l2, 2) @ displacement` is the transport cost c(x, x') = ‖x' − x‖₂²."""
    return x1 - x
