"""Models whose smoothed maps and answers are known in closed form."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import norm
from torch import Tensor, nn


class Quadratic(nn.Module):
    """Logits (½‖x‖², 0): the gradient map of class 0 is |x|."""

    def forward(self, x: Tensor) -> Tensor:
        half = x.square().flatten(1).sum(dim=1, keepdim=True) / 2
        return torch.cat([half, torch.zeros_like(half)], dim=1)


class Kink(nn.Sequential):
    """A ReLU network on which the certificates are tight: its answer and its map change at the plane x₀ = 0.

    For x₀ > 0 the answer is class 0 and the gradient of logit 0 is e₁/10, for x₀ < 0 it is class 1 and e₂/10: hidden
    units (5x₀ + x₁/10)₊, (5x₀)₊, (−5x₀ + x₂/10)₊, (−5x₀)₊, so but for a layer of width |x₁|/50 or |x₂|/50.
    """

    def __init__(self) -> None:
        super().__init__(nn.Linear(3, 4, bias=False), nn.ReLU(), nn.Linear(4, 2, bias=False))
        into = [[5, 0.1, 0], [5, 0, 0], [-5, 0, 0.1], [-5, 0, 0]]
        out = [[1, -1, 1, -1], [1, -2, 1, 0]]
        with torch.no_grad():
            for layer, weights in ((self[0], into), (self[2], out)):
                layer.weight.copy_(torch.tensor(weights))


def linear(weights: list[list[float]]) -> nn.Linear:
    """Logits Wx."""
    made = nn.Linear(len(weights[0]), len(weights), bias=False)
    with torch.no_grad():
        made.weight.copy_(torch.tensor(weights))
    return made


def larger_first(x: NDArray[np.float64], sigma: float) -> float:
    """P(|x₀ + ξ₀| > |x₁ + ξ₁|): the sum and the difference of the two are independent, and must have one sign."""
    a, b = ((x[0] + sign * x[1]) / (np.sqrt(2) * sigma) for sign in (1, -1))
    return float(norm.cdf(a) * norm.cdf(b) + norm.cdf(-a) * norm.cdf(-b))
