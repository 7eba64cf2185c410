"""PGD, APGD, random signs and the best of them, on functions with known maxima."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from nets import mlp
from robattr import Robust, cosine, cross_entropy, keep_label, objectives
from robattr.errors import InvalidInput
from robattr.formula import LinfBall
from robattr.formula.ascent import APGD, PGD, Ascent, Best, RandomSearch, RandomSigns, grad_and_value, maximise

BALL, BY = LinfBall(0.3, bounds=None), PGD(steps=3, step_size=0.1)


def batch() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(2)
    return mlp().double(), torch.rand(4, 6, dtype=torch.float64), torch.arange(4) % 3


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


@pytest.mark.parametrize("shape", [(1, 8, 8), (64,)], ids=str)
def test_a_random_search_climbs_without_a_gradient(shape: tuple[int, ...]) -> None:
    """J = ⟨c, z⟩ with signs of c in blocks: the search must find most of them."""
    torch.manual_seed(1)
    c = torch.ones(8, 8, dtype=torch.float64)
    c[:4, :4] = c[4:, 4:] = -1
    x = torch.full((3, *shape), 0.5, dtype=torch.float64)
    asked = []

    def value(z: Tensor) -> tuple[Tensor, Tensor]:
        asked.append(z)
        return torch.full_like(z, torch.nan), (z * c.view(shape)).flatten(1).sum(1)

    trials = list(RandomSearch(120, 0.1).iterates(value, x, LinfBall(0.1), start=x, rand=torch.rand_like))
    assert len(trials) == 120
    assert len(asked) == 121  # the start, and every trial once
    assert all(((z - x).abs() <= 0.1 + 1e-12).all() for z in trials)
    gain = torch.stack([value(z)[1] - value(x)[1] for z in trials]).amax(0)
    assert (gain > 0.5 * 0.1 * 64).all()


@pytest.mark.parametrize("ascent", [BY, APGD(6, 0.3), RandomSigns(5, 0.3), PGD(0, 0.0)], ids=repr)
def test_the_best_point_is_the_best_that_was_visited(ascent: Ascent) -> None:
    net, x, y = batch()

    def value(z: Tensor) -> Tensor:
        return cross_entropy(net, z, y) * torch.sin(9 * z.sum(1))  # an ascent overshoots

    seed = 5
    torch.manual_seed(seed)
    starts = [BALL.start(x)]
    visited = [starts[0], *ascent.iterates(grad_and_value(value), x, BALL, start=starts[0])]
    second = BALL.start(x)
    visited += [second, *ascent.iterates(grad_and_value(value), x, BALL, start=second)]
    best = torch.stack([value(z).detach() for z in visited]).amax(0)

    torch.manual_seed(seed)
    found = maximise(Best(ascent, restarts=2), value, x, BALL)
    torch.testing.assert_close(value(found).detach(), best)


def test_the_best_point_costs_one_gradient_more_per_run() -> None:
    net, x, y = batch()
    calls = 0

    def counted(z: Tensor) -> tuple[Tensor, Tensor]:
        nonlocal calls
        calls += 1
        return grad_and_value(lambda z: cross_entropy(net, z, y))(z)

    list(Best(BY, restarts=2).iterates(counted, x, BALL, start=x))
    assert calls == 2 * (BY.steps + 1)


def test_the_adversary_can_be_told_to_keep_the_label() -> None:
    net, x, _ = batch()
    y = net(x).argmax(1)
    free = cosine @ objectives.baseline_ig(3)
    ball, by = LinfBall(3.0, bounds=None), Best(PGD(20, 0.3), restarts=2)
    kept = Robust(free, ball, by, attacked=free + 1e3 * keep_label)(net, x, y, start=x)
    assert torch.equal(net(kept.worst).argmax(1), y)
    assert bool((kept.penalty >= 0).all())


def test_mistakes_of_best_are_named() -> None:
    with pytest.raises(InvalidInput, match="such as PGD"):
        Best(3)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="restarts ≥ 1"):
        Best(BY, restarts=0)
