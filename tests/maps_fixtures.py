"""Batches of maps with the ties that real maps have, and comparison with SciPy one pair at a time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from robattr.metrics import kendall, spearman

NAN = float("nan")
UNIT = 2.0**-53  # the unit roundoff u of float64
SSIM_ROUNDING = 1e-9
"""A bound of the rounding in two computations of SSIM whose maps are at most L, their range, in size.

Each mean of a window is 22 products and sums, so that means and second moments have errors of at most 25 u L and
25 u L², and each numerator and denominator one of at most 320 u L². They are divided by at least C₁ = 1e-4 L² and
C₂ = 9e-4 L²: 320 u (1e4 + 1.1e3) = 4e-10 for each of the two.
"""


def smooth(g: torch.Generator, B: int, n: int) -> Tensor:
    return torch.randn(B, n, generator=g, dtype=torch.float64)


def mostly_zero(g: torch.Generator, B: int, n: int) -> Tensor:
    """Like IG of MNIST: four pixels in five are exactly 0."""
    return smooth(g, B, n).abs() * (torch.rand(B, n, generator=g) < 0.2)


def few_levels(g: torch.Generator, B: int, n: int) -> Tensor:
    return torch.randint(-2, 3, (B, n), generator=g)


def signed_zeros(g: torch.Generator, B: int, n: int) -> Tensor:
    return torch.randint(-1, 2, (B, n), generator=g) * -0.0 + (torch.rand(B, n, generator=g) < 0.3).double()


def with_infinities(g: torch.Generator, B: int, n: int) -> Tensor:
    a = few_levels(g, B, n).double()
    return a.masked_fill(a == 2, torch.inf).masked_fill(a == -2, -torch.inf)


KINDS = [smooth, mostly_zero, few_levels, signed_zeros, with_infinities]
CORRELATIONS: dict[Callable[..., Tensor], Callable[..., float]] = {
    kendall: lambda x, y: stats.kendalltau(x, y, variant="b").statistic,
    spearman: lambda x, y: stats.spearmanr(x, y).statistic,
}


def one_by_one(oracle: Callable[[np.ndarray, np.ndarray], float], a: Tensor, b: Tensor) -> Tensor:
    pairs = zip(a.flatten(1).double().numpy(), b.flatten(1).double().numpy(), strict=True)  # SciPy keeps the dtype
    return torch.tensor([float(oracle(x, y)) for x, y in pairs], dtype=torch.float64)


def assert_equal(got: Tensor, expected: Tensor, *, n: int = 1000) -> None:
    """Equal but for the rounding of float64 sums of at most n terms.

    A correlation is a quotient of sums whose terms add up to at most 1 in size (Cauchy-Schwarz). Each of its three sums
    has an error of at most n u, in ours and in the oracle: 6 n u, and some for the last operations.
    """
    assert got.dtype == torch.float64
    torch.testing.assert_close(got, expected, rtol=0, atol=8 * (n + 8) * UNIT, equal_nan=True)


def check_against_scipy(
    measure: Callable[..., Tensor], first: Callable[..., Tensor], second: Callable[..., Tensor]
) -> None:
    g = torch.Generator().manual_seed(1)
    for n in (3, 16, 17, 100, 784):
        a, b = first(g, 6, n), second(g, 6, n)
        b[::2] = (a + b).to(b.dtype)[::2].nan_to_num(0)  # half of the pairs correlate
        constant = (a == a[:, :1]).all(1) | (b == b[:, :1]).all(1)  # SciPy warns about these; tested elsewhere
        a, b = a[~constant], b[~constant]
        assert_equal(measure(a, b), one_by_one(CORRELATIONS[measure], a, b))
