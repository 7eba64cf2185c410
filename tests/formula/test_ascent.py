"""PGD, APGD and random signs on functions with known maxima."""

from __future__ import annotations

import torch

from robattr.formula import LinfBall
from robattr.formula.ascent import APGD, PGD, RandomSigns, grad_and_value


def test_apgd_beats_fixed_steps_where_they_overshoot() -> None:
    """J = −Σ c_i (z_i − p)²: fixed steps of 0.2 oscillate around the maximum, halving steps find it."""
    c = torch.logspace(0, 2, 16, dtype=torch.float64).view(1, 1, 4, 4)
    gradient = grad_and_value(lambda z: -(c * (z - 0.47) ** 2).flatten(1).sum(dim=1))
    x, within = torch.full((2, 1, 4, 4), 0.5, dtype=torch.float64), LinfBall(0.4)
    last = {}
    for ascent in (PGD(60, 0.2), APGD(60, 0.8)):
        seen = list(ascent.iterates(gradient, x, within, start=x, rand=torch.rand_like))
        assert len(seen) == 60
        assert all(((z - x).abs() <= 0.4 + 1e-12).all() for z in seen)
        last[type(ascent)] = max(float(gradient(z)[1][0]) for z in seen[1:])
    assert last[APGD] > last[PGD] / 100
    assert APGD(100, 1.0).checkpoints() == {22, 41, 57, 70, 80, 87, 93, 99}


def test_random_signs_are_corners_of_the_ball_and_never_use_the_gradient() -> None:
    def refuse(z):
        raise AssertionError("asked")

    x = torch.rand(6, 1, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(5)) * 0.2 + 0.4
    draws = list(RandomSigns(3, 0.1).iterates(refuse, x, LinfBall(0.1), start=x, rand=torch.rand_like))
    assert len(draws) == 3
    for z in draws:  # independent draws: an ascent would have left a third of the pixels inside
        torch.testing.assert_close((z - x).abs(), torch.full_like(x, 0.1), rtol=0, atol=1e-12)
    assert not torch.equal(draws[0], draws[1])
