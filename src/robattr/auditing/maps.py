"""Which explanations are audited: robattr's own maps by name, any Captum method, one value per token.

"ig", "sg", "gi", "smoothgrad"      robattr.evaluation's maps
"captum:Saliency"                   captum.attr.Saliency(model).attribute(x, target=y)
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robattr._extras import need
from robattr.attacks.maps import (
    AttributionMap,
    by_name,
    from_callable,
    gradient_input,
    integrated_gradients,
    simple_gradient,
)
from robattr.errors import InvalidInput, UnsupportedModel, nearest
from robattr.formula.network import Model

# What an attack differentiates in a Captum method's stead: Captum's own results carry no usable derivative.
GUIDES: dict[str, Callable[[], AttributionMap]] = {
    "Saliency": simple_gradient,
    "InputXGradient": gradient_input,
    "IntegratedGradients": integrated_gradients,
}


def maps(
    wanted: str | AttributionMap | Sequence[str | AttributionMap],
    *,
    points: int = 100,
    bounds: tuple[float, float] = (0.0, 1.0),
) -> list[AttributionMap]:
    """`"ig,captum:Saliency"`, a map, or a list of names and maps, as maps. `points` are the points of IG's path."""
    parts = wanted.split(",") if isinstance(wanted, str) else [wanted] if callable(wanted) else list(wanted)
    found = [p if isinstance(p, AttributionMap) else _named(p, points=points, bounds=bounds) for p in parts]
    for map in found:  # it becomes part of a file's name
        if not re.fullmatch(r"[\w-]+", map.name):
            raise InvalidInput(f"expected letters, digits, - and _ in the name of a map, got {map.name!r}: rename it")
    if len({map.name for map in found}) != len(found) or not found:
        raise InvalidInput(f"expected at least one map, each once, got {wanted!r}")
    return found


def captum_map(method: str, *, guide: AttributionMap | None = None) -> AttributionMap:
    """The map of `captum.attr.<method>`, for the methods that need nothing but a model, inputs and a target.

    The attack follows `guide` (by default robattr's nearest map) on the softplus twin, and is scored on Captum's map:
    it shows that the explanation can be moved at least this far.
    """
    attr = need("captum.attr", extra="interop")
    usable = [name for name in attr.__all__ if _needs_nothing(getattr(attr, name))]
    if method not in usable:
        raise InvalidInput(
            f"captum:{method} cannot be used by name (it is unknown, or needs arguments): {nearest(method, usable)}; "
            "any other way to explain is a robattr.evaluation.from_callable"
        )
    make = getattr(attr, method)

    def attribute(model: Model, x: Tensor, y: Tensor) -> Tensor:
        inputs = x.detach().clone().requires_grad_()
        with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
            torch.manual_seed(0)  # a method that samples must be a function of x, or its noise counts as fragility
            try:
                found: Tensor = make(model).attribute(inputs, target=y)
            except (RuntimeError, AssertionError, AttributeError, TypeError) as cause:
                raise UnsupportedModel(
                    f"captum:{method} fails on this model: {cause}. Methods with hooks refuse in-place and reused "
                    "activations; captum:Saliency and captum:IntegratedGradients need no hooks"
                ) from cause
        return found.detach()

    return from_callable(attribute, name=f"captum-{method}", guide=guide or GUIDES.get(method, gradient_input)())


def per_token(map: AttributionMap) -> AttributionMap:
    """One value per token of embeddings (B, tokens, width): S_t = Σ_d |a_td|, as channels of a pixel are summed."""

    def summed(model: Model, x: Tensor, y: Tensor) -> Tensor:
        return map.of(model, x, y).abs().sum(dim=-1)

    guide = None if map.guide is None else per_token(map.guide)
    return replace(map, name=f"{map.name}-tokens", of=summed, complete=False, along_ray=None, guide=guide)


def for_captum(attributions: Tensor) -> NDArray[Any]:
    """Attributions (B, C, H, W), or maps (B, H, W), as the arrays (B, H, W, C) that Captum's visualisation takes.

    `captum.attr.visualization.visualize_image_attr(for_captum(a)[0], for_captum(x)[0], method="blended_heat_map")`
    """
    if attributions.dim() not in (3, 4):
        raise InvalidInput(f"expected attributions (B, C, H, W) or maps (B, H, W), got {tuple(attributions.shape)}")
    wide = attributions[:, None] if attributions.dim() == 3 else attributions
    array: NDArray[Any] = np.ascontiguousarray(wide.detach().cpu().numpy().transpose(0, 2, 3, 1))
    return array


def _named(name: str, *, points: int, bounds: tuple[float, float]) -> AttributionMap:
    if not isinstance(name, str):
        raise InvalidInput(
            f"expected a map or the name of one, got {type(name).__name__}: make a map of a function with "
            "robattr.evaluation.from_callable"
        )
    origin, colon, method = name.strip().partition(":")
    if not colon:
        return by_name(origin, N=points, bounds=bounds)
    if origin != "captum":
        raise InvalidInput(f"unknown attribution map {name!r}: expected ig, sg, gi, smoothgrad or captum:Method")
    guide = integrated_gradients(points) if method == "IntegratedGradients" else None
    return captum_map(method, guide=guide)


def _needs_nothing(method: Any) -> bool:
    """Whether Method(model).attribute(inputs, target=…) is a whole call."""
    if not (inspect.isclass(method) and hasattr(method, "attribute")):
        return False

    def required(function: Any) -> set[str]:
        parameters = inspect.signature(function).parameters.values()
        optional = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        return {p.name for p in parameters if p.default is p.empty and p.kind not in optional} - {"self"}

    takes_target = "target" in inspect.signature(method.attribute).parameters
    return (
        takes_target
        and required(method.__init__) <= {"model", "forward_func"}
        and required(method.attribute) <= {"inputs"}
    )
