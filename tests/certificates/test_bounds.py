"""Each inequality of docs/certificates.md against closed forms, exact enumeration and brute force."""

from __future__ import annotations

from itertools import product
from math import sqrt

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import integrate, special, stats

from robattr.certificates import bounds
from robattr.certificates.bounds import Bools, Floats

norm = stats.norm


def top(p: Floats, k: int, *, after: Bools) -> set[int]:
    """The k largest entries; of equal ones, those with `after` come last."""
    order = sorted(range(len(p)), key=lambda i: (-p[i], after[i]))
    return set(order[:k])


def corners(low: Floats, high: Floats) -> NDArray[np.float64]:
    """Every corner of the box, (2^d, d)."""
    return np.array(list(product(*zip(low, high, strict=True))))


@pytest.mark.parametrize("shift", [0.1, 0.7, 2.0])
def test_the_mean_of_a_half_space_moves_exactly_as_far_as_the_bound(shift: float) -> None:
    ends = np.linspace(-3, 3, 13)  # φ(z) = 1 where z ≤ c; the mean at x' = shift is P(z + shift ≤ c)
    np.testing.assert_allclose(bounds.shifted(norm.cdf(ends), -shift), norm.cdf(ends - shift), rtol=1e-9)


@pytest.mark.parametrize("shift", [0.1, 0.7, 2.0])
def test_the_mean_of_a_slab_moves_less_than_the_bound(shift: float) -> None:
    half = np.linspace(0.05, 3, 20)  # φ(z) = 1 where |z| ≤ half
    at = [norm.cdf(half - x) - norm.cdf(-half - x) for x in (0.0, shift, -shift)]
    for moved in at[1:]:
        assert (bounds.shifted(at[0], -shift) <= moved).all()
        assert (bounds.shifted(moved, shift) >= at[0]).all()


def test_zero_and_one_stay_where_they_are() -> None:
    np.testing.assert_array_equal(bounds.shifted(np.array([0.0, 1.0]), -0.5), [0, 1])


@pytest.mark.parametrize("shift", [0.0, 0.3, 1.5])
def test_total_variation_is_half_the_integral_of_the_difference(shift: float) -> None:
    found, _ = integrate.quad(lambda z: abs(norm.pdf(z) - norm.pdf(z - shift)) / 2, -8, 10, limit=200)
    assert bounds.total_variation(shift) == pytest.approx(found, abs=1e-7)


@pytest.mark.parametrize("n", [10, 100, 1000])
def test_clopper_pearson_equals_scipys_exact_interval(n: int) -> None:
    hits = np.unique(np.linspace(0, n, 11).astype(int))
    for tail in (0.025, 1e-4):
        low, high = bounds.clopper_pearson(hits, n, tail)
        for i, h in enumerate(hits):
            exact = stats.binomtest(int(h), n).proportion_ci(1 - 2 * tail, method="exact")
            assert (low[i], high[i]) == pytest.approx((exact.low, exact.high), abs=1e-12)


@pytest.mark.parametrize("tail", [0.1, 1e-3, 1e-8])
def test_clopper_pearson_fails_no_more_often_than_it_says(tail: float) -> None:
    n = 40
    hits = np.arange(n + 1)
    low, high = bounds.clopper_pearson(hits, n, tail)
    for p in np.linspace(0.01, 0.99, 99):
        chance = stats.binom.pmf(hits, n, p)
        assert chance[low > p].sum() <= tail * (1 + 1e-9)
        assert chance[high < p].sum() <= tail * (1 + 1e-9)


@pytest.mark.parametrize(("a", "b"), [(0.0, 1.0), (0.3, 0.5), (0.0, 0.2)])
@pytest.mark.parametrize("alpha", [0.2, 0.01])
def test_the_bound_of_a_mean_fails_no_more_often_than_it_says(a: float, b: float, alpha: float) -> None:
    """Values a and b with probability 1 − p and p: every outcome is enumerated."""
    n = 60
    ones = np.arange(n + 1)
    low = bounds.mean_at_least(ones * b + (n - ones) * a, ones * b**2 + (n - ones) * a**2, n, alpha)
    for p in np.linspace(0.02, 0.98, 49):
        assert stats.binom.pmf(ones, n, p)[low > a + p * (b - a)].sum() <= alpha


def test_the_bound_of_a_mean_is_near_the_mean_where_values_hardly_vary() -> None:
    values = np.random.default_rng(0).uniform(0.6, 0.7, 10_000)
    found = bounds.mean_at_least(values.sum()[None], (values**2).sum()[None], 10_000, 1e-3)
    assert values.mean() - 0.005 < found[0] < values.mean()


@pytest.mark.parametrize("k", [1, 2, 3])
def test_membership_is_what_every_corner_of_the_box_agrees_on(k: int) -> None:
    rng = np.random.default_rng(k)
    decided = 0
    for _ in range(40):
        low = rng.random(6)
        high = low + rng.random(6) * 0.4
        inside, outside = (found[0] for found in bounds.membership(low[None], high[None], k))
        boxes = corners(low, high)
        for i in range(6):
            mine = np.arange(6) == i
            assert inside[i] == all(i in top(p, k, after=mine) for p in boxes)  # ties count against the pixel
            assert outside[i] == all(i not in top(p, k, after=~mine) for p in boxes)  # and here for it
        decided += int((inside | outside).sum())
    assert decided > 20


def test_membership_of_all_pixels_is_certain() -> None:
    inside, outside = bounds.membership(np.zeros((1, 3)), np.ones((1, 3)), 3)
    assert inside.all()
    assert not outside.any()


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_overlap_is_the_least_over_every_corner_where_p_is_known(k: int) -> None:
    """With exact p(x) the bound is attained: Levine et al.'s theorem, and k = 4 of 6 leaves fewer than k others."""
    rng, found = np.random.default_rng(k), set()
    for _ in range(40):
        p, shift = rng.beta(0.5, 0.5, 6), float(rng.uniform(0.05, 1.0))
        low, high = bounds.shifted(p, -shift), bounds.shifted(p, shift)
        here = top(p, k, after=np.zeros(6, dtype=bool))
        first = np.isin(np.arange(6), list(here))
        least = min(len(here & top(q, k, after=first)) for q in corners(low, high))
        assert bounds.overlap(low[None], high[None], k)[0] == least
        found.add(least)
    assert len(found) > 1


def test_overlap_holds_for_every_p_within_its_bounds() -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        k = int(rng.integers(1, 5))
        low = rng.beta(0.5, 0.5, 8)
        high = np.minimum(low + 0.1 * rng.random(8), 1)
        shift = float(rng.uniform(0.02, 0.5))
        least = bounds.overlap(bounds.shifted(low, -shift)[None], bounds.shifted(high, shift)[None], k)[0]
        inside, _ = bounds.membership(bounds.shifted(low, -shift)[None], bounds.shifted(high, shift)[None], k)
        assert inside.sum() <= least <= k  # a certified pixel is certified to overlap
        for _ in range(20):
            p = rng.uniform(low, high)
            q = special.ndtr(special.ndtri(p) + shift * rng.choice([-1, 0, 1], 8))
            nowhere = np.zeros(8, dtype=bool)
            assert len(top(p, k, after=nowhere) & top(q, k, after=nowhere)) >= least


def test_cosine_is_the_least_over_the_ball_and_attained_on_its_tangent() -> None:
    h, distance = np.array([0.6, 0.0]), 0.3
    (least,) = bounds.cosine(np.array([0.6]), distance)
    angle = np.linspace(0, 2 * np.pi, 100_001)
    around = h + distance * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    found = (around @ h) / (np.linalg.norm(around, axis=1) * 0.6)
    assert found.min() == pytest.approx(least, abs=1e-8)
    np.testing.assert_array_equal(bounds.cosine(np.array([0.3, 0.2, 0.0]), 0.3), 0.0)


def test_the_mean_of_two_maps_on_either_side_of_a_plane_moves_exactly_as_far_as_the_bound() -> None:
    """u = e₁ on one side, e₂ on the other; x and x' at −r/2 and r/2 from the plane."""
    for shift in (0.1, 0.8):
        p = norm.cdf(shift / 2)
        assert bounds.map_distance(shift) == pytest.approx(sqrt(2) * (2 * p - 1), rel=1e-9)
