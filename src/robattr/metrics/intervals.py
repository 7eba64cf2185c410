"""Confidence intervals (bootstrap, Wilson) and the paired comparison of two models.

Every function leaves NaN out and counts it. Random draws come from a seed, so that reports are reproducible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from robattr.errors import InvalidInput

Floats = NDArray[np.float64]
Score = float | None  # None is how records write a NaN

LEVEL = 0.95
TAILS = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
RESAMPLES = 10_000
LARGE = 1000  # examples beyond which a comparison is computed by expansions instead of draws
_BLOCK = 1 << 22  # draws held in memory at a time


@dataclass(frozen=True)
class Estimate:
    """A value, its 95% interval [low, high], and the numbers of examples used and excluded (NaN)."""

    value: float
    low: float
    high: float
    n: int
    excluded: int = 0

    def plain(self) -> dict[str, float | None]:
        """The estimate as JSON values: null for NaN."""
        return {key: None if value != value else value for key, value in asdict(self).items()}


@dataclass(frozen=True)
class Comparison:
    """Two models on the same examples: `difference` is the mean of second − first over the shared ids.

    `p_value`: of the sign-flip test; `unpaired`: the number of ids that only one of the two has.
    """

    difference: Estimate
    p_value: float
    unpaired: int


def mean(values: Iterable[Score], *, resamples: int = RESAMPLES, seed: int = 0) -> Estimate:
    """The mean and its percentile bootstrap interval (Efron): quantiles of the means of samples with replacement.

    Equal to `scipy.stats.bootstrap(method="percentile")` with the same generator. One value has a mean but no
    interval; none has neither: nan.
    """
    kept, excluded = _finite(values)
    n = len(kept)
    if n == 0:
        return Estimate(np.nan, np.nan, np.nan, 0, excluded)
    value = float(kept.mean())
    if n == 1:
        return Estimate(value, np.nan, np.nan, 1, excluded)
    rng = np.random.default_rng(seed)
    means = _in_blocks(resamples, n, lambda some: kept[rng.integers(0, n, (some, n))].mean(1))
    low, high = np.quantile(means, TAILS)
    return Estimate(value, float(low), float(high), n, excluded)


def proportion(hits: Iterable[Score]) -> Estimate:
    """A share p = hits/n with Wilson's score interval, for accuracies:

        (p + z²/2n ± z √(p(1−p)/n + z²/4n²)) / (1 + z²/n),   z the normal quantile of the tail.

    It keeps its coverage near 0 and 1, where a bootstrap of few examples collapses to a point.

    >>> found = proportion([True] * 9 + [False])
    >>> f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]"
    '0.90 [0.60, 0.98]'
    """
    kept, excluded = _finite(hits)
    if not np.isin(kept, (0.0, 1.0)).all():
        raise InvalidInput("expected hits and misses (true or false), got other numbers: use mean() for scores")
    n = len(kept)
    if n == 0:
        return Estimate(np.nan, np.nan, np.nan, 0, excluded)
    p = float(kept.mean())
    z = NormalDist().inv_cdf(TAILS[1])
    centre, half = p + z * z / (2 * n), z * float(np.sqrt(p * (1 - p) / n + z * z / (4 * n * n)))
    low, high = ((centre + side) / (1 + z * z / n) for side in (-half, half))
    return Estimate(p, max(0.0, min(low, p)), min(1.0, max(high, p)), n, excluded)


def compared(differences: Floats, *, unpaired: int = 0) -> Comparison:
    """Compare two models by their differences, second − first, one for each pair of scores of an example.

    Pairs with NaN are excluded and counted. The p-value is two-sided: if the models were equal, every difference could
    as well have the other sign, so it is the share of sign patterns whose mean is at least as far from 0 as the
    observed one. All patterns are tried if there are at most RESAMPLES; else that many random ones, and p = (1 +
    number as far)/(1 + RESAMPLES). Of more than LARGE pairs, interval and p-value are the limits that the draws would
    estimate, by expansions that are more exact than RESAMPLES draws.
    """
    kept, excluded = _finite(differences)
    estimate = _expanded_mean(kept, excluded) if _many(kept - kept.mean()) else mean(differences)
    return Comparison(estimate, _sign_flip(kept), unpaired)


def _many(d: Floats) -> bool:
    """Whether the sum of the values is close to normal: they are many, and not a few of them make up all of it."""
    squares = d**2
    return len(d) > LARGE and float(squares.sum()) ** 2 > LARGE / 10 * float((squares**2).sum())


def _expanded_mean(d: Floats, excluded: int) -> Estimate:
    """The mean and its percentile bootstrap interval, by Cornish and Fisher's expansion of the bootstrap's quantiles:

        x̄ + σ/√n (z + γ (z² − 1)/(6√n)),   σ and γ the standard deviation and the skewness of the values.

    Its error is O(1/n) of σ/√n; that of 10,000 draws is 0.03 σ/√n. (Hall, The Bootstrap and Edgeworth Expansion, 1992)
    """
    n, value, sigma = len(d), float(d.mean()), float(d.std())
    skewness = float(((d - value) ** 3).mean()) / sigma**3
    z = NormalDist().inv_cdf(TAILS[1])
    bend = skewness * (z * z - 1) / (6 * n**0.5)
    low, high = (value + sigma / n**0.5 * (side + bend) for side in (-z, z))
    return Estimate(value, low, high, n, excluded)


def _sign_flip(d: Floats) -> float:
    if len(d) == 0:
        return float("nan")
    d = d[d != 0]  # whose sign does not matter
    n = len(d)
    total = d.sum()
    # Equal sums in another order may differ in the last bits: they count as equally far.
    threshold = abs(total) - 1e-12 * np.abs(d).sum()
    if 2**n <= RESAMPLES:
        flipped = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
        return float(np.mean(np.abs(total - 2 * (flipped @ d)) >= threshold))
    if _many(d):
        return max(_expanded_sign_flip(d), 1 / (1 + RESAMPLES))
    rng = np.random.default_rng(0)

    def sums(some: int) -> Floats:
        flips = rng.integers(0, 2, (some, n), dtype=np.bool_)
        return np.asarray(total - 2 * (flips @ d), dtype=np.float64)

    far = np.abs(_in_blocks(RESAMPLES, n, sums)) >= threshold
    return float((1 + far.sum()) / (1 + RESAMPLES))


def _expanded_sign_flip(d: Floats) -> float:
    """P(|Σ ±dᵢ| ≥ |Σ dᵢ|) by Edgeworth's expansion for a symmetric sum, with x = |Σ dᵢ| / √Σdᵢ²:

        2 (Φ(−x) − φ(x) (x³ − 3x) Σdᵢ⁴ / (12 (Σdᵢ²)²)).

    Where all |dᵢ| are equal to a, as for accuracies, the sums are 2a apart, and |Σ dᵢ| is reduced by half of that.
    """
    squares = d**2
    scale = float(squares.sum()) ** 0.5
    apart = float(np.abs(d).min()) if np.ptp(np.abs(d)) < 1e-12 * np.abs(d).max() else 0.0
    x = max(0.0, abs(float(d.sum())) - apart) / scale
    normal = NormalDist()
    bend = (x**3 - 3 * x) * float((squares**2).sum()) / (12 * scale**4)
    return float(min(1.0, 2 * (normal.cdf(-x) - normal.pdf(x) * bend)))


def _in_blocks(resamples: int, n: int, draw: Callable[[int], Floats]) -> Floats:
    """`resamples` statistics from `draw(some)`, each over n examples, a bounded block at a time."""
    step = max(1, _BLOCK // n)
    return np.concatenate([draw(min(step, resamples - done)) for done in range(0, resamples, step)])


def _finite(values: Iterable[Score]) -> tuple[Floats, int]:
    """The numbers among `values`, and how many were NaN."""
    array = _floats(values)
    if np.isinf(array).any():
        raise InvalidInput("expected finite scores, got an infinite one: look at that example")
    kept = array[~np.isnan(array)]
    return kept, len(array) - len(kept)


def _floats(values: Iterable[Score]) -> Floats:
    if isinstance(values, np.ndarray):
        return np.asarray(values, dtype=np.float64)
    return np.array(list(values), dtype=np.float64)  # None becomes NaN
