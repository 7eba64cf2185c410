"""How maps are displayed: brightness and the most important pixels."""

from __future__ import annotations

import numpy as np
import torch

from robattr.evaluation.gallery import Array
from robattr.metrics import top_k_mask


def top_k(scores: Array, k: int) -> Array:
    """Mask of the k largest entries of a map, with the tie rule of the scores."""
    maps = torch.from_numpy(scores.astype(np.float64))[None]
    mask: Array = top_k_mask(maps, min(k, scores.size))[0].numpy()
    return mask


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
