"""Histogram equalisation, bit for bit OpenCV's `equalizeHist`, batched on the images' device."""

from __future__ import annotations

import torch
from torch import Tensor

from robattr.errors import InvalidInput

CHUNK = 1 << 22  # pixels at a time: bounds the int64 index that counting needs


def equalise(images: Tensor) -> Tensor:
    """Equalise every channel of every image: uint8 (N, C, H, W) -> uint8 (N, C, H, W).

    With cdf(v) the number of the channel's n = H·W pixels that are ≤ v, and h₀ the count of its lowest occupied
    bin,

        out(v) = round( float32(cdf(v) − h₀) · float32(255 / (n − h₀)) ),   ties to even;

    the lowest bin goes to 0 and a constant channel stays as it is. This is what the reference applies to GTSRB
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
