"""Attribution maps of one point: a(x'), and what they are compared with.

A map is an attribution that looks at x' alone; `clean(map)` and `frozen(map)` are the same map at x. A map of your own
is a subclass of `Map` with a method `at_point(net, z, y)`, or any function (model, x, x', y) -> (B, ...).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Real
from typing import TypeAlias

import torch
from torch import Tensor

from robattr.errors import InvalidInput, shape_of
from robattr.formula.algebra import Operand
from robattr.formula.attribution import IG, Attribution
from robattr.formula.checks import check_callable, check_number, checked
from robattr.formula.layers import AtInput, AtLayer, at_input
from robattr.formula.network import Bound, Model
from robattr.formula.scalars import Scalar, best_wrong, logit

Baseline: TypeAlias = float | Tensor | Callable[[Tensor], Tensor]


class Map(Operand):
    """a(x'), of shape (B, ...): an attribution of one point."""

    def __call__(self, model: Model, x: Tensor, x1: Tensor, y: Tensor) -> Tensor:
        """The map at x1, differentiable in θ and x1."""
        with checked(model, x, x1, y) as net:
            return self.at_point(net, x1, y)

    def at_point(self, net: Bound, z: Tensor, y: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} expects a method at_point(net, z, y) -> (B, ...)")


@dataclass(frozen=True)
class Gradient(Map):
    """∂f/∂h (x'), the plain gradient at a layer h; with `times_input` h(x') · ∂f/∂h (x').

    of    f, the scalar (`logit` by default, as in the field's maps)
    at    h: `at_input` or `at_layer(name)`
    """

    of: Scalar = logit
    at: AtInput | AtLayer = at_input
    times_input: bool = False

    def __post_init__(self) -> None:
        check_callable("Gradient expects a scalar such as logit as `of`", self.of)
        if not hasattr(self.at, "slope"):
            raise InvalidInput(f"Gradient expects at_input or at_layer('conv1') as `at`, got {self.at!r}")

    def at_point(self, net: Bound, z: Tensor, y: Tensor) -> Tensor:
        slope, h = self.at.slope(self.of, net, z, y)
        return slope * h if self.times_input else slope


@dataclass(frozen=True)
class BaselineIG(Map):
    """IG(b → x'), the map that starts at a baseline b instead of x.

    ig          the path attribution (`IG(of=logit)` by default)
    baseline    a number (0.0 is black), a tensor that broadcasts to one example, n tensors (n, ...) whose maps are
                averaged (random draws, such as `torch.rand(8, 1, 28, 28)`), or a function of x' (`blurred(sigma)`)

    IG_b(x') − IG_b(x) differs from the path IG(x → x').
    """

    ig: Attribution = field(default_factory=lambda: IG(of=logit))
    baseline: Baseline = 0.0

    def __post_init__(self) -> None:
        check_callable("BaselineIG expects an attribution such as IG(of=logit)", self.ig)
        if not callable(self.baseline) and not isinstance(self.baseline, Tensor | Real):
            raise InvalidInput(
                f"BaselineIG expects a number, a tensor or a function as baseline, such as 0.0 or blurred(3.0), got "
                f"{self.baseline!r}"
            )

    def at_point(self, net: Bound, z: Tensor, y: Tensor) -> Tensor:
        starts = self._starts(z)
        maps = [self.ig(net, b, z, y) for b in starts]
        return maps[0] if len(maps) == 1 else torch.stack(maps).mean(0)

    def _starts(self, z: Tensor) -> list[Tensor]:
        b = self.baseline
        if isinstance(b, Tensor):
            many = b.dim() == z.dim()
            if b.dim() > z.dim() or any(n not in (1, m) for n, m in zip(b.shape[::-1], z.shape[:0:-1], strict=False)):
                raise InvalidInput(
                    f"expected a baseline that broadcasts to {tuple(z.shape[1:])}, or n of them with n in front, got "
                    f"{tuple(b.shape)}"
                )
            return [each.to(z).expand_as(z) for each in (b if many else [b])]
        if callable(b):
            found = b(z)
            if not isinstance(found, Tensor) or found.shape != z.shape:
                raise InvalidInput(f"expected a baseline of the shape of x', {tuple(z.shape)}, got {shape_of(found)}")
            return [found]
        return [torch.full_like(z, float(b))]


@dataclass(frozen=True)
class Blurred:
    """x' blurred by a Gaussian over its last two axes, mirrored at the borders."""

    sigma: float

    def __call__(self, z: Tensor) -> Tensor:
        if z.dim() < 3:
            raise InvalidInput(f"blurred expects images (B, ..., H, W), got {tuple(z.shape)}: use a number or a tensor")
        down, across = (self._matrix(n, z) for n in z.shape[-2:])
        return down @ z @ across.T

    def _matrix(self, n: int, z: Tensor) -> Tensor:
        """The (n, n) matrix of the blur along one axis, cut off at 4σ."""
        reach = int(4.0 * self.sigma + 0.5)
        offsets = torch.arange(-reach, reach + 1, device=z.device)
        weights = torch.exp(-0.5 * (offsets.to(z.dtype) / self.sigma) ** 2)
        places, period = torch.arange(n, device=z.device), max(1, 2 * (n - 1))
        source = (places[:, None] + offsets).remainder(period)
        source = torch.minimum(source, period - source) if n > 1 else torch.zeros_like(source)
        return ((source[:, :, None] == places) * (weights / weights.sum())[:, None]).sum(1)


def blurred(sigma: float) -> Blurred:
    """The baseline that is x', blurred by a Gaussian of `sigma` pixels."""
    check_number("blurred expects a width in pixels σ", sigma, positive=True)
    return Blurred(float(sigma))


@dataclass(frozen=True)
class Logits(Map):
    """The outputs z(x') themselves, (B, classes)."""

    def at_point(self, net: Bound, z: Tensor, y: Tensor) -> Tensor:
        return net(z)


@dataclass(frozen=True)
class TheInput(Map):
    """x' itself."""

    def at_point(self, net: Bound, z: Tensor, y: Tensor) -> Tensor:
        return z


@dataclass(frozen=True)
class Target(Map):
    """A given map, the same for every point."""

    value: float | Tensor

    def __post_init__(self) -> None:
        if not isinstance(self.value, Tensor | Real):
            raise InvalidInput(f"target expects a tensor that broadcasts to the map, or a number, got {self.value!r}")

    def at_point(self, net: Bound, z: Tensor, y: Tensor) -> Tensor:
        return self.value.to(z) if isinstance(self.value, Tensor) else z.new_full((1,), float(self.value))


@dataclass(frozen=True)
class Magnitude(Map):
    """Σ over channels of |a|: (B, C, H, W) becomes (B, H, W); other shapes keep theirs."""

    map: Attribution

    def at_point(self, net: Bound, z: Tensor, y: Tensor) -> Tensor:
        a = self.map(net, z, z, y).abs()
        return a.sum(1) if a.dim() == 4 else a


@dataclass(frozen=True)
class RunnerUp(Map):
    """The map of the best wrong class: y is replaced by argmax_{j≠y} z_j(x')."""

    map: Attribution

    def at_point(self, net: Bound, z: Tensor, y: Tensor) -> Tensor:
        return self.map(net, z, z, best_wrong(net, z, y))


logits = Logits()
"""z(x'): the outputs themselves, for distances of predictions such as `kl`."""

the_input = TheInput()
"""x' itself, as a reference: `cosine @ (Gradient(), the_input)`."""

uniform = Target(1.0)
"""The constant map: `kl @ (a, uniform)` is KL(U ‖ softmax(a))."""


def target(value: float | Tensor) -> Target:
    """A target map: a tensor that broadcasts to the map it is compared with, or a number."""
    return Target(value)


def magnitude(of: Attribution) -> Magnitude:
    """Σ over channels of |a(x')|, the map that ranks pixels."""
    return Magnitude(_map(of))


def runner_up(of: Attribution) -> RunnerUp:
    """The map of the best wrong class at x' instead of the label's (ART, Sarkar)."""
    return RunnerUp(_map(of))


def _map(of: Attribution) -> Attribution:
    if not callable(of) or isinstance(of, IG):
        raise InvalidInput(f"expected a map of one point, such as Gradient() or BaselineIG(), got {of!r}")
    return of
