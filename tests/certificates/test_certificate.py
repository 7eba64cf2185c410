"""The certificates on models whose smoothed maps are known: soundness, confidence and what they say."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import binomtest, norm

from certificate_fixtures import Quadratic, larger_first, linear
from robattr.attacks import simple_gradient
from robattr.certificates.certificate import bounds_from, farthest
from robattr.certificates.smoothing import Smoothing, Tally, tally
from robattr.errors import InvalidInput

SG = simple_gradient()
LINE = linear([[3.0, 4.0, 0.0], [0.0, 0.0, 0.0]])


def test_a_linear_models_answer_is_certified_just_below_its_true_radius() -> None:
    """The smoothed answer of a linear model flips at its margin w·x/‖w‖; the sample can only fall short of it."""
    s = Smoothing(sigma=0.5, samples=2000, top=0.4)
    x = torch.tensor([[0.1, 0.05, 0.3], [0.3, 0.3, 0.0]])  # margins 0.1 and 0.42
    found = bounds_from(tally(LINE, SG, x, torch.zeros(2).long(), ids=[0, 1], smoothing=s), s)
    assert (found.answer_radius < [0.1, 0.42]).all()
    assert (found.answer_radius > [0.04, 0.3]).all()
    for radius in (0.03, 0.2, 0.5):
        np.testing.assert_array_equal(found.at(radius).answer, found.answer_radius > radius)


@pytest.mark.parametrize(("samples", "alpha"), [(2000, 0.001), (100, 0.05), (10, 0.001)])
def test_the_farthest_radius_is_that_of_copies_which_all_agree(samples: int, alpha: float) -> None:
    s = Smoothing(sigma=0.5, samples=samples, alpha=alpha)
    sure = linear([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]])
    x = torch.tensor([[100.0, 0.0, 0.0]])
    found = bounds_from(tally(sure, SG, x, torch.zeros(1).long(), ids=[0], smoothing=s), s)
    assert found.answer_radius[0] == pytest.approx(farthest(s), rel=1e-9)
    least = binomtest(samples, samples).proportion_ci(1 - 2 * alpha / 3).low  # Clopper and Pearson's, by SciPy
    assert farthest(s) == pytest.approx(max(0.0, 0.5 * norm.ppf(least)), rel=1e-6)


def test_a_map_that_never_changes_is_certified_as_far_as_the_sample_can_show() -> None:
    s = Smoothing(sigma=0.5, samples=2000, top=0.4)
    found = bounds_from(tally(LINE, SG, torch.rand(1, 3), torch.zeros(1).long(), ids=[0], smoothing=s), s)
    certified = found.at(0.5)  # r/σ = 1; a unanimous vote of 2000 is good for more than 2
    np.testing.assert_array_equal(certified.inside, [[False, True, False]])
    np.testing.assert_array_equal(certified.outside, [[True, False, True]])
    assert (certified.share, certified.inside_share, certified.overlap_share) == (1, 1, 1)
    assert certified.cosine == pytest.approx(np.sqrt(1 - (np.sqrt(2) * (2 * norm.cdf(0.5) - 1)) ** 2), abs=0.03)
    nothing = found.at(2.0)
    assert (nothing.share, nothing.overlap, nothing.cosine) == (0, 0, 0)


def test_certificates_shrink_as_the_radius_grows() -> None:
    s = Smoothing(sigma=0.5, samples=500, top=0.3)
    x = torch.rand(5, 10, generator=torch.Generator().manual_seed(0))
    found = bounds_from(tally(Quadratic(), SG, x, torch.zeros(5).long(), ids=range(5), smoothing=s), s)
    near, far = found.at(0.05), found.at(0.2)
    for name in ("answer", "inside", "outside", "overlap", "cosine"):
        assert (getattr(near, name) >= getattr(far, name)).all()
    assert near.overlap.sum() > far.overlap.sum()


def test_the_confidence_is_kept() -> None:
    """The same x under 600 ids, p known: the bounds of votes and norm fail together no more often than α.

    And those of the votes do fail at times: the test could tell.
    """
    s, runs = Smoothing(sigma=0.5, samples=30, alpha=0.3, top=0.5, seed=3), 600
    x = np.array([0.4, 0.1])
    counts = tally(
        Quadratic(), SG, torch.tensor(x).float().expand(runs, 2), torch.zeros(runs).long(), ids=range(runs), smoothing=s
    )
    found = bounds_from(counts, s)
    p = larger_first(x, 0.5)
    truth = np.array([p, 1 - p])
    votes = ((found.low > truth) | (found.high < truth)).any(axis=1)
    big = Smoothing(sigma=0.5, samples=20_000, seed=9)
    exact = tally(Quadratic(), SG, torch.tensor(x).float()[None], torch.zeros(1).long(), ids=[0], smoothing=big)
    length = np.linalg.norm(exact.total[0] / exact.n)
    failed = votes | (found.norm > length)
    assert binomtest(int(failed.sum()), runs, s.alpha, alternative="greater").pvalue > 1e-6
    assert 0.005 < votes.mean() <= 0.1 + 5 * np.sqrt(0.1 * 0.9 / runs)  # α/3, split over two pixels and two sides


def test_the_answers_confidence_is_kept() -> None:
    """A linear model answers with probability Φ(margin/σ)."""
    s, runs = Smoothing(sigma=0.5, samples=40, alpha=0.3, top=0.4), 800
    x = torch.tensor([[0.1, 0.05, 0.3]]).expand(runs, 3)
    found = bounds_from(tally(LINE, SG, x, torch.zeros(runs).long(), ids=range(runs), smoothing=s), s)
    failed = int((found.answer > norm.cdf(0.1 / 0.5)).sum())
    assert binomtest(failed, runs, s.alpha / 3, alternative="greater").pvalue > 1e-6
    assert failed > 0.02 * runs


def test_a_vote_by_chance_is_not_certified() -> None:
    """All pixels alike: no membership is certified, in or out, however many copies there are."""
    votes = np.full((1, 100), 10_000)
    one = np.ones(1)
    found = bounds_from(
        Tally(100_000, 100_000 * one.astype(int), votes, one, one, votes * 1.0), Smoothing(samples=100_000)
    )
    assert found.at(0.01).share == 0
    assert found.at(0.01).overlap == 0


def test_a_negative_radius_is_refused() -> None:
    one = np.ones(1)
    found = bounds_from(
        Tally(10, one.astype(int), np.ones((1, 3), int), one, one, np.ones((1, 3))), Smoothing(samples=10)
    )
    with pytest.raises(InvalidInput, match="radius of at least 0"):
        found.at(-0.1)
