"""The two passes of an attribution attack at each iterate, as pure functions of tensors that the engine compiles.

attack_gradient(z, y, r, label) -> (∇J (like z), J (rows,))   from the softplus twin: a gradient of gradients
map_and_logits(z, y) -> (map, logits)                         from the true net: the scored map, the prediction

The attack maximises J(S, r) -> (B,), of the perturbed map S and a reference r, one of LOSSES:

    topk         J = −Σ_i S_i r_i,      r marks the k largest pixels of the clean map
    mass_center  J = ‖C(S) − r‖²,       C the mass centre, r that of the smooth net's clean map in whole pixels
    target       J = Σ_i S_i r_i,       r the target map
    random       J = 0:                 no ascent, x + α·(random signs) at every step

(Ghorbani et al. 2019; the reference's `ig_attack.py`.)
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, prod
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from robattr.attacks.maps import AttributionMap
from robattr.engine import Compiled, in_use
from robattr.errors import InvalidInput, nearest
from robattr.formula.ascent import grad_and_value
from robattr.formula.network import Bound, bind
from robattr.formula.scalars import margin
from robattr.metrics import mass_center, top_k_mask
from robattr.models.smooth import smooth

AttackGradient = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
MapAndLogits = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def _inner_product(s: Tensor, reference: Tensor) -> Tensor:
    if s.shape != reference.shape:  # broadcasting would pair pixels of different examples
        raise InvalidInput(
            f"expected the attacked map to have the shape of the scored one, {tuple(reference.shape[1:])}, got "
            f"{tuple(s.shape[1:])}: give a guide whose maps have that shape"
        )
    return (s * reference).flatten(1).sum(dim=1)


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "topk": lambda s, mask: -_inner_product(s, mask),
    "mass_center": lambda s, centre: (mass_center(s) - centre).square().sum(dim=1),
    "target": _inner_product,
    "random": lambda s, _: s.new_zeros(len(s)),
}


def loss_reference(kind: str, clean: Tensor, twin: Callable[[], Tensor], *, k: int, target: Tensor | None) -> Tensor:
    """r, one row per example; `clean` is the true net's map of x, `twin()` the smooth net's."""
    if kind == "topk":
        return top_k_mask(clean, k).to(clean)
    if kind == "mass_center":
        return mass_center(twin()).trunc()
    if kind == "random":
        return clean
    if target is None or target.shape != clean.shape[1:]:
        got = "none" if target is None else str(tuple(target.shape))
        raise InvalidInput(f"kind 'target' needs target= of the map's shape {tuple(clean.shape[1:])}, got {got}")
    return target.to(clean).expand_as(clean)


def attack_gradient(
    model: nn.Module, guide: AttributionMap, *, kind: str, beta: float, keep: float, relative: bool = False
) -> AttackGradient:
    """The gradient in z of J(S̃(z), r)/pixels − keep·relu(margin(z, label)); β = inf means the true net."""
    if kind not in LOSSES:
        raise InvalidInput(f"unknown kind of attribution attack {kind!r}: {nearest(kind, LOSSES)}")
    net, J = _constant(model), LOSSES[kind]
    twin = net if beta == inf else _constant(smooth(model, beta, relative=relative))

    def gradient(z: Tensor, y: Tensor, reference: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
        def value(v: Tensor) -> Tensor:
            s = guide(twin, v, y)
            loss = J(s, reference) / prod(s.shape[1:])
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
