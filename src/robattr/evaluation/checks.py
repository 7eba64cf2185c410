"""The checks of a model on its examples: one list for `doctor`, `evaluate`, `audit` and `harden`.

`examine` runs the list and reports every check, as `doctor` prints it; `require` raises the first failure. So the
doctor and an evaluation of the same examples cannot disagree. `check` adds what an evaluation asks of its settings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, prod, sqrt
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from robattr.attacks.maps import AttributionMap
from robattr.engine import in_use
from robattr.errors import InvalidInput, RobattrError, UnsupportedModel
from robattr.evaluation.protocol import Protocol
from robattr.formula.ascent import grad_and_value
from robattr.formula.attribution import IG
from robattr.formula.checks import check_batch, check_classes, check_model
from robattr.formula.neighbourhoods import check_bounds
from robattr.formula.network import bind, second_order
from robattr.formula.quadrature import midpoint
from robattr.formula.scalars import logit
from robattr.formula.sizes import l1

Level = Literal["ok", "warn", "fail"]

BATCH = 256  # examples per forward pass
FEW = 16  # examples for the slower checks
UNIT_ROUNDOFF = {"fp32": 2.0**-24, "tf32": 2.0**-11, "bf16": 2.0**-8}  # 2^-p for p bits of the significand
FLOAT64 = 2.0**-53


@dataclass(frozen=True)
class Check:
    """The result of one check: ok, warn (it works, with a caveat) or fail (it would crash or give wrong numbers)."""

    name: str
    level: Level
    finding: str
    remedy: str = ""
    error: RobattrError | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class ModelProbe:
    """A model and the examples that it is checked on; y is None for random inputs, which have no labels."""

    model: nn.Module
    x: Tensor
    y: Tensor | None
    bounds: tuple[float, float]

    @cached_property
    def logits(self) -> Tensor:
        return torch.cat([forward(self.model, part) for part in self.x.split(BATCH)])

    @property
    def targets(self) -> Tensor:
        """The labels where they are valid, else the predicted classes."""
        if self.y is not None and int(self.y.min()) >= 0 and int(self.y.max()) < self.logits.shape[1]:
            return self.y.long()
        predicted: Tensor = self.logits.argmax(dim=1)
        return predicted


Finding: TypeAlias = tuple[Level, str, str]
"""Level, finding and remedy of one check."""

Checks: TypeAlias = dict[str, Callable[[ModelProbe], Finding | None]]
"""Check functions by name; None where a check does not apply."""


def forward(model: nn.Module, x: Tensor) -> Tensor:
    """The outputs at a copy of x, in eval mode, without a graph."""
    with second_order(model), torch.no_grad():
        outputs: Tensor = model(x.clone())
    return outputs


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


def input_unchanged(p: ModelProbe) -> Finding:
    """Whether forward() leaves its input as it was: the attacks use it again."""
    x = p.x[:1].clone()
    with second_order(p.model), torch.no_grad():
        p.model(x)
    if torch.equal(x, p.x[:1]):
        return "ok", "forward() does not modify its input", ""
    return "fail", "the model overwrites its input", "clone the input in forward()"


def finite(p: ModelProbe) -> Finding:
    """Whether all logits are finite."""
    if p.logits.isfinite().all():
        return "ok", "all logits are finite", ""
    return "fail", "expected finite logits, got NaN or infinite ones", "check the weights and the input range"


def deterministic(p: ModelProbe) -> Finding:
    """Whether a second call returns the same logits, but for the rounding of operations without a fixed order."""
    again = forward(p.model, p.x[:BATCH])
    if float((again - p.logits[:BATCH]).abs().max()) <= _tolerance(p):
        return "ok", "two calls return the same logits", ""
    said = "two calls in eval mode return different logits"
    return "fail", said, "pass training=self.training to F.dropout; do not sample in eval mode"


def independent_of_batch(p: ModelProbe) -> Finding:
    """Whether an example's logits depend on the other examples of its batch.

    Other batch sizes use other kernels, which round differently, and a deep network amplifies that. A difference up to
    √u of the largest logit (half the digits of the precision in use, with unit roundoff u) is accepted at once. A
    larger one is measured again in float64: rounding shrinks there by 2⁻⁵³/u, a real dependence does not shrink at
    all. The geometric mean of the two separates them.
    """
    ok: Finding = "ok", "an example's logits do not depend on its batch", ""
    gap = _batch_gap(p.model, p.x[:FEW])
    if gap <= _tolerance(p) or _batch_gap_in_float64(p) <= sqrt(FLOAT64 / _unit_roundoff(p.x)) * gap:
        return ok
    said = f"an example's logits change by {gap:.2g} with the other examples in its batch"
    return "fail", said, "normalise per example, or by running statistics"


def returns_logits(p: ModelProbe) -> Finding:
    """Whether the outputs are logits: cross-entropy of probabilities is wrong, and its gradient vanishes."""
    z = p.logits
    if bool((z >= 0).all()) and torch.allclose(z.sum(dim=1), torch.ones_like(z[:, 0]), atol=1e-3):
        said = "expected logits, got probabilities (not negative, sum 1)"
        return "fail", said, "drop the softmax of the last layer"
    if torch.allclose(z.logsumexp(dim=1), torch.zeros_like(z[:, 0]), atol=1e-3):
        said = "the outputs are log-probabilities: losses are right, but maps explain log p, not the logit"
        return "warn", said, "drop the log-softmax of the last layer"
    said = f"they range from {float(z.min()):.3g} to {float(z.max()):.3g}"
    if float(z.min()) >= 0 and float(z.max()) <= 1:
        remedy = "if the last layer is a sigmoid, drop it: losses and maps need logits"
        return "warn", f"{said}, as the probabilities of a sigmoid do", remedy
    return "ok", said, ""


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
    with second_order(p.model):
        net = bind(p.model).detach()
        first, _ = grad_and_value(lambda z: logit(net, z, p.targets[:FEW]))(p.x[:FEW])
    try:
        second, parameters = _second_derivatives(p.model, p.x[:1], p.targets[:1], p.bounds)
    except torch.OutOfMemoryError:
        raise
    except Exception as cause:  # a layer of the user's may raise anything
        raise UnsupportedModel(
            f"expected a model that can be differentiated twice, got one that cannot ({_reason(cause)}): replace the "
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


BASIC: Checks = {  # each needs those before it
    "output": structure,
    "input": input_unchanged,
    "finite": finite,
    "determinism": deterministic,
    "independence": independent_of_batch,
}
FURTHER: Checks = {"logits": returns_logits, "range": data_range, "labels": labels}
SECOND_ORDER: Checks = {"derivatives": derivatives}


def examine(p: ModelProbe, *, differentiated: bool = True) -> Iterator[Check]:
    """Run the list of checks; a failure of a basic one ends it.

    Without `differentiated` no derivative is checked: the attack takes its gradients from another network.
    """
    for name, check in {**BASIC, **FURTHER, **(SECOND_ORDER if differentiated else {})}.items():
        for found in _run(name, check, p):
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


def check_kinds(model: object, x: object, y: object, protocol: object, map: object) -> None:
    """Refuse arguments of the wrong type, such as a name instead of a value or an array instead of a tensor."""
    for name, value, kind, remedy in (
        ("model", model, nn.Module, "wrap the function in a module"),
        ("x", x, Tensor, "use torch.as_tensor"),
        ("y", y, Tensor, "use torch.as_tensor"),
        ("protocol", protocol, Protocol, "paper('mnist'), or scaled(...) for your own data"),
        ("map", map, AttributionMap, "integrated_gradients(100), or from_callable(f)"),
    ):
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


def _run(name: str, check: Callable[[ModelProbe], Finding | None], p: ModelProbe) -> Iterator[Check]:
    """The result of one check; what it raises is a failure, because a model of the user's may raise anything."""
    try:
        if (result := check(p)) is not None:
            yield Check(name, *result)
    except torch.OutOfMemoryError:
        raise
    except RobattrError as error:
        said, colon, remedy = str(error).rpartition(": ")
        yield Check(name, "fail", said if colon else remedy, remedy if colon else "", error)
    except Exception as cause:
        said = (
            f"expected a model that takes examples of shape {tuple(p.x.shape[1:])} in {str(p.x.dtype)[6:]}, got one "
            f"that fails on them ({_reason(cause)})"
        )
        remedy = "give them the size and channels it was made for, and do not change the precision in forward()"
        refusal = UnsupportedModel(f"{said}: {remedy}")
        refusal.__cause__ = cause
        yield Check(name, "fail", said, remedy, refusal)


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


def _batch_gap(model: nn.Module, x: Tensor) -> float:
    """The largest difference between the logits of the first example alone and in a batch."""
    return float((forward(model, x)[:1] - forward(model, x[:1])).abs().max())


def _batch_gap_in_float64(p: ModelProbe) -> float:
    """The same in float64; infinite where the model cannot be copied or does not run in float64."""
    try:
        with torch.autocast(p.x.device.type, enabled=False):
            return _batch_gap(deepcopy(p.model).double(), p.x[:FEW].double())
    except Exception:  # a model of the user's may raise anything
        return inf


def _tolerance(p: ModelProbe) -> float:
    return sqrt(_unit_roundoff(p.x)) * float(p.logits.abs().max())


def _unit_roundoff(x: Tensor) -> float:
    return FLOAT64 if x.dtype == torch.float64 else UNIT_ROUNDOFF[in_use(x.device)]


def _reason(cause: Exception) -> str:
    """The first line of what was raised."""
    return (str(cause).strip() or type(cause).__name__).splitlines()[0]
