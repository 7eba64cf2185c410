"""The checks of a model on its examples: one list for `doctor`, `evaluate`, `audit` and `harden`.

What they ask of the model's answers alone is in `robattr.formula.answers`, which the objectives ask, too.
`examine` runs the list and reports every check, as `doctor` prints it; `require` raises the first failure. So the
doctor and an evaluation of the same examples cannot disagree. `check` adds what an evaluation asks of its settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import torch
from torch import Tensor, nn

from robattr.attacks.maps import AttributionMap
from robattr.errors import InvalidInput, RobattrError, UnsupportedModel
from robattr.evaluation.protocol import Protocol
from robattr.formula.answers import ANSWERS, FEW, Checks, Finding, reason, returns_logits, run
from robattr.formula.answers import Check as Check
from robattr.formula.answers import ModelProbe as ModelProbe
from robattr.formula.answers import forward as forward
from robattr.formula.ascent import grad_and_value
from robattr.formula.attribution import IG
from robattr.formula.checks import check_batch, check_classes, check_model
from robattr.formula.neighbourhoods import check_bounds
from robattr.formula.network import bind, second_order
from robattr.formula.quadrature import midpoint
from robattr.formula.scalars import logit
from robattr.formula.sizes import l1


def structure(p: ModelProbe) -> Finding:
    """Whether the formula can bind the module, and the module takes the examples and returns (B, classes)."""
    check_model(p.model)
    classes = check_batch(p.model, p.x, torch.zeros(len(p.x), dtype=torch.long, device=p.x.device))
    check_classes(classes)
    if p.logits.shape != (len(p.x), classes):
        raise UnsupportedModel(
            f"expected logits of shape ({len(p.x)}, {classes}), got {tuple(p.logits.shape)}: return one row per example"
        )
    return "ok", f"logits of {classes} classes", ""


def data_range(p: ModelProbe) -> Finding | None:
    """Whether the data are within the bounds, and use them."""
    if p.y is None:
        return None
    low, high = p.bounds
    least, most = float(p.x.min()), float(p.x.max())
    try:
        check_bounds(p.x, p.bounds)
    except InvalidInput as error:
        remedy = "scale the data, or give the right bounds"
        if least < min(low, 0):
            remedy = "the data look standardised: undo that and give mean and std, or give the right bounds"
        return "fail", str(error).rpartition(": ")[0], remedy
    said = f"the data range from {least:.4g} to {most:.4g}, the bounds are {low:g} to {high:g}"
    if most - least < 0.02 * (high - low):
        return "warn", said, "the data use less than 2% of the bounds: check the scaling"
    return "ok", said, ""


def labels(p: ModelProbe) -> Finding | None:
    """Whether the labels are outputs of the model, and some predictions are correct."""
    if p.y is None:
        return None
    classes = check_batch(p.model, p.x, p.y)
    correct = int((p.logits.argmax(dim=1) == p.y).sum())
    remedy = "check the class order, the bounds, mean and std, and the weights"
    if not correct:
        said = f"none of the {len(p.x)} examples is classified correctly, so there is no attribution to attack"
        return "fail", said, remedy
    said = f"{correct / len(p.x):.0%} of {len(p.x)} examples are classified correctly"
    if correct / len(p.x) <= max(1.5 / classes, 0.1):
        return "warn", f"{said}, no better than chance", remedy
    return "ok", said, ""


def derivatives(p: ModelProbe) -> Finding:
    """Whether the logit has a gradient in x, and ‖IG(x, x')‖₁ has finite gradients in x' and in the parameters."""
    try:
        with second_order(p.model):
            net = bind(p.model).detach()
            first, _ = grad_and_value(lambda z: logit(net, z, p.targets[:FEW]))(p.x[:FEW])
        second, parameters = _second_derivatives(p.model, p.x[:1], p.targets[:1], p.bounds)
    except (torch.OutOfMemoryError, RobattrError):
        raise
    except Exception as cause:  # a layer of the user's may raise anything
        raise UnsupportedModel(
            f"expected a model that can be differentiated twice, got one that cannot ({reason(cause)}): replace the "
            "layer without a second derivative (a custom autograd function, activation checkpointing)"
        ) from cause
    if not all(bool(t.isfinite().all()) for t in (first, second, *parameters)):
        remedy = "look for sqrt or division at 0, and for half precision inside forward()"
        return "fail", "a derivative is NaN or infinite", remedy
    if not bool(first.any()):
        said = "the gradient of the logit is exactly 0: maps are constant, and gradient attacks do not move"
        return "warn", said, "look for rounding and integer casts in forward()"
    if not parameters:
        return "warn", "no parameter requires a gradient", "unfreeze some before you harden"
    return "ok", "first and second derivatives exist, in the input and in the weights", ""


BASIC: Checks = {"output": structure, **ANSWERS}  # each needs those before it
FURTHER: Checks = {"logits": returns_logits, "range": data_range, "labels": labels}
SECOND_ORDER: Checks = {"derivatives": derivatives}


def examine(p: ModelProbe, *, differentiated: bool = True) -> Iterator[Check]:
    """Run the list of checks; a failure of a basic one ends it.

    Without `differentiated` no derivative is checked: the attack takes its gradients from another network.
    """
    for name, check in {**BASIC, **FURTHER, **(SECOND_ORDER if differentiated else {})}.items():
        for found in run(name, check, p):
            yield found
            if found.level == "fail" and name in BASIC:
                return


def require(p: ModelProbe, *, differentiated: bool = True) -> None:
    """Raise the first failure of the list as one sentence: finding and remedy."""
    for found in examine(p, differentiated=differentiated):
        if found.level == "fail":
            raise found.error or InvalidInput(f"{found.finding}: {found.remedy}")


def check(
    model: nn.Module, x: Tensor, y: Tensor, ids: Sequence[int], protocol: Protocol, *, differentiated: bool = True
) -> None:
    """Refuse settings, examples and models for which the scores have no meaning."""
    if len(set(ids)) != len(ids) or len(ids) != len(x) or min(ids, default=0) < 0:
        raise InvalidInput(f"expected {len(x)} different ids of at least 0, one per example")
    if not protocol.eps > 0:
        raise InvalidInput(f"expected a radius eps above 0, got {protocol.eps:g}")
    pixels = prod(x.shape[2:]) if x.dim() == 4 else prod(x.shape[1:])
    for name, k in (("k", protocol.k), ("eval_k", protocol.eval_k)):
        if not 1 <= k <= pixels:
            raise InvalidInput(f"expected {name} between 1 and the {pixels} pixels of a map, got {k}")
    require(ModelProbe(model, x, y, protocol.bounds), differentiated=differentiated)


KINDS: dict[str, tuple[type, str]] = {
    "model": (nn.Module, "wrap the function in a module"),
    "x": (Tensor, "use torch.as_tensor"),
    "y": (Tensor, "use torch.as_tensor"),
    "protocol": (Protocol, "paper('mnist'), or scaled(...) for your own data"),
    "map": (AttributionMap, "integrated_gradients(100), or from_callable(f)"),
}


def check_kinds(**arguments: object) -> None:
    """Refuse arguments of the wrong type, such as a name instead of a value or an array instead of a tensor."""
    for name, value in arguments.items():
        kind, remedy = KINDS[name]
        if not isinstance(value, kind):
            raise InvalidInput(f"expected {name} to be a {kind.__name__}, got {type(value).__name__}: {remedy}")


def check_source(source: nn.Module, model: nn.Module, x: Tensor) -> None:
    """Refuse a transfer attack from a network with other inputs or classes."""
    check_model(source)
    try:
        theirs, ours = forward(source, x).shape[1], forward(model, x).shape[1]
    except RuntimeError as cause:
        raise InvalidInput(
            f"expected a source that takes the same examples, {tuple(x.shape[1:])}, got one that fails on them: {cause}"
        ) from cause
    if theirs != ours:
        raise InvalidInput(f"expected a source of the same {ours} classes, got one of {theirs}: choose another")


def _second_derivatives(
    model: nn.Module, x: Tensor, y: Tensor, bounds: tuple[float, float]
) -> tuple[Tensor, list[Tensor]]:
    """The gradients of ‖IG(x, x')‖₁ in x' and in every parameter that takes part; raises what the layers raise."""
    low, high = bounds
    x1 = (x + 0.01 * (high - low)).clamp(low, high)
    change = l1 @ IG(rule=midpoint(2))
    with second_order(model):
        net = bind(model)
        copies = {name: q.detach().clone().requires_grad_(q.requires_grad) for name, q in net.parameters.items()}
        in_input, _ = grad_and_value(lambda z: change(net.detach(), x, z, y), allow_zero=True)(x1)
        with torch.enable_grad():
            # backward() visits the whole graph; autograd.grad skips nodes that raise but lead to no parameter.
            change(net.with_parameters(copies), x, x1.requires_grad_(), y).sum().backward()
    return in_input, [q.grad for q in copies.values() if q.grad is not None]
