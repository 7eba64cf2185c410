"""Fashion-MNIST as in the paper (supplement, experiments): MNIST's recipes with ε = 0.1 and 20 attack steps.

The notes of the MNIST recipes (batch sums, right ends, last checkpoint) apply here too.
"""

from __future__ import annotations

from dataclasses import replace

from robattr.recipes import mnist
from robattr.training.config import TrainConfig


def natural() -> TrainConfig:
    """ℓ(x): 25,000 steps. (The shipped configuration of the reference code says 100,000; the paper 25,000.)"""
    return _fashion(mnist.natural())


def madry() -> TrainConfig:
    """max ℓ(x'): adversarial training."""
    return _fashion(mnist.madry())


def ig_norm() -> TrainConfig:
    """ℓ(x) + max ‖IG(x, x')‖₁: λ = 1."""
    return _fashion(mnist.ig_norm())


def ig_sum_norm() -> TrainConfig:
    """max { ℓ(x') + β‖IG(x, x')‖₁ }: β = 0.1."""
    return _fashion(mnist.ig_sum_norm())


def _fashion(run: TrainConfig) -> TrainConfig:
    return replace(run, dataset="fashion-mnist", eps=0.1, attack_steps=20)


RECIPES = (natural, madry, ig_norm, ig_sum_norm)
