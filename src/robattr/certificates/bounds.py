"""The inequalities behind the certificates, as functions of arrays. docs/certificates.md proves each of them.

ξ ~ N(0, σ²I); r is a radius in L2; d pixels; all bounds are float64 arrays, B examples in rows.
"""

from __future__ import annotations

from math import log, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robattr._extras import need

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def shifted(p: Floats, by: float) -> Floats:
    """Φ(Φ⁻¹(p) + by): with by = ±r/σ, how far the mean p of a function with values in [0, 1] moves (lemma 1)."""
    found: Floats = _special().ndtr(probit(p) + by)
    return found


def probit(p: Floats) -> Floats:
    """Φ⁻¹(p); −∞ at 0, ∞ at 1."""
    found: Floats = _special().ndtri(p)
    return found


def total_variation(by: float) -> float:
    """2Φ(by/2) − 1: with by = r/σ, the total variation distance of N(x, σ²I) and N(x', σ²I) (lemma 2)."""
    return float(2 * _special().ndtr(by / 2) - 1)


def clopper_pearson(hits: Ints, n: int, tail: float) -> tuple[Floats, Floats]:
    """A lower and an upper bound of p from hits ~ Binomial(n, p); each fails with probability at most `tail`.

    low(h) solves P(Binomial(n, low) ≥ h) = tail, and high(h) = 1 − low(n − h) (lemma 3).
    """

    def low(of: Ints) -> Floats:
        h, place = np.unique(of, return_inverse=True)
        solved = _special().betaincinv(np.maximum(h, 1), n - h + 1.0, tail)
        found: Floats = np.where(h > 0, solved, 0.0)[place.reshape(of.shape)]
        return found

    return low(hits), 1 - low(n - hits)


def mean_at_least(total: Floats, squares: Floats, n: int, alpha: float) -> Floats:
    """A lower bound of the mean of values in [0, 1], from their sum and the sum of their squares (lemma 4).

        mean − √(2V·ln(2/α)/n) − 7·ln(2/α)/(3(n − 1)),   V the sample variance

    The empirical Bernstein bound (Maurer & Pontil 2009, theorem 4); it fails with probability at most α.
    """
    mean = total / n
    variance = np.maximum(squares - n * mean**2, 0) / (n - 1)
    width = np.sqrt(2 * variance * log(2 / alpha) / n) + 7 * log(2 / alpha) / (3 * (n - 1))
    return np.maximum(mean - width, 0.0)


def membership(low: Floats, high: Floats, k: int) -> tuple[Bools, Bools]:
    """Which pixels are surely among the k largest, and which surely are not, if low ≤ p ≤ high (theorem 2).

    low, high, results: (B, d). Surely in: low_i exceeds all but k of all upper bounds (its own is one of them). Surely
    out: k lower bounds exceed high_i.
    """
    d = low.shape[1]
    if k >= d:
        return np.ones_like(low, dtype=bool), np.zeros_like(low, dtype=bool)
    next_high = np.partition(high, d - k - 1, axis=1)[:, d - k - 1, None]  # the (k+1)-th largest
    kth_low = np.partition(low, d - k, axis=1)[:, d - k, None]  # the k-th largest
    return low > next_high, high < kth_low


def overlap(low: Floats, high: Floats, k: int) -> Ints:
    """(B,) how many of the k largest pixels of p(x) are surely among the k largest of p(x') (theorem 3).

    low, high (B, d): bounds of p(x), already moved by ∓r/σ. The answer is the number of M ≤ k with
    low_(M) > high_(2k+1−M), where (i) is the i-th largest; a place beyond d is exceeded by all.
    """
    d = low.shape[1]
    lows = -np.sort(-low, axis=1)[:, :k]
    highs = np.full((len(high), 2 * k), -np.inf)
    highs[:, : min(d, 2 * k)] = -np.sort(-high, axis=1)[:, : 2 * k]
    return np.asarray((lows > highs[:, : k - 1 : -1]).sum(axis=1), dtype=np.int64)


def cosine(norm: Floats, distance: float) -> Floats:
    """(B,) √(1 − (distance/norm)²), or 0: the least cos(h, h') if ‖h‖ ≥ norm, ‖h' − h‖ ≤ distance and h, h' ≥ 0."""
    ratio = np.divide(distance, norm, out=np.ones_like(norm), where=norm > distance)
    found: Floats = np.sqrt(1 - ratio**2)
    return found


def map_distance(by: float) -> float:
    """√2·(2Φ(by/2) − 1): with by = r/σ, how far the mean of non-negative maps of norm at most 1 moves (theorem 4)."""
    return sqrt(2) * total_variation(by)


def _special() -> Any:
    return need("scipy.special", extra="eval")
