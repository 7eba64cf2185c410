"""The embedded Fashion-MNIST subset: four runs of seconds each on two CPU cores. The numbers are ours, not the paper's.

Few attack steps and few path points, at midpoints, which are accurate at small m; one cycle of the learning
rate.
"""

from __future__ import annotations

from dataclasses import replace

from robattr.train.run import Run

QUICK = Run(
    dataset="fashion-mini",
    eps=0.1, attack_steps=3, step_size=0.05, m=4, m_attack=2, rule="midpoint",
    optimizer="adam", lr=3e-3, schedule="one-cycle", reduction="mean", steps=400, batch=50,
    log_every=50, validate_every=200, checkpoint_every=100,
)  # fmt: skip


def natural() -> Run:
    """ℓ(x)."""
    return replace(QUICK, method="natural")


def madry() -> Run:
    """max ℓ(x'): adversarial training."""
    return replace(QUICK, method="madry")


def ig_norm() -> Run:
    """ℓ(x) + λ max ‖IG(x, x')‖₁."""
    return replace(QUICK, method="ig-norm", weight=1.0)


def ig_sum_norm() -> Run:
    """max { ℓ(x') + β‖IG(x, x')‖₁ }."""
    return replace(QUICK, method="ig-sum-norm", weight=0.3)


RECIPES = (natural, madry, ig_norm, ig_sum_norm)
