"""Prediction attacks and walks against closed forms."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from robattr.attacks import PGDAttack
from robattr.errors import InvalidInput, UnsupportedModel
from robattr.formula import LinfBall, cross_entropy, margin
from robattr.formula.ascent import APGD, PGD, RandomSigns, grad_and_value


@pytest.fixture(scope="module")
def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 2)).double()


@pytest.fixture(scope="module")
def curved() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 3)).double()


X = torch.rand(6, 1, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(5)) * 0.2 + 0.4


@pytest.mark.parametrize("loss", [cross_entropy, margin])
def test_reaches_the_corner_of_a_linear_model(linear, loss) -> None:
    y = linear(X).argmax(dim=1)
    w = linear[1].weight.detach()
    away = (w[1 - y] - w[y]).view_as(X)
    found = PGDAttack(linear, 0.1, 0.05, 6, loss=loss)(X, y)
    torch.testing.assert_close(found, X + 0.1 * away.sign())
    by_l2 = PGDAttack(linear, 0.1, 0.1, 60, norm="L2", loss=loss)(X, y)
    direction = away / away.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
    torch.testing.assert_close(by_l2, X + 0.1 * direction, rtol=0, atol=1e-9)


@pytest.mark.parametrize("norm", ["Linf", "L2"])
def test_stays_in_the_ball_and_the_range(curved, norm) -> None:
    y = curved(X).argmax(dim=1)
    found = PGDAttack(curved, 2.0, 0.5, 5, norm=norm, restarts=2, bounds=(0.3, 0.7))(X, y)
    assert found.min() >= 0.3
    assert found.max() <= 0.7
    size = (found - X).flatten(1).norm(dim=1) if norm == "L2" else (found - X).flatten(1).abs().amax(dim=1)
    assert size.max() <= 2.0 + 1e-9


def test_more_restarts_and_keeping_the_best_never_weaken_it(curved) -> None:
    y = curved(X).argmax(dim=1)
    one = PGDAttack(curved, 0.4, 0.15, 2, loss=margin)

    def harm(attack: PGDAttack):
        return margin(curved, attack(X, y), y)

    for stronger in (replace(one, restarts=4), replace(one, best=True), replace(one, restarts=3, best=True)):
        after, before = harm(stronger), harm(one)
        assert (after >= before - 1e-12).all()
        assert (after > before + 1e-9).any()


def test_examples_carry_their_own_randomness(curved) -> None:
    y = curved(X).argmax(dim=1)
    attack = PGDAttack(curved, 0.1, 0.02, 3, seed=4)
    whole = attack(X, y, ids=range(20, 26))
    torch.testing.assert_close(attack(X[[3]], y[[3]], ids=[23]), whole[[3]])
    assert not torch.equal(attack(X[[3]], y[[3]], ids=[24]), whole[[3]])
    still = replace(attack, random_start=False, alpha=0.0)
    assert torch.equal(still(X, y), X)


def test_leaves_the_model_as_it_was(curved) -> None:
    curved.train()
    PGDAttack(curved, 0.1, 0.02, 2)(X, curved(X).argmax(dim=1))
    assert curved.training
    assert all(p.requires_grad and p.grad is None for p in curved.parameters())


def test_bad_settings_are_refused(linear) -> None:
    with pytest.raises(InvalidInput, match="did you mean 'Linf'"):
        PGDAttack(linear, 0.1, 0.1, 1, norm="linf")(X, torch.zeros(6, dtype=torch.long))


def test_apgd_beats_fixed_steps_where_they_overshoot() -> None:
    """J = −Σ c_i (z_i − p)²: fixed steps of 0.2 oscillate around the maximum, halving steps find it."""
    c = torch.logspace(0, 2, 16, dtype=torch.float64).view(1, 1, 4, 4)
    slope = grad_and_value(lambda z: -(c * (z - 0.47) ** 2).flatten(1).sum(dim=1))
    x, within = torch.full((2, 1, 4, 4), 0.5, dtype=torch.float64), LinfBall(0.4)
    last = {}
    for walk in (PGD(60, 0.2), APGD(60, 0.8)):
        seen = list(walk.iterates(slope, x, within, start=x, rand=torch.rand_like))
        assert len(seen) == 60
        assert all(((z - x).abs() <= 0.4 + 1e-12).all() for z in seen)
        last[type(walk)] = max(float(slope(z)[1][0]) for z in seen[1:])
    assert last[APGD] > last[PGD] / 100
    assert APGD(100, 1.0).checkpoints() == {22, 41, 57, 70, 80, 87, 93, 99}


def test_random_signs_are_corners_of_the_ball_and_never_ask_for_the_slope() -> None:
    def refuse(z):
        raise AssertionError("asked")

    draws = list(RandomSigns(3, 0.1).iterates(refuse, X, LinfBall(0.1), start=X, rand=torch.rand_like))
    assert len(draws) == 3
    for z in draws:  # each for itself: a walk would have left a third of the pixels inside
        torch.testing.assert_close((z - X).abs(), torch.full_like(X, 0.1), rtol=0, atol=1e-12)
    assert not torch.equal(draws[0], draws[1])


@pytest.mark.parametrize("around", [torch.inference_mode, None])
def test_a_loss_without_a_slope_is_refused_not_counted_as_robust(linear, around) -> None:
    class Blind(nn.Module):
        @torch.no_grad()
        def forward(self, x):
            return linear(x)

    y = linear(X).argmax(dim=1)
    if around is None:
        with pytest.raises(UnsupportedModel, match="cannot be differentiated"):
            PGDAttack(Blind(), 0.1, 0.02, 3)(X, y)
    else:
        with around(), pytest.raises(UnsupportedModel, match="inference_mode"):
            PGDAttack(linear, 0.1, 0.02, 3)(X, y)
