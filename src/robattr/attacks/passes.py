"""The passes of an attribution attack at each iterate, as pure functions of tensors that the engine compiles.

attack_gradient(z, y, r, label, β) -> (∇J (like z), J (rows,))   from the softplus twin: a gradient of gradients
map_and_logits(z, y) -> (map, logits)                            from the true net: the map that screens, the prediction
true_map(z, y) -> map                                            from the true net: the scored map

J is a loss of `losses`, or a change d(x, z) of the formula; then r is the clean input x. A gradient that `shows`
returns S̃(z) and the logits, too: the net's own map, where it is its own twin.

A large network takes minutes to compile twice differentiated, so few functions serve all attacks (`compiled_gradient`,
`compiled_map`). A loss needs the map alone: ∇_z J(S̃(z)) = (∂S̃/∂z)ᵀ v with v = ∂J/∂S̃, and so one function
z, v ↦ (∂S̃/∂z)ᵀ v serves all losses. Of the relative twins β is a tensor, and one function serves them all, as of a
twin that sharpens; the paper's twin has its own, which is a third smaller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from math import inf
from typing import Any

import torch
from torch import Tensor, nn

from robattr.attacks.losses import LINEAR, LOSSES
from robattr.attacks.maps import SEGMENT, AttributionMap, magnitude
from robattr.engine import Compiled, in_use
from robattr.formula.ascent import grad_and_value
from robattr.formula.attribution import IG
from robattr.formula.change import Change
from robattr.formula.network import Bound, affine_split, bind
from robattr.formula.scalars import logit, margin
from robattr.models.smooth import Smooth, has_activations, smooth

AttackGradient = Callable[[Tensor, Tensor, Tensor, Tensor, float], tuple[Tensor, ...]]
MapAndLogits = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
Twin = float | str
"""Which compiled function serves a twin: its β, inf for the net itself, or the name of one function of β for all."""


def attack_gradient(
    model: nn.Module,
    guide: AttributionMap,
    *,
    kind: str | Change,
    keep: float,
    relative: bool = False,
    shows: bool = False,
) -> AttackGradient:
    """The gradient in z of J(S̃(z), r) − keep·relu(margin(z, label)); β = inf means the true net."""
    net = _constant(model)

    def gradient(z: Tensor, y: Tensor, reference: Tensor, label: Tensor, beta: float) -> tuple[Tensor, ...]:
        twin = net if beta == inf else _bound_as(smooth(model, beta, relative=relative), net)
        return _climb(net, twin, guide, kind, keep, shows=shows)(z, y, reference, label)

    return gradient


def _climb(
    net: Bound, twin: Bound, guide: AttributionMap, kind: str | Change, keep: float, *, shows: bool = False
) -> Callable[..., tuple[Tensor, ...]]:
    """(z, y, r, label) ↦ (∇J, J) on a network and its twin, and what they show."""

    def climb(z: Tensor, y: Tensor, reference: Tensor, label: Tensor) -> tuple[Tensor, ...]:
        maps: list[Tensor] = []

        def value(v: Tensor) -> Tensor:
            if isinstance(kind, str):
                maps.append(guide(twin, v, y))
                loss = LOSSES[kind](maps[0], reference)
            else:
                loss = kind(twin, reference, v, y)
            return loss - keep * margin(net, v, label).relu() if keep else loss

        found = grad_and_value(value, allow_zero=True)(z)
        return (*found, maps[0].detach(), net(z)) if shows else found

    return climb


def map_and_logits(model: nn.Module, map: AttributionMap) -> MapAndLogits:
    """The true net's map and logits at z."""
    return partial(_map(map), _constant(model))


def _map(map: AttributionMap) -> Callable[..., tuple[Tensor, Tensor]]:
    """`map_and_logits` as a function of the network, too."""
    return lambda net, z, y: (map(net, z, y).detach(), net(z))


def compiled_gradient(
    model: nn.Module,
    guide: AttributionMap,
    *,
    kind: str | Change,
    keep: float,
    relative: bool = False,
    sharpens: bool = False,
    shows: bool = False,
) -> AttackGradient:
    """`attack_gradient` by functions of the network: z, v ↦ (∂S̃/∂z)ᵀ v, z ↦ S̃(z), and z ↦ ∇relu(margin(z)).

    `sharpens`: β is another one at each call.
    """
    sign = LINEAR.get(kind) if isinstance(kind, str) else None
    hinge = compiled(model, "hinge", _hinge)
    own: list[bool] = []  # whether the network is its own twin

    def gradient(z: Tensor, y: Tensor, reference: Tensor, label: Tensor, beta: float) -> tuple[Tensor, ...]:
        if not own:
            own.append(is_own_twin(model, z))
        twin: Twin = "relative" if relative else "sharpening" if sharpens else beta
        if own[0] or beta == inf:
            twin = inf
        at = torch.full((), beta, dtype=z.dtype, device=z.device)
        if not isinstance(kind, str):

            def whole(net: Bound, beta: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
                return _climb(net, _softened(net, model, twin, beta), guide, kind, keep)(*given)

            out: tuple[Tensor, ...] = compiled(model, (guide, kind, twin, keep), whole)(at, z, y, reference, label)
            return out
        pull = compiled(model, ("pull", guide, twin, shows), _pull(model, guide, twin, shows))
        if sign is not None:
            found, value, *shown = pull(z, y, sign * reference, at)
        else:
            s = compiled(model, ("map", guide, twin), _twin_map(model, guide, twin))(z, y, at)
            v, value = grad_and_value(lambda s: LOSSES[kind](s, reference), allow_zero=True)(s)
            found, _, *shown = pull(z, y, v * s[0].numel(), at)
        if keep:
            back, passed = hinge(z, label)
            found, value = found - keep * back, value - keep * passed
        return found, value, *shown

    return gradient


def compiled_map(model: nn.Module, map: AttributionMap) -> MapAndLogits:
    """`map_and_logits`, by one function for all segments of the ray where the map has them."""
    if not map.segments:
        whole: MapAndLogits = compiled(model, map, _map(map))
        return whole
    segment = compiled(model, "segment", _segment)

    def summed(z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        found = [segment(a * z, b * z, z, y) for a, b in map.segments]
        return magnitude(torch.stack([ig for ig, _ in found]).sum(dim=0)), found[0][1]

    return summed


def true_map(model: nn.Module, map: AttributionMap) -> Callable[[Tensor, Tensor], Tensor]:
    """(z, y) ↦ the true net's map at z."""
    return partial(_alone(map), _constant(model))


def compiled_true_map(model: nn.Module, map: AttributionMap) -> Callable[[Tensor, Tensor], Tensor]:
    """`true_map`, where the map has segments by the function that they share."""
    if not map.segments:
        whole: Callable[[Tensor, Tensor], Tensor] = compiled(model, ("alone", map), _alone(map))
        return whole
    summed = compiled_map(model, map)
    return lambda z, y: summed(z, y)[0]


def _alone(map: AttributionMap) -> Callable[..., Tensor]:
    return lambda net, z, y: map(net, z, y).detach()


def _pull(model: nn.Module, guide: AttributionMap, twin: Twin, shows: bool) -> Callable[..., tuple[Tensor, ...]]:
    """(net, z, y, v, β) ↦ (∇_z mean_i S̃_i(z) v_i, the mean), and if it `shows`, S̃(z) and the logits."""

    def pull(net: Bound, z: Tensor, y: Tensor, v: Tensor, beta: Tensor) -> tuple[Tensor, ...]:
        soft, maps = _softened(net, model, twin, beta), list[Tensor]()

        def mean(at: Tensor) -> Tensor:
            maps.append(guide(soft, at, y))
            return (maps[0] * v).flatten(1).mean(dim=1)

        found = grad_and_value(mean, allow_zero=True)(z)
        return (*found, maps[0].detach(), net(z)) if shows else found

    return pull


def _hinge(net: Bound, z: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
    """(∇_z relu(margin(z, label)), relu(margin(z, label)))."""
    return grad_and_value(lambda at: margin(net, at, label).relu(), allow_zero=True)(z)


def _twin_map(model: nn.Module, guide: AttributionMap, twin: Twin) -> Callable[..., Tensor]:
    """(net, z, y, β) ↦ S̃(z)."""
    return lambda net, z, y, beta: guide(_softened(net, model, twin, beta), z, y).detach()


def is_own_twin(model: nn.Module, x: Tensor) -> bool:
    """Whether a network has nothing that its twin would smooth."""
    return not has_activations(model, x[:1])


def _softened(net: Bound, model: nn.Module, twin: Twin, beta: Tensor) -> Bound:
    """The network of a `Twin`; the compiler does not know the β of a function of β."""
    if twin == inf:
        return net
    return _bound_as(
        Smooth(model, beta, relative=twin == "relative") if isinstance(twin, str) else smooth(model, twin), net
    )


def _bound_as(module: nn.Module, net: Bound) -> Bound:
    """A twin of a bound network, on the same parameters."""
    return Bound(module, net.parameters, net.buffers, affine_split(module))


def _segment(net: Bound, a: Tensor, b: Tensor, z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """(IG(a, b) of the logit by SEGMENT, the logits at z)."""
    return IG(of=logit, rule=SEGMENT)(net, a, b, y).detach(), net(z)


def _constant(model: nn.Module) -> Bound:
    """The net with constant parameters; on a GPU in tf32 or bf16, convolution kernels in channels-last layout."""
    net = bind(model).detach()
    last = {
        name: p.to(memory_format=torch.channels_last)
        for name, p in net.parameters.items()
        if p.dim() == 4 and p.is_cuda and in_use(p.device) != "fp32"
    }
    return net.with_parameters({**net.parameters, **last})


_ready: ContextVar[dict[Any, Compiled] | None] = ContextVar("compiled functions of attacks", default=None)


@contextmanager
def compiled_once() -> Iterator[None]:
    """Attacks inside compile each function once; the outermost block drops them: a model may change or end after it."""
    if _ready.get() is not None:
        yield
        return
    token = _ready.set({})
    try:
        yield
    finally:
        _ready.reset(token)


def compiled(model: nn.Module, key: Any, fn: Callable[..., Any]) -> Callable[..., Any]:
    """fn(net, …) compiled, once per model, `key` and shapes; with the weights that the model has at each call."""
    own: dict[Any, Compiled] = {}  # outside `compiled_once`

    def run(*args: Tensor) -> Any:
        shared, net = _ready.get(), _constant(model)
        kept = own if shared is None else shared
        full = (model, key, in_use(args[0].device), tuple((a.shape, a.dtype, a.device) for a in args))
        if full not in kept:
            kept[full] = Compiled(lambda p, b, *rest: fn(net.with_parameters(p, b), *rest), name="attribution attack")
        return kept[full](net.parameters, net.buffers, *args)

    return run
