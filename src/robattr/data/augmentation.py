"""The reference's augmentation of GTSRB and Flower: rotate, translate, project, truncate; batched on the device.

Every warp maps each output pixel (x, y) to a position in the input and interpolates bilinearly there: rotation and
projection replicate the edge (scikit-image), translation pads with black (OpenCV). The geometry is drawn and solved on
the CPU in float64, so that a batch does not depend on the device; only 3 × 3 matrices are copied there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from robattr.errors import InvalidInput

MAX_ANGLE = 15.0  # degrees
MAX_SHIFT = 2.5  # pixels, for every image size
MAX_PROJECTION = 0.3 * 0.8  # of the image's side


@dataclass(frozen=True, eq=False)
class Geometry:
    """The random parameters of a batch, float64 on the CPU.

    angle: (B,) degrees, counter-clockwise.  shift: (B, 2) pixels, (tx, ty), right and down.
    corners: (B, 8) pixels: TL-top, TL-left, BL-bottom, BL-left, TR-top, TR-right, BR-bottom, BR-right.
    """

    angle: Tensor
    shift: Tensor
    corners: Tensor


def draw(count: int, size: int, generator: torch.Generator) -> Geometry:
    """angle ~ U(−15°, 15°); tx, ty ~ U(−2.5, 2.5) px; d = 0.3·H·U(0, 0.8), then eight U(−d, d): H = `size`."""
    u = torch.rand(count, 12, dtype=torch.float64, generator=generator)
    reach = MAX_PROJECTION * size * u[:, 3:4]
    return Geometry(
        angle=MAX_ANGLE * (2 * u[:, 0] - 1), shift=MAX_SHIFT * (2 * u[:, 1:3] - 1), corners=reach * (2 * u[:, 4:] - 1)
    )


def augment(images: Tensor, geometry: Geometry) -> Tensor:
    """Warp uint8 images (B, C, H, H) by `geometry`: the reference's chain, ×255 and truncation to uint8 included."""
    return truncate(warp(images, sources(geometry, images.shape[-1])))


def truncate(x: Tensor) -> Tensor:
    """[0, 1] -> uint8 as the reference does, towards 0."""
    return (x * 255).to(torch.uint8)


def sources(geometry: Geometry, size: int) -> Tensor:
    """The output-to-input maps of rotation, translation and projection: (3, B, 3, 3), float64 on the CPU."""
    return torch.stack(
        [_rotation(geometry.angle, size), _translation(geometry.shift), _projection(geometry.corners, size)]
    )


def warp(images: Tensor, maps: Tensor) -> Tensor:
    """The three warps of uint8 images (B, C, H, H) by `maps` (see `sources`): float in [0, 1]."""
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[2] != images.shape[3]:
        raise InvalidInput(
            f"expected square uint8 images (B, C, H, H), got {images.dtype} of {tuple(images.shape)}: "
            "resize or convert them first"
        )
    # Truncation can turn a rounding error into a grey level: float64 where the device has it.
    dtype = torch.float32 if images.device.type == "mps" else torch.float64
    maps = maps.to(dtype).to(images.device, non_blocking=True)
    x = _sample(images.to(dtype) / 255, maps[0], black=False)
    x = _sample(x, maps[1], black=True)
    return _sample(x, maps[2], black=False)


def _rotation(angle: Tensor, size: int) -> Tensor:
    """Output -> input of a counter-clockwise rotation about the image's centre (rows grow downwards)."""
    radians = angle * (math.pi / 180)
    cos, sin = radians.cos(), radians.sin()
    centre = (size - 1) / 2
    zero, one = torch.zeros_like(cos), torch.ones_like(cos)
    rows = [cos, -sin, centre - cos * centre + sin * centre]
    rows += [sin, cos, centre - sin * centre - cos * centre]
    return torch.stack([*rows, zero, zero, one], dim=-1).view(-1, 3, 3)


def _translation(shift: Tensor) -> Tensor:
    """Output -> input of a shift, rounded to 1/32 pixel as OpenCV's warpAffine rounds it."""
    moved = ((-shift * 1024).round() + 16).div(32).floor() / 32
    matrix = torch.eye(3, dtype=shift.dtype).repeat(len(shift), 1, 1)
    matrix[:, :2, 2] = moved
    return matrix


def _projection(corners: Tensor, size: int) -> Tensor:
    """The homography from the four perturbed corners, in (x, y), to the square's: (0,0), (0,H), (H,H), (H,0).

    It is used as the map from output to input, so the input's corners land on the perturbed positions. In closed form
    (Heckbert, Fundamentals of Texture Mapping, 1989, §2.2.3): S sends the unit square to the corners, the result is
    its inverse, adj S / det S, in pixels and with the ninth entry 1. No solver, which would start a thread per core.
    """
    top_l, left_t, bottom_l, left_b, top_r, right_t, bottom_r, right_b = corners.unbind(1)
    x = left_t, size - right_t, size - right_b, left_b  # of the corners sent to (0, 0), (1, 0), (1, 1), (0, 1)
    y = top_l, top_r, size - bottom_r, size - bottom_l
    (x1, y1), (x3, y3) = ((x[i] - x[2], y[i] - y[2]) for i in (1, 3))
    x0, y0 = (v[0] - v[1] + v[2] - v[3] for v in (x, y))
    area = x1 * y3 - x3 * y1
    g, h = (x0 * y3 - x3 * y0) / area, (x1 * y0 - x0 * y1) / area
    a, b, c = x[1] - x[0] + g * x[1], x[3] - x[0] + h * x[3], x[0]
    d, e, f = y[1] - y[0] + g * y[1], y[3] - y[0] + h * y[3], y[0]
    rows = [e - f * h, c * h - b, b * f - c * e, f * g - d, a - c * g, c * d - a * f]
    last = [d * h - e * g, b * g - a * h, a * e - b * d]
    inverse = torch.stack([*(size * entry for entry in rows), *last], dim=1) / last[2][:, None]
    return inverse.view(-1, 3, 3)


def _sample(x: Tensor, matrix: Tensor, *, black: bool) -> Tensor:
    """Sample x (B, C, H, W) bilinearly where `matrix` (B, 3, 3) sends each output pixel; outside: black or the edge."""
    height, width = x.shape[2:]
    rows = torch.arange(height, dtype=x.dtype, device=x.device)[:, None].expand(height, width)
    columns = torch.arange(width, dtype=x.dtype, device=x.device).expand(height, width)
    m = matrix.view(-1, 9, 1, 1).unbind(1)
    scale = m[6] * columns + m[7] * rows + m[8]
    at_x = (m[0] * columns + m[1] * rows + m[2]) / scale
    at_y = (m[3] * columns + m[4] * rows + m[5]) / scale
    x0, y0 = at_x.floor(), at_y.floor()
    dx, dy = (at_x - x0)[:, None], (at_y - y0)[:, None]
    flat = x.flatten(2)

    def corner(row: Tensor, column: Tensor) -> Tensor:
        inside_row, inside_column = row.clamp(0, height - 1), column.clamp(0, width - 1)
        index = (inside_row * width + inside_column).long().flatten(1)[:, None].expand(-1, x.shape[1], -1)
        values = flat.gather(2, index).view_as(x)
        if not black:
            return values
        return values * ((row == inside_row) & (column == inside_column))[:, None]

    upper = (1 - dx) * corner(y0, x0) + dx * corner(y0, x0 + 1)
    lower = (1 - dx) * corner(y0 + 1, x0) + dx * corner(y0 + 1, x0 + 1)
    return (1 - dy) * upper + dy * lower
