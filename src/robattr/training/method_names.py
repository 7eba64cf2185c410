"""Names of the methods, and what readers of runs must know about them; without torch."""

from __future__ import annotations

from typing import Literal

Method = Literal[
    "natural", "madry", "ig-norm", "ig-sum-norm", "input-gradient", "loss-output", "sinha", "distributional-ig",
    "trades", "igr", "aat", "adv-aat", "art", "sarkar", "ssr", "lga", "r2et", "curvature",
    "interval-bound",
]  # fmt: skip
INTEGRATING = frozenset({"ig-norm", "ig-sum-norm", "distributional-ig", "igr", "aat", "adv-aat", "sarkar"})
"""Methods whose objective depends on m."""
