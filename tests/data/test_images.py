"""Equalisation and resizing against OpenCV."""

from __future__ import annotations

import os

import cv2
import numpy as np
import pytest
import torch

from robattr import data
from robattr.data.images import equalise, resize_bilinear
from robattr.errors import InvalidInput


def noise(*shape: int, seed: int = 0, low: int = 0, high: int = 256) -> np.ndarray:
    return np.random.default_rng(seed).integers(low, high, shape, dtype=np.uint8)


def smooth(count: int, size: int, seed: int = 0) -> np.ndarray:
    """(count, 3, size, size) images with structure: blurred noise, stretched to the whole range."""
    images = noise(count, 3, size, size, seed=seed)
    blurred = np.stack([np.stack([cv2.GaussianBlur(c, (0, 0), size / 12) for c in image]) for image in images])
    low, high = blurred.min(), blurred.max()
    return ((blurred.astype(float) - low) / (high - low) * 255).astype(np.uint8)


def opencv_equalised(images: np.ndarray) -> np.ndarray:
    return np.stack([np.stack([cv2.equalizeHist(c) for c in image]) for image in images])


@pytest.mark.parametrize(
    "images",
    [
        noise(50, 3, 32, 32),
        noise(50, 3, 32, 32, low=100, high=110),
        noise(20, 1, 28, 28, high=2),
        noise(5, 3, 17, 40),
        smooth(30, 32),
        np.full((2, 3, 32, 32), 7, np.uint8),
        np.concatenate([np.zeros((1, 3, 16, 32), np.uint8), noise(1, 3, 16, 32)], axis=2),
    ],
    ids=["noise", "narrow", "two-levels", "not-square", "smooth", "constant", "half-black"],
)
def test_equalise_is_opencv_bit_for_bit(images: np.ndarray) -> None:
    assert np.array_equal(equalise(torch.from_numpy(images)).numpy(), opencv_equalised(images))


def test_equalise_every_count_of_the_lowest_bin() -> None:
    """h₀ from 1 to 1023: every scale factor the formula can meet at 32×32."""
    images = np.stack([np.where(np.arange(1024) < h0, 3, 4 + np.arange(1024) % 250) for h0 in range(1, 1024)])
    images = images.astype(np.uint8).reshape(-1, 1, 32, 32)
    assert np.array_equal(equalise(torch.from_numpy(images)).numpy(), opencv_equalised(images))


def test_equalise_in_chunks_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.from_numpy(noise(9, 3, 8, 8))
    whole = equalise(images)
    monkeypatch.setattr("robattr.data.images.CHUNK", 100)
    assert torch.equal(equalise(images), whole)
    assert equalise(images[:0]).shape == (0, 3, 8, 8)


def test_equalise_refuses_pixels() -> None:
    with pytest.raises(InvalidInput, match="stored images"):
        equalise(torch.rand(1, 3, 4, 4))


@pytest.mark.skipif(not os.environ.get("ROBATTR_DATA"), reason="ROBATTR_DATA does not hold the real files")
def test_equalise_real_signs_bit_for_bit() -> None:
    if data.status("gtsrb").state == "missing":
        pytest.skip("no gtsrb in ROBATTR_DATA")
    dataset = data.load("gtsrb")
    stored = dataset.test.images[::25]
    assert np.array_equal(dataset.pixels(stored).numpy(), opencv_equalised(stored.numpy()))


SIZES = [
    (h, w) for h in (15, 20, 31, 32, 33, 47, 64, 65, 100, 127, 193, 250) for w in (15, 23, 32, 50, 66, 96, 128, 223)
]


@pytest.mark.parametrize(("height", "width"), SIZES)
def test_resize_is_opencv_bit_for_bit(height: int, width: int) -> None:
    """Five channels: with one to four, OpenCV 5.0 on aarch64 differs by a level, likely through vendor routines."""
    image = noise(height, width, 5, seed=height * width)
    expected = cv2.resize(image, (32, 32), interpolation=cv2.INTER_LINEAR)
    assert np.array_equal(resize_bilinear(image, 32), expected)


def test_resize_by_half_is_the_rounded_mean_of_four() -> None:
    """By the formula alone: at half the size OpenCV 5.0 on aarch64 differs, with three channels and with five."""
    image = noise(64, 64, 3)
    four = image.astype(int).reshape(32, 2, 32, 2, 3).sum(axis=(1, 3))
    assert np.array_equal(resize_bilinear(image, 32), (four + 2) // 4)


@pytest.mark.parametrize(("height", "width"), SIZES[::7])
def test_resize_of_three_channels_is_within_a_level(height: int, width: int) -> None:
    image = noise(height, width, 3, seed=height + width)
    expected = cv2.resize(image, (32, 32), interpolation=cv2.INTER_LINEAR).astype(int)
    assert np.abs(resize_bilinear(image, 32) - expected).max() <= 1
