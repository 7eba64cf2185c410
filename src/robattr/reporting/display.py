"""How maps are displayed: brightness and the most important pixels."""

from __future__ import annotations

import numpy as np

from robattr.evaluation.gallery import Array


def top_k(scores: Array, k: int) -> Array:
    """Mask of the k largest entries of a map, with the tie rule of the scores (`metrics.top_k_mask`)."""
    mask = np.zeros(scores.size, dtype=np.bool_)
    if not np.isnan(scores).any():
        mask[np.argsort(-scores.reshape(-1), kind="stable")[:k]] = True
    return mask.reshape(scores.shape)


def ceiling(before: Array) -> float:
    """The value shown at full brightness: the 99th percentile of the positive part of the map before."""
    positive = before[np.isfinite(before) & (before > 0)].astype(np.float64)
    return float(np.percentile(positive, 99)) if positive.size else 1.0


def brightness(scores: Array, top: float) -> Array:
    """A map scaled for display, √(S / top) clipped to [0, 1].

    Attribution maps have heavy tails: on a linear scale a few pixels would leave all others black.
    """
    scaled = np.nan_to_num(scores.astype(np.float64), nan=0.0, posinf=top) / (top or 1.0)
    bright: Array = np.sqrt(np.clip(scaled, 0, 1))
    return bright
