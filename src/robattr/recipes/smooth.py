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


def madry_smooth(base: TrainConfig) -> TrainConfig:
    """max ℓ(x') on a network without kinks, whose maps an attack moves less."""
    few = base.dataset == "flower"  # 1,224 images
    return replace(
        base, model="smooth_resnet", eps=4.0, attack_steps=1, step_size=5.0, eps_ramp=(0, 1000), optimizer="adam",
        lr=2e-3, schedule="cosine", warmup=500, boundaries=(), rates=(), decay=0.0, clip=5.0, average=0.999,
        reduction="mean", steps=6000, batch=64 if few else 128, mirror=few, precision="bf16", validate_every=1000,
    )  # fmt: skip


METHODS = (madry_smooth,)
