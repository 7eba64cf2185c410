"""SSIM against scikit-image, mass centres against SciPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import ndimage
from skimage.metrics import structural_similarity
from torch import Tensor

from maps_fixtures import NAN, SSIM_ROUNDING, assert_equal, mostly_zero
from robattr.metrics import mass_center, mass_center_displacement, ssim


def assert_close(got: Tensor, expected: Tensor) -> None:
    """Equal but for rounding."""
    assert got.dtype == torch.float64
    torch.testing.assert_close(got, expected, rtol=0, atol=SSIM_ROUNDING, equal_nan=True)


def test_mass_center_is_scipys_and_differentiable():
    g = torch.Generator().manual_seed(13)
    a, b = (torch.rand(3, 6, 9, generator=g, dtype=torch.float64) for _ in range(2))
    expected = torch.tensor([ndimage.center_of_mass(x) for x in a.numpy()], dtype=torch.float64)
    assert_equal(mass_center(a), expected)
    assert_equal(mass_center(torch.stack([a, a], 1)), expected)
    assert_equal(mass_center_displacement(a, b), (mass_center(b) - expected).norm(dim=1))
    assert_equal(mass_center_displacement(a, a), torch.zeros(3, dtype=torch.float64))
    torch.autograd.gradcheck(mass_center, a[:1].clone().requires_grad_())
    shifted = torch.zeros(1, 8, 8)
    shifted[0, 2, 3] = 5
    assert_equal(mass_center_displacement(shifted, shifted.roll((3, 4), (1, 2))), torch.tensor([5.0]).double())
    assert mass_center(torch.zeros(1, 4, 4)).isnan().all()


def skimage_ssim(x: np.ndarray, y: np.ndarray, L: float, channel_axis: int | None = None) -> float:
    settings = {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False}
    return structural_similarity(x, y, data_range=L, channel_axis=channel_axis, **settings)


@pytest.mark.parametrize(("H", "W"), [(28, 28), (32, 20), (11, 11)])
def test_ssim_is_scikit_images(H, W):
    g = torch.Generator().manual_seed(14)
    a = mostly_zero(g, 5, H * W).view(5, H, W)
    b = a + 0.3 * torch.rand(5, H, W, generator=g, dtype=torch.float64)
    ranges = [float(max(x.max(), y.max()) - min(x.min(), y.min())) for x, y in zip(a, b, strict=True)]
    pairs = list(zip(a.numpy(), b.numpy(), ranges, strict=True))
    assert_close(ssim(a, b), torch.tensor([skimage_ssim(x, y, L) for x, y, L in pairs]).double())
    assert_close(ssim(1000 * a, 1000 * b), ssim(a, b))
    colour = torch.stack([a, b, a * b], 1)
    other = colour.flip(0)
    ranges = [float(max(x.max(), y.max()) - min(x.min(), y.min())) for x, y in zip(colour, other, strict=True)]
    triples = zip(colour.numpy(), other.numpy(), ranges, strict=True)
    assert_close(ssim(colour, other), torch.tensor([skimage_ssim(x, y, L, 0) for x, y, L in triples]).double())


@pytest.mark.parametrize(("H", "W", "radius"), [(8, 8, 3), (5, 30, 2), (2, 2, 0), (1, 4, 0)])
def test_ssim_of_maps_smaller_than_the_window(H, W, radius):
    g = torch.Generator().manual_seed(15)
    a, b = (torch.rand(1, H, W, generator=g, dtype=torch.float64) for _ in range(2))
    x, y = a[0].numpy(), b[0].numpy()

    def mean(z: np.ndarray) -> np.ndarray:
        full = ndimage.gaussian_filter(z, 1.5, radius=radius)
        return full[radius : H - radius, radius : W - radius]

    L = max(x.max(), y.max()) - min(x.min(), y.min())
    c1, c2 = (0.01 * L) ** 2, (0.03 * L) ** 2
    vx, vy, vxy = mean(x * x) - mean(x) ** 2, mean(y * y) - mean(y) ** 2, mean(x * y) - mean(x) * mean(y)
    score = (2 * mean(x) * mean(y) + c1) * (2 * vxy + c2) / ((mean(x) ** 2 + mean(y) ** 2 + c1) * (vx + vy + c2))
    assert_close(ssim(a, b), torch.tensor([score.mean()]))


def test_ssim_of_equal_constant_and_nan_maps():
    g = torch.Generator().manual_seed(16)
    a = torch.rand(4, 12, 12, generator=g)
    b = a.clone()
    a[1] = b[1] = 0.5
    b[2, 3, 3] = NAN
    assert_close(ssim(a, b), torch.tensor([1.0, NAN, NAN, 1.0]).double())
