"""The prediction attack against closed forms."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from robattr.attacks import PGDAttack
from robattr.errors import UnsupportedModel
from robattr.formula import cross_entropy, margin


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


def test_stays_in_the_ball_and_the_range(curved) -> None:
    y = curved(X).argmax(dim=1)
    found = PGDAttack(curved, 0.2, 0.05, 5, restarts=2, bounds=(0.3, 0.7))(X, y)
    assert found.min() >= 0.3
    assert found.max() <= 0.7
    assert (found - X).abs().max() <= 0.2 + 1e-9


def test_more_restarts_and_keeping_the_best_never_weaken_it(curved) -> None:
    y = curved(X).argmax(dim=1)
    one = PGDAttack(curved, 0.4, 0.15, 2, loss=margin)

    def harm(attack: PGDAttack):
        return margin(curved, attack(X, y), y)

    for stronger in (replace(one, restarts=4), replace(one, best=True), replace(one, restarts=3, best=True)):
        after, before = harm(stronger), harm(one)
        assert (after >= before - 1e-12).all()
        assert (after > before + 1e-9).any()


@pytest.mark.parametrize(("loss", "ranking"), [(cross_entropy, 2), (margin, 1)])
def test_the_best_point_costs_one_gradient_more(curved, loss, ranking: int) -> None:
    calls: list[bool] = []

    class Counted(nn.Module):
        def forward(self, x):
            if len(x) > 1:  # the checks run one example
                calls.append(torch.is_grad_enabled())
            return curved(x)

    attack = PGDAttack(Counted(), 0.1, 0.02, 5, restarts=2, loss=loss, best=True)
    attack(X, curved(X).argmax(dim=1))
    assert (calls.count(True), calls.count(False)) == (2 * (5 + 1), 2 * ranking)
    assert attack.cost == 2 * calls.count(True) + calls.count(False)


def test_examples_carry_their_own_randomness(curved) -> None:
    y = curved(X).argmax(dim=1)
    attack = PGDAttack(curved, 0.1, 0.02, 3, seed=4)
    whole = attack(X, y, ids=range(20, 26))
    torch.testing.assert_close(attack(X[[3]], y[[3]], ids=[23]), whole[[3]])
    assert not torch.equal(attack(X[[3]], y[[3]], ids=[24]), whole[[3]])


def test_leaves_the_model_as_it_was(curved) -> None:
    curved.train()
    PGDAttack(curved, 0.1, 0.02, 2)(X, curved(X).argmax(dim=1))
    assert curved.training
    assert all(p.requires_grad and p.grad is None for p in curved.parameters())


@pytest.mark.parametrize("around", [torch.inference_mode, None])
def test_a_loss_without_a_gradient_is_refused_not_counted_as_robust(linear, around) -> None:
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
