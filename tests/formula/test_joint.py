"""Several adversaries in one objective, and the best point of an ascent."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from nets import mlp
from robattr import (
    APGD,
    PGD,
    Best,
    Joint,
    L1Ball,
    LinfBall,
    RandomSigns,
    Robust,
    averaged,
    cosine,
    cross_entropy,
    keep_label,
    margin,
    objectives,
)
from robattr.engine import Step
from robattr.errors import InvalidInput
from robattr.formula.ascent import Ascent, grad_and_value, maximise

BALL, BY = LinfBall(0.3, bounds=None), PGD(steps=3, step_size=0.1)


def batch() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(2)
    return mlp().double(), torch.rand(4, 6, dtype=torch.float64), torch.arange(4) % 3


def test_a_sum_has_one_clean_loss_and_every_penalty() -> None:
    net, x, y = batch()
    a = objectives.trades(2.0, BALL, BY)
    b = objectives.aat(0.5, L1Ball(0.4, bounds=None), Best(BY))
    rho = sum([a, b])
    starts = rho.within.start(x)
    out, first, second = rho(net, x, y, start=starts), a(net, x, y, start=starts[0]), b(net, x, y, start=starts[1])
    torch.testing.assert_close(out.value, first.loss + 2.0 * first.penalty + 0.5 * second.penalty)
    torch.testing.assert_close(out.loss, cross_entropy(net, x, y))
    torch.testing.assert_close(out.worst, first.worst)
    assert (a + b + a).terms == (a, b, a)
    assert a + (b + a) == a + b + a


@pytest.mark.parametrize("compiled", [False, True])
def test_the_engine_runs_a_sum(compiled: bool) -> None:
    net, x, y = batch()
    rho = objectives.trades(2.0, BALL, BY) + objectives.igr(0.5, LinfBall(0.1), BY)
    starts = rho.within.start(x)
    expected = rho(net, x, y, start=starts)
    gradients = torch.autograd.grad(expected.value.sum(), list(net.parameters()))
    step = Step(net, compiled=compiled)
    out = step(rho, x, y, start=starts)
    torch.testing.assert_close(out.value, expected.value)
    torch.testing.assert_close([p.grad for p in net.parameters()], list(gradients))
    assert ("the step runs eagerly" in "".join(step.notes)) == compiled
    with torch.random.fork_rng():  # without a start, each term draws one of its own
        torch.manual_seed(0)
        drawn = step(averaged(objectives.lga(0.3, 0.2, BALL), 2), x, y).value
        torch.manual_seed(0)
        starts = torch.stack([BALL.start(x), BALL.start(x)])
    torch.testing.assert_close(drawn, averaged(objectives.lga(0.3, 0.2, BALL), 2)(net, x, y, start=starts).value)


def test_inputs_outside_the_bounds_of_any_term_are_refused() -> None:
    net, x, y = batch()
    rho = objectives.madry(LinfBall(0.1, (0.0, 9.0)), BY) + objectives.madry(LinfBall(0.1, (0.0, 1.0)), BY)
    with pytest.raises(InvalidInput, match="within the bounds"):
        rho(net, 5 * x, y)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: objectives.natural() + 1, "another one, such as madry"),
        (lambda: 1 + objectives.natural(), "another one, such as madry"),
        (lambda: objectives.natural() + objectives.natural(loss=margin), "one clean loss"),
        (lambda: Joint(()), "expects objectives"),
        (lambda: averaged(objectives.natural(), 0), "draws ≥ 1"),
        (lambda: Best(3), "such as PGD"),
        (lambda: Best(BY, restarts=0), "restarts ≥ 1"),
        (lambda: objectives.ssr(1.0), "α < 1"),
        (lambda: objectives.igr(-1.0, BALL, BY), "λ ≥ 0"),
        (lambda: objectives.art(float("nan"), BALL, BY), "λ ≥ 0"),
        (lambda: objectives.r2et(0.1, k=0), "k ≥ 1"),
    ],
)
def test_mistakes_are_named(wrong, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        wrong()


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
