"""Upper bounds over a whole neighbourhood, instead of the maximum that an adversary finds (Wicker et al. 2023).

    spread_bound   ≥ max_{x' ∈ N(x, ε)} ‖IG(x, x')‖₁        shift_bound   ≥ max_{x' ∈ N(x, ε)} ℓ(x') − ℓ(x)

With the margins m_j = z_j − z_y the cross-entropy is log Σ_j e^{m_j}, and ∂ℓ/∂m_j = p_j, the probability of class j:

    p_j ≤ e^{high_j} / (e^{high_j} + Σ_{k≠j} e^{low_k}),    and ≥ with low and high exchanged.

The margins come from the rows W_j − W_y of the last linear layer, which bounds them better than ranges of z_j and z_y.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from robattr.errors import InvalidInput
from robattr.formula.change import Change
from robattr.formula.intervals import propagate
from robattr.formula.neighbourhoods import Box, LinfBall, Neighbourhood
from robattr.formula.network import Model, bind, per_example
from robattr.formula.ranges import Interval, Range, Tape, affine
from robattr.formula.scalars import Scalar, classes, cross_entropy, logit


@dataclass(frozen=True)
class Enclosure:
    """Ranges of a network on every x' in N(x, ε): of x' (B, ...), of the logits and of z_j − z_y (B, C)."""

    x: Tensor
    y: Tensor
    inputs: Interval
    logits: Interval
    margins: Interval

    def gradient(self, of: Scalar = cross_entropy) -> Range:
        """(B, ...) of ∂f/∂x at x', f the cross-entropy or the logit of y."""
        tape = self.inputs.tape
        if of is cross_entropy:
            return tape.backward(self.margins, _probabilities(self.margins.range, tape))
        if of is logit:
            own = F.one_hot(self.y, self.logits.shape[1]).to(self.x)
            return tape.backward(self.logits, Range(own, own))
        raise InvalidInput(f"interval bounds expect cross_entropy or logit as the scalar, got {of!r}")

    def spread(self, of: Scalar = cross_entropy) -> Tensor:
        """(B,) Σ_i max|x'_i − x_i| · max|∂f/∂x_i| ≥ ‖IG^f(x, x')‖₁, of the integral and of any rule with w_k ≥ 0."""
        (low, high), gradient = self.inputs.range, self.gradient(of)
        farthest = torch.maximum(self.x - low, high - self.x)
        found = (farthest * gradient.magnitude).flatten(1).sum(1)
        return found * (1 + self.inputs.tape.slack(low[0].numel()))

    def norm(self, of: Scalar = cross_entropy) -> Tensor:
        """(B,) Σ_i max|∂f/∂x_i| ≥ ‖∇f(x')‖₁."""
        found = self.gradient(of).magnitude.flatten(1)
        return found.sum(1) * (1 + self.inputs.tape.slack(found.shape[1]))

    def loss(self) -> Tensor:
        """(B,) log Σ_j e^{high_j} ≥ ℓ(x')."""
        high = self.margins.range.high
        return high.logsumexp(1) + self.inputs.tape.slack(high.shape[1]) * (1 + high.abs().amax(1))


def enclose(model: Model, x: Tensor, y: Tensor, within: Neighbourhood, *, unit: float = 0.0) -> Enclosure:
    """Ranges of the network over all of N(x, ε). `unit` is the machine epsilon if rounding errors count, else 0."""
    inputs, logits = propagate(bind(model), corners(x, within), unit=unit)
    y = classes(y)
    return Enclosure(x, y, inputs, logits, _margins(logits, y))


def corners(x: Tensor, within: Neighbourhood) -> Range:
    """The least and the largest value of each coordinate in N(x, ε), which must be a box."""
    check_box(within)
    low, high = (within.project(torch.full_like(x, far), x) for far in (-torch.inf, torch.inf))
    return Range(torch.minimum(low, x), torch.maximum(high, x))  # with x, where it lies a rounding outside the bounds


def check_box(within: Neighbourhood) -> None:
    """Refuse a neighbourhood that is not a box."""
    if not isinstance(within, LinfBall | Box):
        raise InvalidInput(
            f"interval bounds expect LinfBall or Box as the neighbourhood, got {within!r}: LinfBall of the same radius "
            "contains any other ball"
        )


def _margins(z: Interval, y: Tensor) -> Interval:
    """z_j − z_y."""
    h, weight, bias = z.linear or (z, torch.eye(z.shape[1], dtype=z.dtype, device=z.device), None)
    rows = weight - weight[y][:, None]
    offset = None if bias is None else bias - bias[y][:, None]
    a, size = (lambda v, w=w: torch.einsum("bch,bh->bc", w, v) for w in (rows, rows.abs()))
    return affine(h, a, size, offset, terms=2 * weight.numel())


def _probabilities(margins: Range, tape: Tape) -> Range:
    """softmax(m), whose j-th entry rises with m_j and falls with the others."""
    own = torch.eye(margins.low.shape[1], dtype=torch.bool, device=margins.low.device)
    ends = []
    for (here, others), out in zip((margins, margins[::-1]), (-1, 1), strict=True):
        rest = others[:, None, :].masked_fill(own, -torch.inf).logsumexp(2)
        p = (here - rest).sigmoid()
        if tape.unit:  # the error of the argument is a relative error of p
            share = tape.slack(len(own)) * (1 + here.abs() + rest.abs())
            p = (p + out * (share * p + torch.finfo(p.dtype).tiny)).clamp(0, 1)
        ends.append(p)
    return Range(*ends)


@dataclass(frozen=True)
class IntervalBound:
    """A term that depends on x and N(x, ε) alone; `Change.over` gives it the neighbourhood of the objective."""

    within: Neighbourhood | None = None

    def over(self, within: Neighbourhood) -> IntervalBound:
        """The term with its neighbourhood."""
        return replace(self, within=within)

    def enclosure(self, model: Model, x: Tensor, y: Tensor) -> Enclosure:
        """Ranges of the network over the neighbourhood."""
        if self.within is None:
            raise InvalidInput("expected a neighbourhood, got none: use it in Robust, or change.over(LinfBall(0.1))")
        return enclose(model, x, y, self.within)


@dataclass(frozen=True)
class SpreadBound(IntervalBound):
    """B(x) ≥ max_{x'} ‖IG^f(x, x')‖₁."""

    of: Scalar = cross_entropy

    def __call__(self, model: Model, x: Tensor, x1: Tensor, y: Tensor) -> Tensor:
        return self.enclosure(model, x, y).spread(self.of)


@dataclass(frozen=True)
class ShiftBound(IntervalBound):
    """An upper bound of max_{x'} ℓ(x') − ℓ(x), ℓ the cross-entropy (Gowal et al. 2018)."""

    def __call__(self, model: Model, x: Tensor, x1: Tensor, y: Tensor) -> Tensor:
        return self.enclosure(model, x, y).loss() - per_example(cross_entropy(model, x, y), x)


def spread_bound(of: Scalar = cross_entropy) -> Change:
    """An upper bound of ‖IG^f(x, x')‖₁ over the objective's neighbourhood: what `l1 @ IG(of)` cannot exceed there."""
    return Change.of(SpreadBound(of=of))


shift_bound: Change = Change.of(ShiftBound())
"""An upper bound of ℓ(x') − ℓ(x) over the objective's neighbourhood, ℓ the cross-entropy."""
