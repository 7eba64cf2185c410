"""The two passes of an attribution attack at each iterate, as pure functions of tensors that the engine compiles.

attack_gradient(z, y, r, label) -> (∇J (like z), J (rows,))   from the softplus twin: a gradient of gradients
map_and_logits(z, y) -> (map, logits)                         from the true net: the scored map, the prediction

J is a loss of `losses`, or any change d(x, z) of the formula, of which r is then the clean input x.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from robattr.attacks.losses import LOSSES
from robattr.attacks.maps import AttributionMap
from robattr.engine import Compiled, in_use
from robattr.formula.ascent import grad_and_value
from robattr.formula.change import Change
from robattr.formula.network import Bound, bind
from robattr.formula.scalars import margin
from robattr.models.smooth import smooth

AttackGradient = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
MapAndLogits = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def attack_gradient(
    model: nn.Module, guide: AttributionMap, *, kind: str | Change, beta: float, keep: float, relative: bool = False
) -> AttackGradient:
    """The gradient in z of J(S̃(z), r) − keep·relu(margin(z, label)); β = inf means the true net."""
    net = _constant(model)
    twin = net if beta == inf else _constant(smooth(model, beta, relative=relative))

    def gradient(z: Tensor, y: Tensor, reference: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
        def value(v: Tensor) -> Tensor:
            loss = LOSSES[kind](guide(twin, v, y), reference) if isinstance(kind, str) else kind(twin, reference, v, y)
            return loss - keep * margin(net, v, label).relu() if keep else loss

        return grad_and_value(value, allow_zero=True)(z)

    return gradient


def map_and_logits(model: nn.Module, map: AttributionMap) -> MapAndLogits:
    """The true net's map and logits at z."""
    net = _constant(model)
    return lambda z, y: (map(net, z, y).detach(), net(z))


def _constant(model: nn.Module) -> Bound:
    """The net with constant parameters; on a GPU in tf32 or bf16, convolution kernels in channels-last layout."""
    net = bind(model).detach()
    last = {
        name: p.to(memory_format=torch.channels_last)
        for name, p in net.parameters.items()
        if p.dim() == 4 and p.is_cuda and in_use(p.device) != "fp32"
    }
    return net.with_parameters({**net.parameters, **last})


_ready: WeakKeyDictionary[nn.Module, dict[Any, Any]] = WeakKeyDictionary()


def compiled(model: nn.Module, key: Any, build: Callable[[], Any]) -> Any:
    """`build()` compiled, once per model and `key`; again when the weights have moved in memory."""
    kept = _ready.setdefault(model, {})
    full = (key, tuple(p.data_ptr() for p in model.parameters()))
    if full not in kept:
        kept[full] = Compiled(build(), name="attribution attack")
    return kept[full]
