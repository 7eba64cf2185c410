"""Scalars of the output: classes, weighted classes, soft labels and targets of regression."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nets import mlp
from robattr import (
    IG,
    PGD,
    LinfBall,
    Robust,
    cross_entropy,
    l1,
    logit,
    margin,
    midpoint,
    objectives,
    output,
    probability,
    squared_error,
    total,
    weighted_outputs,
    wrong_logit,
)
from robattr.engine import Step
from robattr.engine.compiled import traced
from robattr.errors import InvalidInput

BALL, BY = LinfBall(0.2, bounds=None), PGD(steps=2, step_size=0.1)


def batch() -> tuple[nn.Module, Tensor, Tensor]:
    return mlp().double(), torch.rand(4, 6, dtype=torch.float64), torch.arange(4) % 3


def test_scalars_of_the_classes() -> None:
    net, x, y = batch()
    z = net(x)
    others = torch.stack([torch.cat([row[:k], row[k + 1 :]]).max() for row, k in zip(z, y.tolist(), strict=True)])
    torch.testing.assert_close(wrong_logit(net, x, y), others)
    torch.testing.assert_close(margin(net, x, y), others - logit(net, x, y))
    torch.testing.assert_close(probability(net, x, y), torch.exp(-F.cross_entropy(z, y, reduction="none")))
    torch.testing.assert_close(output(1)(net, x, y), z[:, 1])
    torch.testing.assert_close(weighted_outputs([1, 0, -2])(net, x, y), z[:, 0] - 2 * z[:, 2])
    soft = weighted_outputs(lambda z, y: z.softmax(1))(net, x, y)
    torch.testing.assert_close(soft, (z.softmax(1) * z).sum(1))


def test_weights_of_classes_are_constants() -> None:
    net, x, y = batch()
    x.requires_grad_()
    (found,) = torch.autograd.grad(weighted_outputs(lambda z, y: z.softmax(1))(net, x, y).sum(), x)
    (expected,) = torch.autograd.grad((net(x).softmax(1).detach() * net(x)).sum(), x)
    torch.testing.assert_close(found, expected)


def test_soft_labels_train_and_attribute() -> None:
    net, x, y = batch()
    hard = F.one_hot(y, 3).double()
    rho = objectives.ig_sum_norm(0.1, BALL, BY, m=3, m_attack=2)
    start = BALL.start(x)
    torch.testing.assert_close(rho(net, x, hard, start=start).value, rho(net, x, y, start=start).value)
    mixed = 0.7 * hard + 0.3 * hard.flip(0)
    expected = -(mixed * net(x).log_softmax(1)).sum(1)
    torch.testing.assert_close(rho(net, x, mixed).loss, expected)


def test_regression_attributes_an_output() -> None:
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    x, y = torch.rand(4, 6, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    x1 = x + 0.1
    rise = total @ IG(of=output(0), rule=midpoint(200))
    torch.testing.assert_close(rise(net, x, x1, y), (net(x1) - net(x))[:, 0], rtol=1e-4, atol=1e-6)
    rho = Robust(l1 @ IG(of=squared_error, rule=midpoint(3)), BALL, BY, loss=squared_error)
    out = rho(net, x, y)
    torch.testing.assert_close(out.loss, (net(x)[:, 0] - y) ** 2)
    torch.testing.assert_close(rho(net, x, y[:, None], start=out.worst).loss, out.loss)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda net, x: objectives.natural()(net, x, torch.rand(4, 2).double()), r"real targets of shape \(4, 3\)"),
        (lambda net, x: objectives.natural()(net, x, torch.rand(4).double()), "integer class labels"),
        (lambda net, x: (total @ IG(of=logit))(net, x, x, torch.rand(4, 3).double()), "soft labels"),
        (lambda net, x: objectives.natural()(net, x, torch.full((4, 3), torch.nan).double()), "NaN"),
        (lambda net, x: output(-1), "number of an output"),
        (lambda net, x: output(5)(net, x, torch.zeros(4)), "at most 3 weights"),
    ],
)
def test_targets_that_do_not_fit_are_refused(wrong, message: str) -> None:
    net, x, _ = batch()
    with pytest.raises(InvalidInput, match=message):
        wrong(net, x)


def test_cross_entropy_with_soft_labels_has_its_gradient() -> None:
    net, x, _ = batch()
    y = torch.rand(4, 3, dtype=torch.float64).softmax(1)
    assert torch.autograd.gradcheck(lambda z: cross_entropy(net, z, y), x.requires_grad_())


def test_soft_labels_are_traced() -> None:
    net, x, _ = batch()
    mixed = torch.rand(4, 3, dtype=torch.float64).softmax(1)
    rho, start = objectives.ig_sum_norm(0.1, BALL, BY, m=3, m_attack=2), BALL.start(x)
    found = []
    for step in (Step(net), Step(net, compiled=True, backend=traced)):
        net.zero_grad()
        out = step(rho, x, mixed, start=start)
        found.append([out.value, *(p.grad.clone() for p in net.parameters())])
        assert not step.notes
    torch.testing.assert_close(found[1], found[0])
