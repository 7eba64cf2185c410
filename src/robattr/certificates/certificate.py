"""Certificates from counts: what holds at every x' with ‖x' − x‖₂ ≤ r, with probability at least 1 − α.

Each example's α is split evenly over three events, and Bonferroni's inequality joins them:

    answer   P(f(x + ξ) = y) is at least its bound                         α/3
    votes    p_i(x) = P(b_i(x + ξ) = 1) is within its bounds for all i     α/3, that is α/(6d) for each of 2d bounds
    norm     ‖h(x)‖₂ is at least its bound, h(x) = E u(x + ξ)              α/3

b, f and u as in `smoothing.Tally`. What is certified at a radius follows from the three: all radii hold together.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real

import numpy as np

from robattr.certificates import bounds
from robattr.certificates.bounds import Bools, Floats, Ints
from robattr.certificates.smoothing import Smoothing, Tally
from robattr.errors import InvalidInput

EVENTS = 3


@dataclass(frozen=True)
class Certificate:
    """What is certified of B examples with d pixels at one radius, for every x' within it.

    answer    (B,) the smoothed classifier answers y: P(f(x' + ξ) = y) > 1/2
    inside    (B, d) the pixel is among the K largest of p(x')
    outside   (B, d) the pixel is not among them
    overlap   (B,) at least this many of the K largest pixels of p(x) are among those of p(x')
    cosine    (B,) at least this is the cosine of h(x) and h(x')
    """

    radius: float
    k: int
    answer: Bools
    inside: Bools
    outside: Bools
    overlap: Ints
    cosine: Floats

    @property
    def share(self) -> Floats:
        """(B,) the share of the pixels whose membership in the top K is certified, either way."""
        return np.asarray((self.inside | self.outside).mean(axis=1), dtype=np.float64)

    @property
    def inside_share(self) -> Floats:
        """(B,) how many pixels are certified to be in the top K, over K."""
        return np.asarray(self.inside.sum(axis=1) / self.k, dtype=np.float64)

    @property
    def overlap_share(self) -> Floats:
        """(B,) the certified overlap over K."""
        return self.overlap / self.k


@dataclass(frozen=True)
class Bounds:
    """Bounds at x that hold together with probability at least 1 − α for each example.

    answer      (B,) P(f(x + ξ) = y) is at least this
    low, high   (B, d) and p(x) between these
    norm        (B,) and ‖h(x)‖₂ at least this
    """

    sigma: float
    k: int
    answer: Floats
    low: Floats
    high: Floats
    norm: Floats

    @property
    def answer_radius(self) -> Floats:
        """(B,) the radius within which the smoothed answer is y (Cohen et al. 2019); 0 where there is none."""
        return self.sigma * np.maximum(bounds.probit(self.answer), 0.0)

    def at(self, radius: float) -> Certificate:
        """What holds within `radius` of each x."""
        if not (isinstance(radius, Real) and 0 <= radius < float("inf")):
            raise InvalidInput(f"expected a radius of at least 0, got {radius!r}")
        by = radius / self.sigma
        low, high = bounds.shifted(self.low, -by), bounds.shifted(self.high, by)
        inside, outside = bounds.membership(low, high, self.k)
        return Certificate(
            radius,
            self.k,
            answer=bounds.shifted(self.answer, -by) > 0.5,
            inside=inside,
            outside=outside,
            overlap=bounds.overlap(low, high, self.k),
            cosine=bounds.cosine(self.norm, bounds.map_distance(by)),
        )


def farthest(smoothing: Smoothing) -> float:
    """The largest radius at which n copies can certify an answer, all of them agreeing; 0 where they are too few.

    σ·Φ⁻¹((α/3)^(1/n)),   since low(n) = (α/3)^(1/n) (lemma 3)
    """
    least = (smoothing.alpha / EVENTS) ** (1 / smoothing.samples)
    return max(0.0, smoothing.sigma * float(bounds.probit(np.array([least]))[0]))


def bounds_from(tally: Tally, smoothing: Smoothing) -> Bounds:
    """The bounds that a tally proves at level 1 − α."""
    n, each, d = tally.n, smoothing.alpha / EVENTS, tally.votes.shape[1]
    answer, _ = bounds.clopper_pearson(tally.answers, n, each)
    low, high = bounds.clopper_pearson(tally.votes, n, each / (2 * d))
    norm = bounds.mean_at_least(tally.along, tally.squares, n, each)
    return Bounds(smoothing.sigma, smoothing.k(d), answer, low, high, norm)
