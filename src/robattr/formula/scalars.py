"""The scalar that is attributed: f(model, x, y) -> (B,), one number per example.

Shapes: B examples, C classes; x (B, ...), y (B,) integer labels, logits z (B, C).
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from robattr.formula.network import Model


class Scalar(Protocol):
    """f_y(x): a differentiable number per example."""

    def __call__(self, model: Model, x: Tensor, y: Tensor) -> Tensor: ...


def cross_entropy(model: Model, x: Tensor, y: Tensor) -> Tensor:
    """ℓ_y(x) = −log softmax(z)_y, the loss that training attributes (paper, section 3).

    The reference clips the probability at 1e-10, which removes the gradient of examples the network gets very wrong;
    this one does not.
    """
    return F.cross_entropy(model(x), y.long(), reduction="none")


def logit(model: Model, x: Tensor, y: Tensor) -> Tensor:
    """z_y(x), the score of the label: what attribution *maps* explain at test time (paper, section 5)."""
    return model(x).gather(1, y.long()[:, None]).squeeze(1)


def margin(model: Model, x: Tensor, y: Tensor) -> Tensor:
    """max_{j≠y} z_j(x) − z_y(x): positive exactly where the prediction is not y."""
    z = model(x)
    label = y.long()[:, None]
    own = torch.arange(z.shape[1], device=z.device) == label  # one_hot would read the labels, which no compiler can
    return z.masked_fill(own, -torch.inf).amax(1) - z.gather(1, label).squeeze(1)


OF_THE_OUTPUT: tuple[Scalar, ...] = (cross_entropy, logit, margin)
"""Scalars that see x through model(x) alone: of these, a derivative may be taken behind the first layer."""
