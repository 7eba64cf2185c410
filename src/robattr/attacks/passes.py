"""The two passes an attribution attack makes at every iterate, as pure functions of tensors: what the engine compiles.

climb(z, y, r, label) -> (∇J (like z), J (rows,))     the direction, from the softplus twin: a gradient of gradients
look(z, y) -> (map, logits)                           the score's map and the prediction, from the true net
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, prod
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from robattr.attacks.attack_losses import objective
from robattr.attacks.maps import AttributionMap
from robattr.engine import Compiled, in_use
from robattr.formula.ascent import grad_and_value
from robattr.formula.network import Bound, bind
from robattr.formula.scalars import margin
from robattr.models.smooth import smooth

Climb = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
Look = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def climb(
    model: nn.Module, guide: AttributionMap, *, kind: str, beta: float, keep: float, relative: bool = False
) -> Climb:
    """The slope of J(S̃(z), r) per pixel − keep·relu(margin(z, label)); β = inf is the true net."""
    net = _constant(model)
    twin = net if beta == inf else _constant(smooth(model, beta, relative=relative))
    J = objective(kind)

    def slope(z: Tensor, y: Tensor, reference: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
        def value(v: Tensor) -> Tensor:
            s = guide(twin, v, y)
            climbed = J(s, reference) / prod(s.shape[1:])
            return climbed - keep * margin(net, v, label).relu() if keep else climbed

        return grad_and_value(value, allow_zero=True)(z)

    return slope


def look(model: nn.Module, map: AttributionMap) -> Look:
    """The true net's map and logits at z."""
    net = _constant(model)
    return lambda z, y: (map(net, z, y).detach(), net(z))


def _constant(model: nn.Module) -> Bound:
    """The net with constant parameters; on a GPU in tf32 or bf16, kernels with their channels beside each other."""
    net = bind(model).detach()
    last = {
        name: p.to(memory_format=torch.channels_last)
        for name, p in net.parameters.items()
        if p.dim() == 4 and p.is_cuda and in_use(p.device) != "fp32"
    }
    return net.with_parameters({**net.parameters, **last})


_ready: WeakKeyDictionary[nn.Module, dict[Any, Any]] = WeakKeyDictionary()


def compiled(model: nn.Module, key: Any, build: Callable[[], Any]) -> Any:
    """`build()` compiled, once for each `key` of a model as long as its weights stay where they are."""
    kept = _ready.setdefault(model, {})
    full = (key, tuple(p.data_ptr() for p in model.parameters()))
    if full not in kept:
        kept[full] = Compiled(build(), name="attribution attack")
    return kept[full]
