"""What an evaluation refuses before any time is spent."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor, nn

from robattr.attacks.maps import AttributionMap
from robattr.engine import in_use
from robattr.errors import InvalidInput
from robattr.evaluation.protocol import Protocol
from robattr.formula.checks import check_batch, check_classes, check_model
from robattr.formula.neighbourhoods import check_bounds
from robattr.formula.network import second_order


def check(model: nn.Module, x: Tensor, y: Tensor, ids: Sequence[int], protocol: Protocol) -> None:
    """Refuse examples, models and settings that would yield a number without a meaning."""
    check_model(model)
    check_classes(check_batch(model, x, y))
    if len(set(ids)) != len(ids) or len(ids) != len(x) or min(ids) < 0:
        raise InvalidInput(f"expected {len(x)} different ids of at least 0, one per example")
    if not protocol.eps > 0:
        raise InvalidInput(f"expected a radius eps above 0, got {protocol.eps:g}: within 0 there is nothing to attack")
    check_bounds(x, protocol.bounds)
    pixels = prod(x.shape[2:]) if x.dim() == 4 else prod(x.shape[1:])
    for name, k in (("k", protocol.k), ("eval_k", protocol.eval_k)):
        if not 1 <= k <= pixels:
            raise InvalidInput(f"expected {name} between 1 and the {pixels} pixels of a map, got {k}")
    _check_answers(model, x, y)


def check_kinds(model: object, x: object, y: object, protocol: object, map: object) -> None:
    """Refuse a name where a value is wanted, and an array where a tensor is."""
    for name, value, kind, remedy in (
        ("model", model, nn.Module, "wrap the function in a module"),
        ("x", x, Tensor, "use torch.as_tensor"),
        ("y", y, Tensor, "use torch.as_tensor"),
        ("protocol", protocol, Protocol, "paper('mnist'), or scaled(...) for data of your own"),
        ("map", map, AttributionMap, "integrated_gradients(100), or from_callable(f)"),
    ):
        if not isinstance(value, kind):
            raise InvalidInput(f"expected {name} to be a {kind.__name__}, got {type(value).__name__}: {remedy}")


def check_source(source: nn.Module, model: nn.Module, x: Tensor, y: Tensor) -> None:
    """Refuse a transfer attack from a net of other inputs or classes."""
    check_model(source)
    try:
        with second_order(source), second_order(model), torch.no_grad():
            theirs, ours = source(x).shape[1], model(x).shape[1]
    except RuntimeError as cause:
        raise InvalidInput(
            f"expected a source that takes the same examples, {tuple(x.shape[1:])}, got one that fails on them: {cause}"
        ) from cause
    if theirs != ours:
        raise InvalidInput(f"expected a source of the same {ours} classes, got one of {theirs}: choose another")


def _check_answers(model: nn.Module, x: Tensor, y: Tensor) -> None:
    with second_order(model), torch.no_grad():
        answers = torch.cat([model(part) for part in x.split(256)])
        again, alone = model(x[:256]), model(x[:1])
    if not answers.isfinite().all():
        raise InvalidInput("expected finite logits, got NaN or infinite ones: the model is broken on these inputs")
    if not torch.allclose(again, answers[: len(again)], rtol=1e-2, atol=1e-3 * float(answers.abs().max())):
        raise InvalidInput("the model answers differently when asked twice: fix its randomness before measuring it")
    slack = 1e-3 if in_use(x.device) == "fp32" else 2e-2  # other kernels round otherwise
    if not torch.allclose(alone, answers[:1], rtol=1e-2, atol=slack * float(answers.abs().max())):
        raise InvalidInput(
            "expected an answer to each example for itself, got one that depends on the others in its batch: "
            "normalise per example, or by statistics that are kept"
        )
    if bool((answers >= 0).all()) and torch.allclose(answers.sum(dim=1), torch.ones_like(answers[:, 0]), atol=1e-3):
        raise InvalidInput("expected logits, got rows that are probabilities (not negative, sum 1): drop the softmax")
    if not (answers.argmax(dim=1) == y).any():
        raise InvalidInput(
            f"none of the {len(x)} examples is classified correctly, so there is no attribution to attack: "
            "check the labels, the pixel range and the weights"
        )
