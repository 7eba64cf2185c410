"""Interval bounds a second time, in NumPy and without any shared code: every layer a dense matrix, written by loops."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

Array = NDArray[np.float64]


def layers(net: nn.Sequential, shape: tuple[int, ...]) -> list[tuple[Any, ...]]:
    """Each layer as ("affine", A, b) or ("slope", a), for one example of this shape."""
    found: list[tuple[Any, ...]] = []
    for layer in net:
        if isinstance(layer, nn.ReLU | nn.LeakyReLU):
            found.append(("slope", getattr(layer, "negative_slope", 0.0)))
        elif isinstance(layer, nn.Flatten):
            shape = (int(np.prod(shape)),)
        else:
            matrix, bias, shape = _affine(layer, shape)
            found.append(("affine", matrix, bias))
    return found


def _affine(layer: nn.Module, shape: tuple[int, ...]) -> tuple[Array, Array, tuple[int, ...]]:
    if isinstance(layer, nn.Linear):
        assert layer.bias is not None
        return _numpy(layer.weight), _numpy(layer.bias), (layer.out_features,)
    if isinstance(layer, nn.BatchNorm2d):
        scale = _numpy(layer.weight) / np.sqrt(_numpy(layer.running_var) + layer.eps)
        shift = _numpy(layer.bias) - scale * _numpy(layer.running_mean)
        per = int(np.prod(shape[1:]))
        return np.diag(np.repeat(scale, per)), np.repeat(shift, per), shape
    if isinstance(layer, nn.AvgPool2d):
        k = int(layer.kernel_size)  # type: ignore[arg-type]
        weight = np.full((shape[0], 1, k, k), 1 / k**2)
        return _convolution(weight, np.zeros(shape[0]), shape, (k, k), (0, 0), (1, 1), shape[0])
    assert isinstance(layer, nn.Conv1d | nn.Conv2d)
    assert layer.bias is not None
    assert not isinstance(layer.padding, str)
    weight, geometry = _numpy(layer.weight), (layer.stride, layer.padding, layer.dilation)
    return _convolution(weight, _numpy(layer.bias), shape, *geometry, layer.groups)


def _convolution(
    weight: Array, bias: Array, shape: tuple[int, ...], stride: Any, padding: Any, dilation: Any, groups: int
) -> tuple[Array, Array, tuple[int, ...]]:
    outputs, inside, *kernel = weight.shape
    sides = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, p, d, k, s in zip(shape[1:], padding, dilation, kernel, stride, strict=True)
    ]
    matrix = np.zeros((outputs * int(np.prod(sides)), int(np.prod(shape))))
    for row, (o, *place) in enumerate(product(range(outputs), *map(range, sides))):
        first = o // (outputs // groups) * inside  # of the group's input channels
        for c, *tap in product(range(inside), *map(range, kernel)):
            at = [s * q - p + d * t for s, q, p, d, t in zip(stride, place, padding, dilation, tap, strict=True)]
            if all(0 <= a < n for a, n in zip(at, shape[1:], strict=True)):
                matrix[row, np.ravel_multi_index((first + c, *at), shape)] += weight[(o, c, *tap)]
    return matrix, np.repeat(bias, int(np.prod(sides))), (outputs, *sides)


def bounds(net: nn.Sequential, x: Array, y: int, low: Array, high: Array, *, of: str) -> dict[str, Any]:
    """Ranges of the logits and the gradient, and the bound of ‖IG‖₁, for one example on the box [low, high]."""
    low, high, all_layers = low.ravel(), high.ravel(), layers(net, x.shape)
    signs = []
    for kind, *what in all_layers[:-1]:
        if kind == "affine":
            low, high = _times(what[0], low, high)
            low, high = low + what[1], high + what[1]
        else:
            signs.append((np.where(low > 0, 1.0, what[0]), np.where(high > 0, 1.0, what[0])))
            low, high = (np.maximum(end, what[0] * end) for end in (low, high))
    kind, last, bias = all_layers[-1]
    assert kind == "affine"
    logits = tuple(end + bias for end in _times(last, low, high))
    margins = tuple(end + bias - bias[y] for end in _times(last - last[y], low, high))
    if of == "logit":
        g_low = g_high = last[y]
    else:
        p_low, p_high = _softmax(*margins), _softmax(*margins[::-1])
        g_low, g_high = _times((last - last[y]).T, p_low, p_high)
    for kind, *what in reversed(all_layers[:-1]):
        if kind == "affine":
            g_low, g_high = _times(what[0].T, g_low, g_high)
        else:
            ends = signs.pop()
            products = [g * s for g in (g_low, g_high) for s in ends]
            g_low, g_high = np.min(products, axis=0), np.max(products, axis=0)
    return {"logits": logits, "margins": margins, "gradient": (g_low, g_high)}


def _times(matrix: Array, low: Array, high: Array) -> tuple[Array, Array]:
    """The range of Au: each entry of A takes the end that its sign asks for."""
    positive, negative = np.maximum(matrix, 0), np.minimum(matrix, 0)
    return positive @ low + negative @ high, positive @ high + negative @ low


def _softmax(own: Array, others: Array) -> Array:
    """p_j with m_j at one end and the other margins at the opposite one."""
    total = np.exp(others).sum() - np.exp(others)
    return np.exp(own) / (np.exp(own) + total)


def _numpy(tensor: Any) -> Array:
    found: Array = tensor.detach().numpy().astype(np.float64)
    return found
