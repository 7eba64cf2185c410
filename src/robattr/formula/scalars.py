"""The scalar that is attributed: f(model, x, y) -> (B,), one number per example.

Shapes: B examples, C classes; x (B, ...), logits z (B, C), y (B,) integer labels; soft labels (B, C) for
`cross_entropy`, targets of regression (B, C) for `squared_error` and `output`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from robattr.errors import InvalidInput
from robattr.formula.checks import check_whole
from robattr.formula.network import Model


class Scalar(Protocol):
    """f_y(x): a differentiable number per example."""

    def __call__(self, model: Model, x: Tensor, y: Tensor) -> Tensor: ...


def cross_entropy(model: Model, x: Tensor, y: Tensor) -> Tensor:
    """ℓ_y(x) = −log softmax(z)_y, the loss that training attributes (paper, section 3).

    With soft labels y (B, C), as mixup makes them, −Σ_c y_c log softmax(z)_c. The reference clips the probability at
    1e-10, which removes the gradient of examples the network gets very wrong; this one does not.
    """
    if y.is_floating_point() and y.dim() == 2:
        return F.cross_entropy(model(x), y, reduction="none")
    return F.cross_entropy(model(x), classes(y), reduction="none")


def logit(model: Model, x: Tensor, y: Tensor) -> Tensor:
    """z_y(x), the score of the label: what attribution *maps* explain at test time (paper, section 5)."""
    return model(x).gather(1, classes(y)[:, None]).squeeze(1)


def probability(model: Model, x: Tensor, y: Tensor) -> Tensor:
    """softmax(z)_y."""
    return model(x).softmax(1).gather(1, classes(y)[:, None]).squeeze(1)


def wrong_logit(model: Model, x: Tensor, y: Tensor) -> Tensor:
    """max_{j≠y} z_j(x), the score of the best wrong class."""
    return _without(model(x), y).amax(1)


def margin(model: Model, x: Tensor, y: Tensor) -> Tensor:
    """max_{j≠y} z_j(x) − z_y(x): positive exactly where the prediction is not y."""
    z = model(x)
    return _without(z, y).amax(1) - z.gather(1, classes(y)[:, None]).squeeze(1)


def squared_error(model: Model, x: Tensor, y: Tensor) -> Tensor:
    """Σ_k (z_k(x) − y_k)², for regression: y of the shape of the outputs, or (B,) where there is one output."""
    z = model(x)
    return (z - y.reshape(z.shape)).square().sum(1)


@dataclass(frozen=True)
class WeightedOutputs:
    """Σ_c w_c · z_c(x), the weights constants of the derivative."""

    weights: tuple[float, ...] | Callable[[Tensor, Tensor], Tensor]

    def __call__(self, model: Model, x: Tensor, y: Tensor) -> Tensor:
        z = model(x)
        if callable(self.weights):
            return (self.weights(z.detach(), y).detach() * z).sum(1)
        if len(self.weights) > z.shape[1]:
            raise InvalidInput(f"expected at most {z.shape[1]} weights, one per output, got {len(self.weights)}")
        pairs = zip(self.weights, z.unbind(1), strict=False)
        return sum((w * each for w, each in pairs if w), torch.zeros_like(z[:, 0]))


def weighted_outputs(weights: Sequence[float] | Callable[[Tensor, Tensor], Tensor]) -> WeightedOutputs:
    """Σ_c w_c · z_c(x): numbers per output, or a function (logits, y) -> (B, C) whose values are constants."""
    if callable(weights):
        return WeightedOutputs(weights)
    return WeightedOutputs(tuple(float(w) for w in weights))


def output(k: int) -> WeightedOutputs:
    """z_k(x), the k-th output whatever y is: what to attribute in regression."""
    check_whole("output expects the number of an output", k, least=0)
    return WeightedOutputs((0.0,) * int(k) + (1.0,))


def best_wrong(model: Model, x: Tensor, y: Tensor) -> Tensor:
    """argmax_{j≠y} z_j(x), (B,) labels."""
    with torch.no_grad():
        return _without(model(x), y).argmax(1)


def classes(y: Tensor) -> Tensor:
    """Integer labels (B,) as int64; refuses soft labels and regression targets."""
    if y.is_floating_point() or y.dim() != 1:
        raise InvalidInput(
            f"expected integer class labels y of shape (B,), got {y.dtype} {tuple(y.shape)}: use y.long(), or a scalar "
            "that takes such targets (cross_entropy for soft labels, squared_error, output(k))"
        )
    return y.long()


def _without(z: Tensor, y: Tensor) -> Tensor:
    """The logits with −∞ for the label's."""
    own = torch.arange(z.shape[1], device=z.device) == classes(y)[:, None]  # one_hot would read the labels
    return z.masked_fill(own, -torch.inf)


OF_THE_OUTPUT: tuple[Scalar, ...] = (cross_entropy, logit, margin, probability, wrong_logit, squared_error)
"""Scalars that see x through model(x) alone: of these, a derivative may be taken behind the first layer."""
