"""Certificates under attack: none breaks within its radius, and each does where the claim is three times too large."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from certificate_fixtures import Kink
from robattr.attacks import simple_gradient
from robattr.certificates.certificate import Certificate, bounds_from
from robattr.certificates.challenge import CERTIFICATES, Challenge, challenge, top_votes
from robattr.certificates.smoothing import Smoothing, tally

SG = simple_gradient()
SMOOTHING = Smoothing(sigma=1.0, samples=2000, top=0.34, alpha=0.01)  # K = 1 of three pixels
RADIUS = 0.4

Case = tuple[nn.Module, torch.Tensor, torch.Tensor, Certificate]


@pytest.fixture(scope="module")
def kink() -> Case:
    """Four points at 0.9 to 1.05 from the plane where answer and map of the network change."""
    x = torch.tensor([[0.9, 0.2, -0.1], [0.95, 0.0, 0.0], [1.0, -0.3, 0.2], [1.05, 0.1, 0.1]])
    y = torch.zeros(4).long()
    counts = tally(Kink(), SG, x, y, ids=range(4), smoothing=SMOOTHING)
    return Kink(), x, y, bounds_from(counts, SMOOTHING).at(RADIUS)


def broken(kink: Case, radius: float) -> dict[str, np.ndarray]:
    """For each certificate, the examples on which some attack within `radius` broke it."""
    model, x, y, certified = kink
    found = challenge(model, SG, x, y, certified, ids=range(4), smoothing=SMOOTHING, how=Challenge(radius))
    assert all((each.moved <= radius).all() for each in found.values())
    return {
        name: np.logical_or.reduce([each.broken(certified)[name] for each in found.values()]) for name in CERTIFICATES
    }


def test_everything_is_certified_and_no_attack_breaks_it(
    kink: Case,
) -> None:
    certified = kink[-1]
    assert certified.answer.all()
    assert (certified.inside == [False, True, False]).all()
    assert (certified.overlap == 1).all()
    assert (certified.cosine > 0.9).all()
    assert not any(found.any() for found in broken(kink, RADIUS).values())


def test_a_claim_of_three_times_the_radius_is_broken(
    kink: Case,
) -> None:
    """The same bounds, claimed at 3r: the attacks break each of the four, on every example."""
    for name, found in broken(kink, 3 * RADIUS).items():
        assert found.all(), name


def test_top_votes_break_ties_by_index() -> None:
    np.testing.assert_array_equal(top_votes(np.array([[3, 5, 3, 3]]), 2), [[True, True, False, False]])
