"""Fast recipes, `mnist/ig-norm-fast`: the paper's problem (dataset, method, ε, λ or β) at a fraction of its cost.

They take 50 (GTSRB, Flower) to 65 times (MNIST) fewer second-order gradients: few midpoints instead of many right ends,
a few attack steps that together cross the ball twice, and fewer updates; on a GPU, with tf32 products.

MNIST and Fashion-MNIST keep the reference's Adam at twice its batch and rate, which then falls to zero, and let ε grow
over the first steps. A network trained by one cycle of a ten times higher rate withstood the `paper` attack far better,
and a naturally trained one too: that tells more of the softplus twin the attack follows than of robustness. NATURAL is
the reference's run to the letter there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from robattr.train.run import Run

CHEAP: dict[str, Any] = {
    "rule": "midpoint", "m": 5, "m_attack": 2, "reduction": "mean", "precision": "tf32", "checkpoint_every": 5000,
}  # fmt: skip

MNIST = {
    "attack_steps": 10, "step_size": 0.06, "steps": 15_000, "batch": 100, "lr": 2e-4, "schedule": "linear",
    "eps_ramp": (0, 2000), "validate_every": 5000,
}  # fmt: skip
GTSRB = {
    "attack_steps": 5, "step_size": 3.2, "m": 3, "steps": 6000, "batch": 128, "validate_every": 2000,
    "schedule": "one-cycle", "boundaries": (), "rates": (), "lr": 2e-2, "clip": 5.0,
}  # fmt: skip

FAST: dict[str, dict[str, Any]] = {
    "mnist": MNIST,
    "fashion-mnist": {**MNIST, "step_size": 0.02},
    "gtsrb": GTSRB,
    "flower": {**GTSRB, "batch": 32, "steps": 3000, "validate_every": 1000},
}


def fast(run: Run) -> Run:
    """The fast form of a paper recipe; NATURAL has no attack, and on MNIST is the paper's own run in tf32."""
    if run.method == "natural" and run.optimizer == "adam":
        return replace(run, precision="tf32")
    return replace(run, **{**CHEAP, **FAST[run.dataset]})
