"""The examples an evaluation kept for looking at: images, perturbed iterates and attribution maps.

Shapes: G examples, T kept iterates of the attack, images (C, H, W), maps (H, W).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from robattr.errors import CheckpointError
from robattr.evaluate.agreement import top_k_mask

Array = NDArray[Any]
KEYS = ("id", "label", "image", "perturbed", "before", "after", "topk", "kendall", "iterations")


@dataclass(frozen=True)
class Gallery:
    """id, label (G,); image (G, C, H, W) and perturbed (G, T, C, H, W) uint8; before (G, H, W), after (G, T, H, W);
    topk, kendall (G, T), kept (G, T): the prediction held at that iterate; iterations (T,)."""

    id: Array
    label: Array
    image: Array
    perturbed: Array
    before: Array
    after: Array
    topk: Array
    kendall: Array
    kept: Array
    iterations: Array

    def __len__(self) -> int:
        return len(self.id)

    def reported(self, example: int) -> int:
        """The iterate the records score: the lowest Kendall among those that kept the prediction, else the last."""
        kendall = np.where(self.kept[example] & np.isfinite(self.kendall[example]), self.kendall[example], np.inf)
        best = int(np.argmin(kendall))
        return best if np.isfinite(kendall[best]) else len(self.iterations) - 1


def read_gallery(path: Path) -> Gallery:
    """Read a gallery file, never executing anything it holds."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {key: stored[key] for key in stored.files}
    except (OSError, ValueError) as cause:
        raise CheckpointError(f"{path} could not be read ({cause}): evaluate the run again") from cause
    missing = [key for key in KEYS if key not in arrays]
    if missing:
        raise CheckpointError(f"{path} lacks {', '.join(missing)}: evaluate the run again")
    kept = arrays.get("kept", np.ones(arrays["topk"].shape, dtype=bool))
    return Gallery(**{key: arrays[key] for key in KEYS}, kept=kept.astype(bool))


def top_k(scores: Array, k: int) -> Array:
    """Mask of the k largest entries of a map, by the rule the scores are computed with."""
    maps = torch.from_numpy(scores.astype(np.float64))[None]
    mask: Array = top_k_mask(maps, min(k, scores.size))[0].numpy()
    return mask


def ceiling(before: Array) -> float:
    """The value shown at full brightness, for both maps of a pair: the 99th percentile of the first's positive part."""
    positive = before[np.isfinite(before) & (before > 0)].astype(np.float64)
    return float(np.percentile(positive, 99)) if positive.size else 1.0


def brightness(scores: Array, top: float) -> Array:
    """A map for the eye: √(S / top), cut off at 1.

    Attribution maps have heavy tails: drawn linearly, a handful of pixels would leave everything else black.
    """
    scaled = np.nan_to_num(scores.astype(np.float64), nan=0.0, posinf=top) / (top or 1.0)
    bright: Array = np.sqrt(np.clip(scaled, 0, 1))
    return bright
