"""Certificates by intervals: sound in float64, beside attacks, for a model as users have it."""

from __future__ import annotations

from math import log

import pytest
import torch
from torch import Tensor, nn

from robattr.auditing.wrapped_model import wrap
from robattr.certificates import interval_bounds, measure_intervals
from robattr.certificates.intervals import attacked_spread
from robattr.errors import InvalidInput, UnsupportedModel
from robattr.formula import LinfBall, cross_entropy
from robattr.formula.network import gradient
from robattr.models import paper_cnn


def made(scale: float = 1.0) -> tuple[nn.Sequential, Tensor, Tensor]:
    """A random CNN in float32, its images and its own answers as labels."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(36, 8), nn.ReLU())
    net.append(nn.Linear(8, 3))
    with torch.no_grad():
        for p in net[-1].parameters():
            p.mul_(scale)
    x = torch.rand(5, 1, 8, 8)
    return net, x, net(x).argmax(1)


@pytest.mark.parametrize("eps", [0.005, 0.05])
def test_every_number_holds_at_every_point_that_is_tried(eps: float) -> None:
    net, x, y = made(scale=20)
    found = interval_bounds(net, x, y, eps, chunk=2)
    assert bool((attacked_spread(net, x, y, eps) <= found.spread).all())
    ball = LinfBall(eps)
    torch.manual_seed(1)
    for _ in range(30):
        z = ball.project(x + eps * torch.randn_like(x).sign(), x)
        slope = gradient(lambda v: cross_entropy(net, v, y), z)
        assert bool((slope.abs().flatten(1).sum(1) <= found.gradient).all())
        assert bool((cross_entropy(net, z, y) <= found.loss).all())
        assert bool(((net(z).argmax(1) == y) | ~found.answer).all())
    if eps < 0.01:
        assert bool(found.answer.any())


def test_a_small_loss_and_a_small_bound_certify_the_answer() -> None:
    """ℓ(x) + B(x) < log 2, and the bound of the loss is never above ℓ(x) + B(x)."""
    net, x, y = made(scale=20)
    found = interval_bounds(net, x, y, 0.002)
    sum_ = cross_entropy(net, x, y) + found.spread
    assert bool((found.loss <= sum_ * (1 + 1e-6)).all())
    assert bool(found.answer[sum_ < log(2)].all())


def test_batches_do_not_matter_and_the_model_stays_as_it_is() -> None:
    net, x, y = made()
    net.train()
    whole, parts = interval_bounds(net, x, y, 0.1), interval_bounds(net, x, y, 0.1, chunk=2)
    torch.testing.assert_close(whole.spread, parts.spread)
    assert net.training
    assert net[0].weight.dtype == torch.float32
    assert whole.spread.dtype == torch.float64


def test_preprocessing_is_part_of_the_bound() -> None:
    net, x, y = made()
    wrapped, _ = wrap(net, preprocessing={"mean": 0.5, "std": 0.25})
    by_hand = interval_bounds(net, (x - 0.5) / 0.25, y, 0.1 / 0.25, bounds=(-2.0, 2.0))
    torch.testing.assert_close(interval_bounds(wrapped, x, y, 0.1).spread, by_hand.spread, rtol=1e-5, atol=1e-6)


def test_the_comparison_has_its_order() -> None:
    """What an attack reaches ≤ bound ≤ what holds for any input."""
    net, x, y = made()
    found = {key: torch.tensor(values) for key, values in measure_intervals(net, x, y, 0.05).items()}
    assert set(found) == {"correct", "answer", "bound", "attacked", "clean", "uninformed"}
    assert bool((found["attacked"] <= found["bound"]).all())
    assert bool((found["bound"] <= found["uninformed"]).all())
    assert bool((found["clean"] <= found["bound"] * (1 + 1e-5)).any())
    assert bool(found["correct"].all())


def test_refusals() -> None:
    with pytest.raises(UnsupportedModel, match="max_pool2d"):
        interval_bounds(paper_cnn(), torch.rand(1, 1, 28, 28), torch.tensor([0]), 0.1)
    net, x, y = made()
    with pytest.raises(InvalidInput, match=r"radius ε ≥ 0, got -0\.1"):
        interval_bounds(net, x, y, -0.1)
    with pytest.raises(InvalidInput, match="within the bounds"):
        interval_bounds(net, 255 * x, y, 0.1)
