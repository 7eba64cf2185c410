"""MNIST as in the paper (supplement, experiments) and its reference code.

Adam at a constant 1e-4, batches of 50, 100,000 steps (NATURAL 25,000). The adversary takes 40 steps of 0.01
from a random start in the ℓ∞ ball of radius 0.3; m = 50 in the update, 10 in the attack.

- The paper writes expectations, the code sums over the batch; under Adam that changes almost nothing, and
  `reduction` is "sum".
- TensorFlow's Adam adds its 1e-8 before the bias correction of √v, torch's after it: early steps differ slightly.
- The paper's text sums IG over the left ends of the path, the code over the right ends; the results are the
  code's: "right".
- The code evaluates its last checkpoint, after 99,900 (NATURAL 24,900) updates; here the run ends with the
  paper's number.
"""

from __future__ import annotations

from dataclasses import replace

from robattr.training.config import TrainConfig

PAPER = TrainConfig(
    dataset="mnist",
    eps=0.3, attack_steps=40, step_size=0.01, m=50, m_attack=10, rule="right",
    optimizer="adam", lr=1e-4, reduction="sum", steps=100_000, batch=50,
)  # fmt: skip


def natural() -> TrainConfig:
    """ℓ(x): 25,000 steps."""
    return replace(PAPER, method="natural", steps=25_000)


def madry() -> TrainConfig:
    """max ℓ(x'): adversarial training."""
    return replace(PAPER, method="madry")


def ig_norm() -> TrainConfig:
    """ℓ(x) + max ‖IG(x, x')‖₁: λ = 1."""
    return replace(PAPER, method="ig-norm", weight=1.0)


def ig_sum_norm() -> TrainConfig:
    """max { ℓ(x') + β‖IG(x, x')‖₁ }: β = 0.1."""
    return replace(PAPER, method="ig-sum-norm", weight=0.1)


# The distributional forms of section 3. The paper proves them and gives no experiment, so these numbers are ours: plain
# gradient ascent on d − γc with c = ‖x' − x‖₂², whose step must be below 1/γ for the ascent to contract.
DISTRIBUTIONAL = replace(PAPER, attack_steps=20, step_size=0.1, reduction="mean", steps=25_000)


def sinha() -> TrainConfig:
    """ℓ(x) + sup { ℓ(x') − ℓ(x) − γ‖x' − x‖² }: Sinha et al. (2018), with γ fixed."""
    return replace(DISTRIBUTIONAL, method="sinha", gamma=1.0)


def distributional_ig() -> TrainConfig:
    """E ℓ + λ sup { E‖IG‖₁ : E‖x' − x‖² ≤ budget }: γ found by dual ascent.

    The adversary sees the same change as the update, so m is 10, at midpoints: ‖IG‖₁ is more accurate than by 50
    right ends.
    """
    return replace(
        DISTRIBUTIONAL,
        method="distributional-ig",
        weight=0.1,
        m=10,
        rule="midpoint",
        gamma=1.0,
        budget=2.0,
        gamma_rate=0.05,
    )


RECIPES = (natural, madry, ig_norm, ig_sum_norm, sinha, distributional_ig)
