"""The reference graphs in NumPy, float64: images (H, W, C), kernels (kh, kw, in, out), TensorFlow's SAME rule."""

from __future__ import annotations

import numpy as np
from scipy.signal import correlate2d
from torch import Tensor


def np_conv_same(image: np.ndarray, kernel: np.ndarray, stride: int = 1) -> np.ndarray:
    """Every position of the window, then TensorFlow's choice among them: out = ceil(n/s), pad_before = total // 2."""
    k, sides = kernel.shape[0], image.shape[:2]
    full = np.zeros((sides[0] + k - 1, sides[1] + k - 1, kernel.shape[3]))
    for i in range(kernel.shape[2]):
        for o in range(kernel.shape[3]):
            full[:, :, o] += correlate2d(image[:, :, i], kernel[:, :, i, o], mode="full")
    starts = []
    for n in sides:
        out = -(-n // stride)
        before = max((out - 1) * stride + k - n, 0) // 2
        starts.append((k - 1) - before + stride * np.arange(out))  # full[j] is the window that begins at j - (k - 1)
    return full[np.ix_(starts[0], starts[1])]


def np_pool(image: np.ndarray, reduce: str) -> np.ndarray:
    h, w, c = image.shape
    blocks = image.reshape(h // 2, 2, w // 2, 2, c)
    return blocks.max((1, 3)) if reduce == "max" else blocks.mean((1, 3))


def np_act(u: np.ndarray) -> np.ndarray:
    return np.where(u < 0, 0.1 * u, u)


def np_standardise(image: np.ndarray) -> np.ndarray:
    mean = image.mean()
    variance = np.maximum((image**2).mean() - mean**2, 0)
    return (image - mean) / max(np.sqrt(variance), 1 / np.sqrt(image.size))


def np_resnet(
    image: np.ndarray, kernels: list[np.ndarray], fc: tuple[np.ndarray, np.ndarray], units: int
) -> np.ndarray:
    kernels = list(kernels)
    x = np_conv_same(np_standardise(image), kernels.pop(0))
    width = 16
    for stage, out in enumerate((16, 32, 64)):
        for unit in range(units):
            shortcut = x
            x = np_act(x)
            if stage == 0 and unit == 0:
                shortcut = x
            stride = 2 if stage > 0 and unit == 0 else 1
            x = np_conv_same(x, kernels.pop(0), stride)
            x = np_conv_same(np_act(x), kernels.pop(0))
            if width != out:
                half = (out - width) // 2
                shortcut = np.pad(np_pool(shortcut, "mean"), ((0, 0), (0, 0), (half, half)))
            x, width = x + shortcut, out
    assert not kernels
    return np_act(x).mean((0, 1)) @ fc[0] + fc[1]


def nhwc(x: Tensor) -> np.ndarray:
    return x.detach().permute(0, 2, 3, 1).numpy()


def hwio(weight: Tensor) -> np.ndarray:
    return weight.detach().permute(2, 3, 1, 0).numpy()
