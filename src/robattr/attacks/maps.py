"""Attribution maps: the normalised magnitude of an attribution, one non-negative map per example.

Shapes: x (B, C, H, W) gives maps (B, H, W); any other input (B, ...) keeps its shape.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod

import torch
from torch import Tensor, nn

from robattr.engine.batch_size import rows_that_fit
from robattr.engine.traced_graph import constant
from robattr.errors import InvalidInput, nearest
from robattr.formula.attribution import IG
from robattr.formula.checks import checked
from robattr.formula.network import Bound, Model, bind, gradient, second_order
from robattr.formula.quadrature import Rule, midpoint, right
from robattr.formula.scalars import logit
from robattr.models.resnet import scale_invariant

Attribution = Callable[[Model, Tensor, Tensor], Tensor]

COARSE = 10  # midpoints of the directions: the scores agree with those of 100 right ends (docs/benchmarks.md)
TOGETHER = 10  # nodes of an IG map that pass through the net at once, where the map is not differentiated
SEGMENT = right(TOGETHER)
"""The rule of one segment of the ray, see `AttributionMap.segments`."""


def magnitude(a: Tensor) -> Tensor:
    """S = Σ_channels |a|, scaled so that its mean is 1 (the reference's maps sum to H·W).

    An attribution that is zero everywhere gives NaN, which attacks and metrics count as undefined.
    """
    s = a.abs().sum(dim=1) if a.dim() == 4 else a.abs()
    inner = tuple(range(1, s.dim()))
    return s * (prod(s.shape[1:]) / s.sum(dim=inner, keepdim=True))


def orderable(map: Tensor) -> Tensor:
    """(B,) bool: whether the pixels have an order, that is, the map is finite and not constant."""
    flat = map.flatten(1)
    return flat.isfinite().all(dim=1) & (flat.amax(dim=1) > flat.amin(dim=1))


@dataclass(frozen=True)
class AttributionMap:
    """The normalised magnitude of an attribution, `S(model, x, y) -> map`; differentiable in x when `of` is.

    nodes       points per example
    complete    whether the attribution should sum to logit_y(x) − logit_y(0)
    along_ray   a cheaper map, equal to this one where the net is constant on the ray from black to x
    smallest    the net must be constant from this fraction of x on: the first node of the rule; 0 if there is none
    guide       the map to differentiate in an attack, where this one is not differentiable
    slope       whether the attribution is a slope, as a gradient is, and not a contribution to the logit
    effect      the signed contributions, where `of` has magnitudes
    coarse      a cheaper map close to this one: evaluations differentiate it, and screen the iterates by it
    """

    name: str
    of: Attribution
    nodes: int = 1
    complete: bool = False
    along_ray: AttributionMap | None = None
    smallest: float = 0.0
    guide: AttributionMap | None = None
    slope: bool = False
    effect: Attribution | None = None
    coarse: AttributionMap | None = None

    @property
    def together(self) -> int:
        """How many nodes pass through the net at once, where the map is not differentiated."""
        return min(self.nodes, TOGETHER) if isinstance(self.of, FromBlack) else self.nodes

    @property
    def segments(self) -> tuple[tuple[float, float], ...]:
        """Pieces (a, b) of the ray with A(x) = Σ IG(ax, bx), each by the rule SEGMENT, where A is such an IG.

        One compiled function serves all maps that have them.
        """
        return self.of.segments if isinstance(self.of, FromBlack) else ()

    def __call__(self, model: Model, x: Tensor, y: Tensor) -> Tensor:
        if not isinstance(model, nn.Module):
            return magnitude(self.of(model, x, y))
        with checked(model, x, x, y) as net:  # in eval mode: train mode would mix the examples
            return magnitude(self.of(net, x, y))


def _gradient(model: Model, x: Tensor, y: Tensor) -> Tensor:
    return gradient(lambda z: logit(model, z, y), x)


def _gradient_input(model: Model, x: Tensor, y: Tensor) -> Tensor:
    return x * _gradient(model, x, y)


def simple_gradient() -> AttributionMap:
    """S = |∂ logit_y / ∂x| (the paper's appendix calls it SG)."""
    return AttributionMap("sg", _gradient, slope=True)


def gradient_input() -> AttributionMap:
    """S = |x ⊙ ∂ logit_y / ∂x|."""
    return AttributionMap("gi", _gradient_input)


@dataclass(frozen=True)
class FromBlack:
    """IG^{logit_y}(0, x) by a rule."""

    rule: Rule

    def __call__(self, model: Model, x: Tensor, y: Tensor) -> Tensor:
        chunk = None if x.requires_grad else TOGETHER
        return IG(of=logit, rule=self.rule, chunk=chunk)(model, torch.zeros_like(x), x, y)

    @property
    def segments(self) -> tuple[tuple[float, float], ...]:
        """Right ends in pieces of SEGMENT; as many midpoints are the right ends of the ray moved by half a step."""
        n = len(self.rule) // len(SEGMENT)
        if n and self.rule == right(n * len(SEGMENT)):
            return tuple((j / n, (j + 1) / n) for j in range(n))
        half = 0.5 / len(SEGMENT)
        return ((-half, 1 - half),) if self.rule == midpoint(len(SEGMENT)) else ()


def integrated_gradients(N: int = 100, *, rule: Rule | None = None) -> AttributionMap:
    """S = |IG^{logit_y}(0, x)| with the reference's N right-hand points (i/N)·x, i = 1..N, or those of a `rule`.

    The paper writes the left-hand sum; its code uses the right-hand one, and so does this. The *logit* of the true
    label is attributed, although training attributes the loss.
    """
    rule = right(N) if rule is None else rule
    coarse = None if len(rule) <= COARSE else integrated_gradients(rule=midpoint(COARSE))
    return AttributionMap(
        "ig",
        FromBlack(rule),
        nodes=len(rule),
        complete=True,
        along_ray=gradient_input(),
        smallest=min(rule.nodes),
        coarse=coarse,
    )


def constant_along_ray(map: AttributionMap, model: nn.Module, x: Tensor, *, eps: float = 0.0) -> Tensor:
    """(B,) bool: whether `map.along_ray` is provably the same map in the whole L∞ ball of radius ε around x.

    For nets that standardise their input, IG is a constant times gradient×input as long as the standard deviation σ
    is above its floor at every node. σ is a seminorm and at most the maximum norm, so σ(x') ≥ σ(x) − ε in the whole
    ball: it suffices to check the point of the ray with deviation σ(x) − ε.
    """
    if map.along_ray is None:
        return torch.zeros(len(x), dtype=torch.bool, device=x.device)
    deviation = x.flatten(1).std(dim=1, correction=0).clamp_min(1e-12)
    shrink = (1 - eps / deviation).clamp_min(0).view(-1, *(1,) * (x.dim() - 1))
    return scale_invariant(model, x * shrink, smallest=map.smallest)


def saliency(map: AttributionMap, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The map of x on the net in eval mode, without a graph, by the shortcut `along_ray` where that is exact."""
    with second_order(model), torch.no_grad():
        net = bind(model).detach()
        short = constant_along_ray(map, model, x)
        if map.along_ray is None or not short.any():
            return map(net, x, y).detach()
        quick = map.along_ray(net, x, y)
        if not short.all():
            quick[~short] = map(net, x[~short], y[~short])
        return quick


def in_parts(
    of: Callable[[Tensor, Tensor], Tensor], map: AttributionMap, model: nn.Module, x: Tensor, y: Tensor
) -> Tensor:
    """of(x, y), which computes the map, on as many examples at a time as fit in memory."""
    size = rows_that_fit(model, x, passes=map.together)
    return torch.cat([of(*part) for part in zip(x.split(size), y.split(size), strict=True)])


def smooth_grad(samples: int = 20, sigma: float = 0.15, *, seed: int = 0) -> AttributionMap:
    """S = |mean_i ∂ logit_y(x + σ ξ_i) / ∂x|, ξ_i fixed standard normal draws shared by all examples.

    The draws are fixed so that the map is a function of x: noise that changes between calls would look like
    fragility. `sigma` is in the units of x.
    """

    def noise(x: Tensor) -> Tensor:
        drawn = torch.randn(samples, 1, *x.shape[1:], generator=torch.Generator().manual_seed(seed))
        return drawn.to(x.device, x.dtype)

    def averaged(model: Model, x: Tensor, y: Tensor) -> Tensor:
        shifted = (x + sigma * constant(partial(noise, x))).flatten(0, 1)
        return _gradient(model, shifted, y.repeat(samples)).view(samples, *x.shape).mean(dim=0)

    return AttributionMap("smoothgrad", averaged, nodes=samples, slope=True)


def from_callable(
    attribute: Attribution,
    *,
    name: str = "custom",
    nodes: int = 1,
    guide: AttributionMap | None = None,
    slope: bool = False,
) -> AttributionMap:
    """Any `(model, x, y) -> attribution`, a Captum method for instance: (B, C, H, W), (B, H, W) or the shape of x.

    For embeddings (B, tokens, width), one value per token, (B, tokens), is accepted too. A method that is not
    differentiable in x can be scored but not attacked directly: `guide` is the map that the attack differentiates.
    `slope`: the attribution is a slope, like a gradient; its effect is the attribution times x.
    """

    def with_grad(model: Model, x: Tensor, y: Tensor) -> Tensor:
        module = model.module if isinstance(model, Bound) else None
        with torch.enable_grad():
            found = attribute(module or model, x, y)
        _check_attribution(name, found, x)
        return found

    return AttributionMap(name, with_grad, nodes=nodes, guide=guide, slope=slope)


def _check_attribution(name: str, found: object, x: Tensor) -> None:
    """Reject an attribution whose pixels are not those of x; channels or features may be summed."""
    if isinstance(found, Tensor):
        images = x.dim() == 4
        fits = found.shape[-2:] == x.shape[-2:] if images else found.shape == x.shape[: found.dim()]
        if fits and len(found) == len(x) and found.dim() in ((3, 4) if images else range(2, x.dim() + 1)):
            return
    got = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
    raise InvalidInput(
        f"expected the map {name!r} to return a tensor (B, C, H, W), (B, H, W) or of the shape of x, {tuple(x.shape)}, "
        f"got {got}: convert an array with torch.from_numpy, resize a coarse map with F.interpolate"
    )


def by_name(name: str, *, N: int = 100, bounds: tuple[float, float] = (0.0, 1.0)) -> AttributionMap:
    """The built-in map of that short name: ig, sg, gi or smoothgrad."""
    sigma = 0.15 * (bounds[1] - bounds[0])
    known: dict[str, Callable[[], AttributionMap]] = {
        "ig": lambda: integrated_gradients(N),
        "sg": simple_gradient,
        "gi": gradient_input,
        "smoothgrad": lambda: smooth_grad(sigma=sigma),
    }
    if name not in known:
        raise InvalidInput(f"unknown attribution map {name!r}: {nearest(name, known)}")
    return known[name]()
