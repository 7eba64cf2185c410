"""Maps that hold by the form of the network: `fashion-mnist/natural-additive`, `fashion-mini/natural-additive`.

`additive_net` is nearly a sum of functions of single pixels, each constant where an attack of ε = 0.1 can move a pixel
that is black or bright. `…/natural-linear` is the control, a linear classifier. Both are trained by the loss alone.
docs/tried.md has what else was tried.
"""

from __future__ import annotations

from dataclasses import replace

from robattr.recipes import fashion_mini, fashion_mnist
from robattr.training.config import TrainConfig

BASES = {"fashion-mini": fashion_mini.natural(), "fashion-mnist": fashion_mnist.natural()}


def natural_additive(base: TrainConfig) -> TrainConfig:
    """ℓ(x) on a network that is nearly additive in the pixels, whose maps an attack can hardly move."""
    steps = 1000 if base.dataset == "fashion-mini" else 8000
    return replace(
        base, model="additive_net", steps=steps, batch=200, lr=2e-3, schedule="cosine", reduction="mean",
        validate_every=1000,
    )  # fmt: skip


def natural_linear(base: TrainConfig) -> TrainConfig:
    """ℓ(x) on a linear classifier: the control of `natural-additive`."""
    return replace(natural_additive(base), model="linear_net")


METHODS = (natural_additive, natural_linear)
