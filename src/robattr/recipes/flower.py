"""Flower (Oxford 17) as in the paper (supplement, experiments) and its code: GTSRB's recipes, batches of 16.

The IG runs sum over the batch, with rates 1e-4/1e-3/1e-4 and λ = β = 0.1, in paper and code alike. Like the
paper they train on all 1,224 images that are not test images: `full` adds the validation split to the
training split, so that there is no validation. Set full=false to compare settings on it. The notes of the GTSRB
recipes on sums and right ends apply here too.
"""

from __future__ import annotations

from dataclasses import replace

from robattr.recipes import gtsrb
from robattr.training.config import TrainConfig

PAPER = replace(gtsrb.PAPER, dataset="flower", full=True, batch=16)
ON_SUMS = replace(PAPER, weight=0.1, reduction="sum", rates=(1e-4, 1e-3, 1e-4))


def natural() -> TrainConfig:
    """ℓ(x)."""
    return replace(PAPER, method="natural")


def madry() -> TrainConfig:
    """max ℓ(x'): adversarial training."""
    return replace(PAPER, method="madry")


def ig_norm() -> TrainConfig:
    """ℓ(x) + max ‖IG(x, x')‖₁: λ = 0.1, rates 1e-4/1e-3/1e-4 on the batch sum."""
    return replace(ON_SUMS, method="ig-norm")


def ig_sum_norm() -> TrainConfig:
    """max { ℓ(x') + β‖IG(x, x')‖₁ }: β = 0.1, rates 1e-4/1e-3/1e-4 on the batch sum."""
    return replace(ON_SUMS, method="ig-sum-norm")


RECIPES = (natural, madry, ig_norm, ig_sum_norm)
