"""Smooth residual networks, adversarially trained by one step: `gtsrb/madry-smooth`, `flower/madry-smooth`.

A map jumps where a unit of the network switches; softplus units do not switch. The prediction loss under attack makes
the network flat within the ball, and nothing else is trained for: the objective is Madry's, with one step of 1.25·ε
from a random start, which costs twice as much as natural training. docs/tried.md has what else was tried.
"""

from __future__ import annotations

from dataclasses import replace

from robattr.recipes import flower, gtsrb
from robattr.training.config import TrainConfig

BASES = {"gtsrb": gtsrb.madry(), "flower": flower.madry()}
CHOSEN = {"gtsrb": (5.0, 8000, 128), "flower": (4.0, 6000, 64)}  # ε, steps, batch; Flower has 1,224 images


def madry_smooth(base: TrainConfig) -> TrainConfig:
    """max ℓ(x') on a network without kinks, whose maps an attack moves less."""
    eps, steps, batch = CHOSEN[base.dataset]
    return replace(
        base, model="smooth_resnet", eps=eps, attack_steps=1, step_size=1.25 * eps, eps_ramp=(0, 1000),
        optimizer="adam", lr=2e-3, schedule="cosine", warmup=500, boundaries=(), rates=(), decay=0.0, clip=5.0,
        average=0.999, reduction="mean", steps=steps, batch=batch, mirror=base.dataset == "flower", precision="bf16",
        validate_every=1000,
    )  # fmt: skip


METHODS = (madry_smooth,)
