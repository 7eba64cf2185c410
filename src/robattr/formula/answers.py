"""Checks of a model's outputs: finite, repeatable, independent of the batch, logits.

`doctor`, `evaluate` and `audit` run them on their examples (`robattr.evaluation.checks` adds those that need labels and
a protocol). Every objective runs them once per model (`check_answers`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, sqrt
from typing import Any, Literal, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from robattr.errors import InvalidInput, RobattrError, UnsupportedModel
from robattr.formula.network import Model, bind, gradient, second_order

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


def in_use(device: torch.device) -> Literal["fp32", "tf32", "bf16"]:
    """The precision of products on that device, by torch's current settings."""
    if torch.is_autocast_enabled(device.type):
        return "bf16"
    cudnn: Any = torch.backends.cudnn
    return "tf32" if device.type == "cuda" and cudnn.conv.fp32_precision == "tf32" else "fp32"


def input_unchanged(p: ModelProbe) -> Finding:
    """Whether forward() leaves its input unchanged: the attacks use it again."""
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
    z = p.logits.float()  # sums of bf16 logits are in float32 on a GPU; an MPS device has no float64
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


def differentiable(p: ModelProbe) -> Finding:
    """Whether the outputs can be differentiated in the input by torch.autograd.grad."""
    with second_order(p.model):
        net = bind(p.model).detach()
        try:
            gradient(lambda z: net(z).sum(dim=1), p.x[:1])
        except UnsupportedModel:
            raise
        except RuntimeError as cause:
            raise UnsupportedModel(
                f"expected a model with gradients in its input, got one without ({reason(cause)}): replace that layer; "
                "switch activation checkpointing off, and save memory by the chunk of IG"
            ) from cause
    return "ok", "the outputs have a gradient in the input", ""


ANSWERS: Checks = {  # each needs those before it
    "input": input_unchanged,
    "finite": finite,
    "determinism": deterministic,
    "independence": independent_of_batch,
}

_examined: WeakKeyDictionary[nn.Module, set[str]] = WeakKeyDictionary()
"""The checks that each model has passed, or was excused from."""


def skip_model_checks(model: nn.Module) -> None:
    """Let objectives use `model` as it is: random, dependent on the batch, or with outputs that are not logits."""
    _examined[model] = {*ANSWERS, "logits", "gradient"}


def check_answers(model: Model, x: Tensor, *, logits: bool = True, differentiated: bool = False) -> None:
    """Refuse a module whose outputs at a few examples of x make an objective meaningless; once per module.

    torch's random generators keep their state.
    """
    if not isinstance(model, nn.Module) or torch.compiler.is_compiling():
        return
    wanted = {**ANSWERS, **({"logits": returns_logits} if logits else {})}
    wanted |= {"gradient": differentiable} if differentiated else {}
    if not wanted.keys() - (passed := _examined.setdefault(model, set())):
        return
    p = ModelProbe(model, x[:FEW].detach(), None, (0.0, 1.0))
    with torch.random.fork_rng([x.device] if x.is_cuda else []):
        for name, check in wanted.items():
            for found in [] if name in passed else run(name, check, p):
                if found.level == "fail":
                    raise found.error or InvalidInput(
                        f"{found.finding}: {found.remedy}, or accept it: robattr.formula.skip_model_checks(model)"
                    )
            passed.add(name)


def run(name: str, check: Callable[[ModelProbe], Finding | None], p: ModelProbe) -> Iterator[Check]:
    """The result of one check; an exception is a failure, because a user's model may raise anything."""
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
            f"that fails on them ({type(cause).__name__}: {reason(cause)})"
        )
        remedy = "give them the size and channels it was made for, and do not change the precision in forward()"
        refusal = UnsupportedModel(f"{said}: {remedy}")
        refusal.__cause__ = cause
        yield Check(name, "fail", said, remedy, refusal)


def _batch_gap(model: nn.Module, x: Tensor) -> float:
    """The largest difference between the logits of the first example alone and in a batch."""
    return float((forward(model, x)[:1] - forward(model, x[:1])).abs().max())


def _batch_gap_in_float64(p: ModelProbe) -> float:
    """The same in float64; infinite where the model cannot be copied or does not run in float64."""
    try:
        with torch.autocast(p.x.device.type, enabled=False):
            return _batch_gap(deepcopy(p.model).double(), p.x[:FEW].double())
    except Exception:  # a user's model may raise anything
        return inf


def _tolerance(p: ModelProbe) -> float:
    return sqrt(_unit_roundoff(p.x)) * float(p.logits.abs().max())


def _unit_roundoff(x: Tensor) -> float:
    return FLOAT64 if x.dtype == torch.float64 else UNIT_ROUNDOFF[in_use(x.device)]


def reason(cause: Exception) -> str:
    """The first line of an exception's message."""
    return (str(cause).strip() or type(cause).__name__).splitlines()[0]
