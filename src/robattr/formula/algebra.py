"""The operators of the formula, `+`, `-`, `*`, `/` and `@`, with errors that show an example.

`Summable` has the sums and multiples of sizes, distances and changes; a `Measure` is a size or a distance. An `Operand`
is an attribution: a plain function on the left of `@` becomes a size or a distance.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from inspect import Parameter, signature
from math import isfinite
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self

from torch import Tensor

from robattr.errors import InvalidInput, brief
from robattr.formula.checks import check_callable

if TYPE_CHECKING:
    from robattr.formula.change import Change


@dataclass(frozen=True)
class Weighted:
    """Σ_i c_i · s_i(a, …)."""

    parts: tuple[tuple[float, Callable[..., Tensor]], ...]

    def __call__(self, *maps: Tensor) -> Tensor:
        return reduce(operator.add, (c * part(*maps) for c, part in self.parts))


class Summable:
    """A linear space: `+`, `-`, `sum([...])`, and `*` and `/` with a finite number."""

    kind: ClassVar[tuple[str, str]]  # its name, and an example

    def _plus(self, other: Self) -> Self:
        raise NotImplementedError

    def _times(self, factor: float) -> Self:
        raise NotImplementedError

    def __add__(self, other: Self) -> Self:
        if isinstance(other, Real) and other == 0:  # where sum() begins
            return self
        return self._plus(self._same("+", other))

    def __radd__(self, other: Self) -> Self:
        return self + other

    def __sub__(self, other: Self) -> Self:
        return self + (-1.0) * self._same("-", other)

    def __mul__(self, factor: float) -> Self:
        if not isinstance(factor, Real) or not isfinite(factor):
            word, _ = self.kind
            raise InvalidInput(f"`*` of a {word} expects a finite number, as in 2 * {word}, got {brief(factor)}")
        return self._times(float(factor))

    def __rmul__(self, factor: float) -> Self:
        return self * factor

    def __truediv__(self, divisor: float) -> Self:
        if not isinstance(divisor, Real) or not isfinite(divisor) or divisor == 0:
            word, _ = self.kind
            raise InvalidInput(
                f"`/` of a {word} expects a finite number other than 0, as in {word} / 2, got {brief(divisor)}"
            )
        return self * (1.0 / float(divisor))

    def __neg__(self) -> Self:
        return -1.0 * self

    def _same(self, sign: str, other: Any) -> Self:
        if not isinstance(other, type(self)):
            word, example = self.kind
            raise InvalidInput(f"`{sign}` of a {word} expects another {word}, such as {example}, got {brief(other)}")
        return other


class Measure(Summable):
    """A function of maps that returns (B,)."""

    of: Callable[..., Tensor]
    name: str

    def __repr__(self) -> str:
        return self.name or getattr(self.of, "__name__", repr(self.of))

    def _plus(self, other: Self) -> Self:
        return self._made(((1.0, self), (1.0, other)), f"{self} + {other}")

    def _times(self, factor: float) -> Self:
        return self._made(((factor, self),), f"{factor:g} * ({self})")

    def _made(self, parts: tuple[tuple[float, Any], ...], name: str) -> Self:
        make: Any = type(self)
        made: Self = make(Weighted(parts), name)
        return made


class Operand:
    """An attribution in an expression: `function @ attribution` takes a plain function as a size or a distance."""

    def __rmatmul__(self, function: Callable[..., Tensor]) -> Change:
        from robattr.formula.distances import Distance
        from robattr.formula.sizes import Size

        check_callable("`s @ attribution` expects a size such as l1, or a function of (B, n) arrays", function)
        made: Any = Distance if _arguments(function) == 2 else Size
        change: Change = made(function) @ self
        return change

    def _refused(self, other: object) -> NoReturn:
        raise InvalidInput(
            f"an attribution is measured before it is added or scaled, as in 0.1 * (l1 @ IG()) + l2 @ Gradient(), got "
            f"{brief(self)} and {brief(other)}"
        )

    __add__ = __radd__ = __sub__ = __mul__ = __rmul__ = __truediv__ = _refused

    def __matmul__(self, other: object) -> NoReturn:
        raise InvalidInput(f"`@` expects the size on the left, as in l1 @ IG(), got {brief(self)} @ {brief(other)}")


def _arguments(function: Callable[..., Any]) -> int:
    """The number of arguments that a function needs; 1 where its signature is unknown."""
    try:
        parameters = signature(function).parameters.values()
    except (TypeError, ValueError):
        return 1
    positional = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in positional and p.default is p.empty for p in parameters)
