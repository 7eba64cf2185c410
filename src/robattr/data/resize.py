"""OpenCV's bilinear resize of 8-bit images, in its own fixed-point arithmetic, so that OpenCV is no dependency."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

ONE = 2048  # INTER_RESIZE_COEF_SCALE: weights are multiples of 1/2048


def resize_bilinear(image: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Resize (h, w, channels) uint8 to (size, size, channels) as `cv2.resize(..., INTER_LINEAR)` does in fixed point.

    Output pixel i looks at input coordinate (i + ½)·n/size − ½. Columns are mixed first, exactly, with weights rounded
    to 1/2048; rows are mixed with truncating shifts.

    Checked on one build only, OpenCV 5.0 for aarch64: equal to it with five channels, except at exactly half
    the size (64 × 64); with three channels about a quarter of the sizes differ, by one grey level. That build lists
    vendor routines (carotene, KleidiCV), which are the likely reason; x86 builds have not been compared.
    """
    height, width = image.shape[:2]
    x0, x1, a0, a1 = _taps(width, size)
    y0, y1, b0, b1 = _taps(height, size)
    # OpenCV folds out-of-range columns into one weight, but only repeats out-of-range rows: the truncations differ.
    outside = (x0 < 0) | (x0 >= width - 1)
    a0, a1 = np.where(outside, ONE, a0), np.where(outside, 0, a1)
    wide = image.astype(np.int64)
    mixed = (wide[:, x0.clip(0, width - 1)] * a0[:, None] + wide[:, x1.clip(0, width - 1)] * a1[:, None]) >> 4
    top = (mixed[y0.clip(0, height - 1)] * b0[:, None, None]) >> 16
    bottom = (mixed[y1.clip(0, height - 1)] * b1[:, None, None]) >> 16
    resized: NDArray[np.uint8] = ((top + bottom + 2) >> 2).astype(np.uint8)
    return resized


def _taps(n: int, size: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """For each output position: its two input positions (unclipped) and their weights in units of 1/2048."""
    at = ((np.arange(size) + 0.5) * (1 / (size / n)) - 0.5).astype(np.float32)
    left = np.floor(at).astype(np.int64)
    part = at - left.astype(np.float32)
    weight0 = np.rint((np.float32(1) - part) * np.float32(ONE)).astype(np.int64)
    weight1 = np.rint(part * np.float32(ONE)).astype(np.int64)
    return left, left + 1, weight0, weight1
