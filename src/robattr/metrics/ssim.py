"""Structural similarity of two maps, and the mass centre of a map."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.linalg import vector_norm
from torch.nn.functional import conv2d

from robattr.errors import InvalidInput
from robattr.metrics._validation import check_maps, check_pair, spoiled


def mass_center(a: Tensor) -> Tensor:
    """The centre of mass (Σ S·row, Σ S·col) / Σ S of each map S, (B, 2) as (row, column); differentiable.

    `a`: (B, H, W), or (B, C, H, W) whose channels are summed. The reference divides by HW, the sum of its normalised
    maps, and truncates to whole pixels; this does not truncate. A map that sums to 0 gives nan.
    """
    planes = _planes(a).sum(1)
    if not planes.is_floating_point():
        planes = planes.double()
    row = torch.arange(planes.shape[1], device=a.device, dtype=planes.dtype)
    col = torch.arange(planes.shape[2], device=a.device, dtype=planes.dtype)
    mass = planes.sum((1, 2))
    return torch.stack([(planes.sum(2) * row).sum(1), (planes.sum(1) * col).sum(1)], 1) / mass[:, None]


def mass_center_displacement(a: Tensor, b: Tensor) -> Tensor:
    """‖mass centre of b − mass centre of a‖₂ in pixels, (B,) float64."""
    check_pair(a, b)
    distance: Tensor = vector_norm(mass_center(b.detach().double()) - mass_center(a.detach().double()), dim=1)
    return distance


def ssim(a: Tensor, b: Tensor) -> Tensor:
    """Structural similarity of each pair of maps (Wang et al. 2004), (B,) float64.

    The mean over all whole windows (and channels) of

        (2 μ_a μ_b + C₁)(2 σ_ab + C₂) / ((μ_a² + μ_b² + C₁)(σ_a² + σ_b² + C₂)),   C₁ = (0.01 L)², C₂ = (0.03 L)²,

    under a Gaussian window of 11×11, σ = 1.5: `structural_similarity(gaussian_weights=True, sigma=1.5,
    use_sample_covariance=False, data_range=L)` of scikit-image. A map with a side below 11 gets the largest odd
    window that fits. L is the common range of the pair, max(a, b) − min(a, b), example by example, so that the score
    does not depend on the scale of the maps. Two equal constant maps: nan.
    """
    check_pair(a, b)
    x, y = _planes(a.detach()).double(), _planes(b.detach()).double()
    both = torch.cat([x, y], 1).flatten(1)
    L = (both.amax(1) - both.amin(1))[:, None, None, None]
    c1, c2 = (0.01 * L) ** 2, (0.03 * L) ** 2
    mx, my = _window_mean(x), _window_mean(y)
    vx, vy = _window_mean(x * x) - mx * mx, _window_mean(y * y) - my * my
    vxy = _window_mean(x * y) - mx * my
    score = ((2 * mx * my + c1) * (2 * vxy + c2)) / ((mx * mx + my * my + c1) * (vx + vy + c2))
    return score.mean((1, 2, 3)).masked_fill(spoiled(a) | spoiled(b) | (L.flatten() == 0), float("nan"))


def _planes(a: Tensor) -> Tensor:
    check_maps(a)
    if a.dim() not in (3, 4):
        raise InvalidInput(
            f"expected maps with rows and columns, (B, H, W) or (B, C, H, W), got shape {tuple(a.shape)}: "
            "reshape the flat maps"
        )
    return a[:, None] if a.dim() == 3 else a


def _window_mean(x: Tensor) -> Tensor:
    """Gaussian mean of every whole window of planes (B, C, H, W)."""
    B, C, H, W = x.shape
    side = min(11, H, W)
    radius = (side - 1) // 2
    t = torch.arange(-radius, radius + 1, dtype=x.dtype, device=x.device)
    weight = torch.exp(-0.5 * (t / 1.5) ** 2)
    weight = weight / weight.sum()
    x = conv2d(x.reshape(B * C, 1, H, W), weight.view(1, 1, -1, 1))
    x = conv2d(x, weight.view(1, 1, 1, -1))
    return x.view(B, C, x.shape[2], x.shape[3])
