"""Networks with softplus units: `paper_cnn_softplus10` is `paper_cnn` with s(u) = log(1 + e^{βu})/β for ReLU, β = 10.

A network of its own, to be trained, while `smooth` is another view of a given one. The smaller β, the smaller the
curvature that bounds how far a map can move (Dombrowski et al., NeurIPS 2019). A leaky ReLU of slope a becomes
a·u + (1 − a)·s(u). Max-pools stay.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from torch import Tensor, nn

from robattr.models.architecture import architecture
from robattr.models.cnn import paper_cnn, small_cnn
from robattr.models.resnet import resnet
from robattr.models.smooth import softplus

BETAS = (3, 10, 30, 100)


class Softplus(nn.Module):
    """a·u + (1 − a)·log(1 + e^{βu})/β."""

    def __init__(self, beta: float, slope: float = 0.0) -> None:
        super().__init__()
        self.beta, self.slope = beta, slope

    def forward(self, u: Tensor) -> Tensor:
        return self.slope * u + (1 - self.slope) * softplus(u, self.beta)


def soften(net: nn.Module, beta: float) -> nn.Module:
    """`net`, whose ReLUs and leaky ReLUs have become softplus units of β."""
    for parent in list(net.modules()):
        for name, part in list(parent.named_children()):
            if isinstance(part, nn.ReLU | nn.LeakyReLU):
                setattr(parent, name, Softplus(beta, getattr(part, "negative_slope", 0.0)))
    return net


def with_softplus(make: Callable[..., nn.Module], beta: float) -> Callable[..., nn.Module]:
    """The architecture `make` with softplus units, registered as `NAME_softplusBETA`."""

    @wraps(make)
    def build(*args: Any, **kwargs: Any) -> nn.Module:
        return soften(make(*args, **kwargs), beta)

    build.__name__ = f"{make.__name__}_softplus{beta:g}"
    return architecture(build)


SOFTPLUS = [with_softplus(make, beta) for make in (paper_cnn, resnet, small_cnn) for beta in BETAS]
