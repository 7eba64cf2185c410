"""Intervals against SciPy, against exact enumeration, and against their own promise: coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from robattr.errors import InvalidInput
from robattr.metrics import intervals
from robattr.metrics.intervals import Comparison, Estimate, compared, mean, proportion

NAN = float("nan")


def test_mean_is_scipys_percentile_bootstrap(monkeypatch):
    values = np.random.default_rng(0).beta(2, 5, 60)
    monkeypatch.setattr(intervals, "_BLOCK", 60 * 300)  # the blocks must not show in the draws
    got = mean(values, resamples=2000, seed=5)
    oracle = stats.bootstrap(
        (values,), np.mean, confidence_level=0.95, n_resamples=2000, method="percentile", rng=np.random.default_rng(5)
    ).confidence_interval
    assert got.value == values.mean()
    assert (got.low, got.high) == pytest.approx((oracle.low, oracle.high), abs=1e-14)
    assert (got.n, got.excluded) == (60, 0)


def test_mean_repeats_with_its_seed_and_not_without():
    values = np.random.default_rng(1).normal(size=40)
    assert mean(values) == mean(list(values))
    assert mean(values, seed=0) != mean(values, seed=1)


def test_mean_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(2)
    found = [mean(rng.exponential(size=80), resamples=400, seed=i) for i in range(400)]
    share = np.mean([e.low <= 1.0 <= e.high for e in found])
    assert 0.90 <= share <= 0.97  # 0.95 less the known shortfall of the percentile interval on skewed data


def test_nan_and_none_are_left_out_and_counted():
    clean = mean([0.1, 0.4, 0.2])
    spoiled = mean([0.1, NAN, 0.4, None, 0.2])
    assert spoiled == Estimate(clean.value, clean.low, clean.high, 3, excluded=2)


def test_too_few_values_have_no_interval():
    nothing, one = mean([NAN]), mean([0.3, NAN])
    assert (nothing.n, nothing.excluded) == (0, 1)
    assert all(math.isnan(v) for v in (nothing.value, nothing.low, nothing.high, one.low, one.high))
    assert (one.value, one.n) == (0.3, 1)
    assert math.isnan(proportion([]).value)


@pytest.mark.parametrize(("hits", "n"), [(0, 5), (5, 5), (1, 1), (137, 200), (9999, 10_000), (3, 1000)])
def test_proportion_is_scipys_wilson_interval(hits, n):
    got = proportion([True] * hits + [False] * (n - hits))
    oracle = stats.binomtest(hits, n).proportion_ci(confidence_level=0.95, method="wilson")
    assert got.value == hits / n
    assert (got.low, got.high) == pytest.approx((oracle.low, oracle.high), abs=1e-12)
    assert 0 <= got.low <= got.value <= got.high <= 1


def test_proportion_takes_records_columns():
    assert proportion([True, None, 0.0, 1, NAN]).excluded == 2
    with pytest.raises(InvalidInput, match=r"use mean\(\)"):
        proportion([0.5])


def scores(seed: int, n: int, shift: float = 0.0) -> dict[int, float]:
    return {i: float(v) for i, v in enumerate(np.random.default_rng(seed).normal(shift, 1, n))}


def paired(first: dict[int, float], second: dict[int, float]) -> Comparison:
    return compared(np.array([second[i] - first[i] for i in first]))


def test_a_comparison_counts_what_it_leaves_out():
    got = compared(np.array([0.25, NAN, 0.5]), unpaired=2)
    assert got.difference.value == pytest.approx((0.5 + 0.25) / 2)
    assert (got.difference.n, got.difference.excluded, got.unpaired) == (2, 1, 2)
    assert compared(np.array([-0.25, -0.5])).difference.value == -got.difference.value
    expected = mean([0.25, 0.5])
    assert (got.difference.low, got.difference.high) == (expected.low, expected.high)


def oracle_p(d: np.ndarray, resamples: float = np.inf) -> float:
    def statistic(x: np.ndarray, y: np.ndarray, axis: int = -1) -> np.ndarray:
        return np.mean(x - y, axis=axis)

    zeros = np.zeros_like(d)
    return stats.permutation_test(
        (d, zeros), statistic, permutation_type="samples", vectorized=True, n_resamples=resamples, rng=3
    ).pvalue


@pytest.mark.parametrize("seed", range(4))
def test_sign_flip_of_few_pairs_is_exact(seed):
    first, second = scores(seed, 10), scores(seed + 50, 10, 0.7)
    d = np.array([second[i] - first[i] for i in range(10)])
    assert paired(first, second).p_value == pytest.approx(oracle_p(d), abs=1e-12)
    coarse = np.array([1, 1, -1, 0, 1, 1, 0, 1.0])  # ties between sign patterns
    assert paired(dict.fromkeys(range(8), 0.0), dict(enumerate(coarse))).p_value == pytest.approx(oracle_p(coarse))


def test_sign_flip_of_many_pairs_estimates_the_same_p():
    first, second = scores(1, 60), scores(2, 60, 0.3)
    d = np.array([second[i] - first[i] for i in range(60)])
    got, expected = paired(first, second).p_value, oracle_p(d, 20_000)
    assert got == pytest.approx(expected, abs=0.02)
    assert 0.001 < got < 0.5
    assert paired(first, second) == paired(first, second)


@pytest.mark.parametrize("shift", [0.0, 0.02, 0.06])
def test_expansions_of_many_pairs_are_what_draws_estimate(shift, monkeypatch):
    """Within 5 standard errors of 10,000 draws: √(p(1 − p)/R) for p; √(0.025 · 0.975/R)/φ(1.96) = 0.027 for an end."""
    rng = np.random.default_rng(7)
    d = rng.exponential(size=1500) - 1 + shift  # skewed
    first, second = dict.fromkeys(range(1500), 0.0), dict(enumerate(d))
    got = paired(first, second)
    monkeypatch.setattr(intervals, "LARGE", math.inf)
    drawn = paired(first, second)
    assert got != drawn
    assert abs(got.p_value - drawn.p_value) < 5 * math.sqrt(drawn.p_value * (1 - drawn.p_value) / 10_000) + 1e-4
    error = 5 * 0.027 * d.std() / math.sqrt(len(d))
    assert (got.difference.low, got.difference.high) == pytest.approx(
        (drawn.difference.low, drawn.difference.high), abs=error
    )


@pytest.mark.parametrize(("better", "worse"), [(700, 650), (1300, 1200), (640, 640), (900, 700)])
def test_many_pairs_of_accuracies_have_the_p_of_the_exact_binomial_test(better, worse):
    """McNemar's exact test; the next term of the expansion is below 1/n."""
    n = better + worse
    first = {i: float(i >= better) if i < n else 1.0 for i in range(5000)}
    second = {i: float(i < better) if i < n else 1.0 for i in range(5000)}
    assert paired(first, second).p_value == pytest.approx(stats.binomtest(better, n).pvalue, abs=1 / n)


def test_a_few_large_differences_among_many_are_not_taken_for_normal():
    first = dict.fromkeys(range(1100), 0.0)
    got = paired(first, {**first, 5: 1.0, 17: 1.0, 99: 1.0})
    assert got.p_value == 0.25
    assert got.difference.low == 0.0


def test_equal_models_do_not_differ_and_unequal_ones_do():
    first = scores(1, 50)
    same = paired(first, first)
    assert (same.difference.value, same.difference.low, same.difference.high, same.p_value) == (0, 0, 0, 1)
    assert paired(first, {i: v + 0.1 for i, v in first.items()}).p_value == pytest.approx(1 / 10_001)


def test_impossible_requests_are_refused():
    for call, says in ((lambda: mean([1.0, math.inf]), "expected finite scores, got an infinite one"),):
        with pytest.raises(InvalidInput, match=says):
            call()
