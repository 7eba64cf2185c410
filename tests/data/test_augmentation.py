"""Equalisation, resize and augmentation against OpenCV and scikit-image."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
import torch
from skimage import transform

from robattr.data.augmentation import Geometry, augment, draw, sources, warp
from robattr.errors import InvalidInput


def noise(*shape: int, seed: int = 0, low: int = 0, high: int = 256) -> np.ndarray:
    return np.random.default_rng(seed).integers(low, high, shape, dtype=np.uint8)


def smooth(count: int, size: int, seed: int = 0) -> np.ndarray:
    """(count, 3, size, size) images with structure: blurred noise, stretched to the whole range."""
    images = noise(count, 3, size, size, seed=seed)
    blurred = np.stack([np.stack([cv2.GaussianBlur(c, (0, 0), size / 12) for c in image]) for image in images])
    low, high = blurred.min(), blurred.max()
    return ((blurred.astype(float) - low) / (high - low) * 255).astype(np.uint8)


def reference_chain(image: np.ndarray, geometry: Geometry, index: int) -> np.ndarray:
    """The reference's own calls on one (3, H, H) image, before ×255 and truncation."""
    size = image.shape[-1]
    x = transform.rotate(image.transpose(1, 2, 0), float(geometry.angle[index]), mode="edge", order=1)
    tx, ty = geometry.shift[index].tolist()
    x = cv2.warpAffine(x, np.array([[1, 0, tx], [0, 1, ty]], np.float64), (size, size))
    tl_top, tl_left, bl_bottom, bl_left, tr_top, tr_right, br_bottom, br_right = geometry.corners[index].tolist()
    source = [
        (tl_left, tl_top),
        (bl_left, size - bl_bottom),
        (size - br_right, size - br_bottom),
        (size - tr_right, tr_top),
    ]
    target = [(0, 0), (0, size), (size, size), (size, 0)]
    projection = transform.ProjectiveTransform.from_estimate(np.array(source), np.array(target))
    return transform.warp(x, projection, mode="edge", order=1)


@pytest.mark.parametrize("size", [32, 128])
def test_augmentation_is_the_reference_chain(size: int) -> None:
    """Equal to scikit-image, OpenCV, scikit-image on one image at a time; a level apart only where truncation decides.

    Truncation maps 17 and 17 − 1e-14 to different levels, so rounding errors show there and nowhere else.
    """
    images = smooth(8, size)
    geometry = draw(8, size, torch.Generator().manual_seed(1))
    floats = warp(torch.from_numpy(images), sources(geometry, images.shape[-1])).numpy()
    levels = augment(torch.from_numpy(images), geometry).numpy()
    for index in range(8):
        exact = reference_chain(images[index], geometry, index).transpose(2, 0, 1)
        np.testing.assert_allclose(floats[index], exact, rtol=0, atol=1e-12)
        exact *= 255
        apart = levels[index] != exact.astype(np.uint8)
        assert np.abs(exact - np.rint(exact))[apart].max(initial=0) < 1e-9


IDENTITY = Geometry(torch.zeros(1).double(), torch.zeros(1, 2).double(), torch.zeros(1, 8).double())


def test_no_motion_changes_nothing() -> None:
    images = torch.from_numpy(noise(1, 3, 32, 32))
    assert torch.equal(augment(images, IDENTITY), images)


def test_translation_brings_in_black_and_moves_right_and_down() -> None:
    images = torch.full((1, 1, 8, 8), 200, dtype=torch.uint8)
    moved = augment(images, Geometry(IDENTITY.angle, torch.tensor([[2.0, 1.0]]).double(), IDENTITY.corners))
    expected = torch.zeros_like(images)
    expected[..., 1:, 2:] = 200
    assert torch.equal(moved, expected)


def test_rotation_is_counter_clockwise_and_repeats_the_edge() -> None:
    image = torch.zeros(1, 1, 33, 33, dtype=torch.uint8)
    image[..., 16, 28:] = 255  # a hand pointing right
    turned = augment(image, Geometry(torch.tensor([15.0]).double(), IDENTITY.shift, IDENTITY.corners))
    assert turned[0, 0].float().sum(1).argmax() < 16
    flat = torch.full((1, 1, 33, 33), 255, dtype=torch.uint8)
    turned = augment(flat, Geometry(torch.tensor([15.0]).double(), IDENTITY.shift, IDENTITY.corners))
    assert int(turned.min()) >= 254


def test_geometry_is_seeded_and_in_range() -> None:
    a, b = (draw(4000, 32, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(a.corners, b.corners)
    assert torch.equal(a.angle, b.angle)
    for values, limit in ((a.angle, 15.0), (a.shift, 2.5), (a.corners, 0.3 * 32 * 0.8)):
        assert float(values.abs().max()) <= limit
        assert abs(float(values.mean())) < 0.03 * limit
        assert float(values.abs().max()) > 0.9 * limit
    # U(−d, d) with d = D·U(0, 1): variance D²/9, since E[d²] = D²/3 and a uniform's variance is d²/3.
    assert float(a.corners.var()) == pytest.approx((0.3 * 32 * 0.8) ** 2 / 9, rel=0.05)


def test_augment_refuses_what_it_cannot_warp() -> None:
    with pytest.raises(InvalidInput, match="square uint8"):
        augment(torch.zeros(1, 3, 8, 9, dtype=torch.uint8), IDENTITY)
