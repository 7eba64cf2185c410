"""OpenCV's `equalizeHist` and bilinear `resize` of 8-bit images, in its own arithmetic, without OpenCV."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robattr.errors import InvalidInput

CHUNK = 1 << 22  # pixels equalised at a time: limits the memory of the int64 index
ONE = 2048  # OpenCV's INTER_RESIZE_COEF_SCALE: weights are multiples of 1/2048


def equalise(images: Tensor) -> Tensor:
    """Equalise every channel of every image: uint8 (N, C, H, W) -> uint8 (N, C, H, W).

    With cdf(v) the number of the channel's n = H·W pixels that are ≤ v, and h₀ the count of its lowest occupied
    bin,

        out(v) = round( float32(cdf(v) − h₀) · float32(255 / (n − h₀)) ),   ties to even;

    the lowest bin goes to 0 and a constant channel is unchanged. This is what the reference applies to GTSRB
    after augmentation, in train and test alike (other libraries' equalisers differ).
    """
    if images.dtype != torch.uint8 or images.ndim != 4:
        raise InvalidInput(
            f"expected uint8 images (N, C, H, W), got {images.dtype} of {tuple(images.shape)}: "
            "equalise stored images, not pixels"
        )
    n, c, h, w = images.shape
    rows = images.reshape(n * c, h * w)
    if not rows.numel():
        return images.clone()
    chunks = rows.split(max(1, CHUNK // (h * w)))
    return torch.cat([_equalise_rows(chunk) for chunk in chunks]).reshape(n, c, h, w)


def _equalise_rows(rows: Tensor) -> Tensor:
    count, total = rows.shape
    bins = rows.long() + torch.arange(count, device=rows.device)[:, None] * 256
    ones = torch.ones((), dtype=torch.int32, device=rows.device).expand(bins.numel())
    histogram = torch.zeros(count * 256, dtype=torch.int32, device=rows.device).scatter_add_(0, bins.flatten(), ones)
    cdf = histogram.view(count, 256).cumsum(1, dtype=torch.int32)
    lowest = rows.amin(1, keepdim=True).long()
    h0 = cdf.gather(1, lowest)
    constant = h0 == total
    rest = (total - h0).clamp(min=1).float()
    scale = torch.full_like(rest, 255) / rest  # `255 / rest` would multiply by a rounded reciprocal
    table = ((cdf - h0).clamp(min=0).float() * scale).round().to(torch.uint8)
    return torch.where(constant, rows, table.flatten()[bins])


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
