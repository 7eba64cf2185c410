"""The range of an activation, as a value that a network's own forward function can compute with.

An `Interval` takes the place of a tensor and records its operations on a `Tape`, which then propagates ranges of
derivatives backward. Each operation has a rule, in `robattr.formula.intervals`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from robattr.errors import UnsupportedModel
from robattr.formula.network import no_gradient, vjp


class Range(NamedTuple):
    """low ≤ · ≤ high, coordinate by coordinate."""

    low: Tensor
    high: Tensor

    @property
    def centre(self) -> Tensor:
        return (self.low + self.high) / 2

    @property
    def radius(self) -> Tensor:
        return (self.high - self.low) / 2

    @property
    def magnitude(self) -> Tensor:
        """max(|low|, |high|)."""
        return torch.maximum(self.high, -self.low)

    def widened(self, share: float) -> Range:
        """Both ends moved outward by this share of their magnitude."""
        return self if share == 0 else Range(self.low - share * self.low.abs(), self.high + share * self.high.abs())


Linear: TypeAlias = Callable[[Tensor], Tensor]
Back: TypeAlias = Callable[[Range], Range]
Rule: TypeAlias = Callable[..., "Interval"]

RULES: dict[Any, Rule] = {}
"""The rule of each function of torch and method of tensors."""

IN_PLACE: dict[Any, Any] = {}
"""Functions that overwrite their first operand, and their plain forms."""


class Tape:
    """The operations of one forward pass: for each result its operands, with the rule backward to each."""

    def __init__(self, unit: float = 0.0) -> None:
        self.unit = unit
        self.nodes: list[tuple[tuple[int, Back], ...]] = []

    def slack(self, terms: int) -> float:
        """γ, the relative rounding error of a sum of so many products in any order, and of eight operations more.

        It is below n·u/(1 − n·u) for n operations with the unit roundoff u; the machine epsilon is 2u.
        """
        return (terms + 8) * self.unit

    def backward(self, output: Interval, g: Range) -> Range:
        """The range of ∂f/∂(the tape's first interval) from that of ∂f/∂output."""
        found = {output.node: g}
        for node in range(output.node, 0, -1):
            if node in found:
                arrived = found.pop(node)
                for operand, back in self.nodes[node]:
                    low, high = back(arrived)
                    if operand in found:
                        low, high = low + found[operand].low, high + found[operand].high
                    found[operand] = Range(low, high).widened(self.unit)
        if 0 not in found:
            raise no_gradient()
        return found[0]


class Interval:
    """The range of an activation on a tape. Functions without a rule refuse it.

    linear  (h, W, b) where it is Wh + b
    shared  whether a view of it exists, which an operation in place would change as well
    """

    def __init__(self, range_: Range, tape: Tape, *operands: tuple[Interval, Back]) -> None:
        self.range, self.tape, self.node = range_, tape, len(tape.nodes)
        tape.nodes.append(tuple((operand.node, back) for operand, back in operands))
        self.linear: tuple[Interval, Tensor, Tensor | None] | None = None
        self.shared = False

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Interval:
        return apply(func, *args, **(kwargs or {}))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or not hasattr(Tensor, name):
            raise AttributeError(name)
        if name in ("shape", "dtype", "device", "ndim", "is_cuda", "dim", "size", "numel"):
            return getattr(self.range.low, name)
        method = getattr(Tensor, name)
        if not callable(method):
            raise refused(f"the attribute {name!r} of an activation")
        return partial(apply, method, self)

    def __len__(self) -> int:
        return len(self.range.low)

    def __bool__(self) -> bool:
        raise UnsupportedModel(
            "interval bounds expect a forward function without branches on its activations, got a condition: the "
            "branch taken may differ within the ball"
        )


OPERATORS = (
    "add", "radd", "iadd", "sub", "rsub", "isub", "mul", "rmul", "imul", "truediv", "rtruediv", "itruediv", "neg",
    "getitem", "pow", "rpow", "matmul", "rmatmul", "abs", "gt", "ge", "lt", "le",
)  # fmt: skip


def _operator(name: str) -> Callable[..., Any]:
    method = getattr(Tensor, name)
    return lambda self, *others: apply(method, self, *others)


for _name in OPERATORS:
    setattr(Interval, f"__{_name}__", _operator(f"__{_name}__"))


def apply(func: Any, *args: Any, inplace: bool = False, **kwargs: Any) -> Interval:
    """`func` by its rule; an operation in place replaces its first operand."""
    rule = RULES.get(IN_PLACE.get(func, func))
    if rule is None:
        raise refused(func)
    if not torch.is_grad_enabled():  # its derivative is another one than its rule's
        raise refused(f"{name_of(func)} inside no_grad or an autograd.Function")
    found = rule(*args, **kwargs)
    if not (inplace or func in IN_PLACE):
        return found
    target = args[0]
    if not isinstance(target, Interval) or target.shared:
        raise UnsupportedModel(
            f"interval bounds do not follow {name_of(func)} in place into a constant or a view: use the form that "
            "returns a new tensor"
        )
    target.__dict__.update(found.__dict__)
    return target


def affine(x: Interval, a: Linear, size: Linear, bias: Tensor | None = None, *, terms: int) -> Interval:
    """Ax + b: centre Ac + b, radius |A|r, and backward the same with Aᵀ.

    `a` is z ↦ Az and `size` z ↦ |A|z; a row or a column of A has at most `terms` entries.
    """
    (low, _), gamma = x.range, x.tape.slack(terms)

    def padded(each: Range) -> Tensor:
        """The radius and the rounding errors: r + γ(|c| + r)."""
        return each.radius + gamma * (each.centre.abs() + each.radius) if gamma else each.radius

    def back(g: Range) -> Range:
        zero = torch.zeros_like(low)
        return _around(vjp(a, zero, g.centre), vjp(size, zero, padded(g)))

    centre, radius = a(x.range.centre), size(padded(x.range))
    if bias is not None:
        centre, radius = centre + bias, radius + gamma * bias.abs()
    return Interval(_around(centre, radius), x.tape, (x, back))


def monotone(x: Interval, a: Linear, *, terms: int = 0) -> Interval:
    """Ax for an A without negative entries: A·low and A·high. Entries that only move, `terms` = 0, are not rounded."""
    low, high = x.range
    share = x.tape.slack(terms) if terms else 0.0

    def back(g: Range) -> Range:
        zero = torch.zeros_like(low)
        return Range(vjp(a, zero, g.low), vjp(a, zero, g.high)).widened(share)

    return Interval(Range(a(low), a(high)).widened(share), x.tape, (x, back))


def _around(centre: Tensor, radius: Tensor) -> Range:
    return Range(centre - radius, centre + radius)


def refused(func: Any) -> UnsupportedModel:
    """The error for a function without a rule."""
    name = name_of(func)
    if "max_pool" in name:
        why = (
            "which entry of a window is the largest, and gets the gradient, may differ within the ball: use "
            "nn.AvgPool2d or a strided convolution"
        )
    else:
        why = "expected convolution, linear, ReLU, leaky ReLU, average pool, batch norm in eval mode, sums or reshapes"
    return UnsupportedModel(f"interval bounds have no rule for {name}: {why}")


def name_of(func: Any) -> str:
    """The name of a function, for a message."""
    return func if isinstance(func, str) else str(getattr(func, "__name__", func)).strip("_")
