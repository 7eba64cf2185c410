"""Interval bounds: against a naive implementation, closed forms and attacks; what has no rule is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import naive_intervals
from nets import Residual, direction, directional, images
from robattr import IG, PGD, Box, Gradient, L2Ball, LinfBall, cross_entropy, l1, logit, margin, midpoint, value_of
from robattr.errors import InvalidInput, UnsupportedModel
from robattr.formula.ascent import maximise
from robattr.formula.bounds import enclose, shift_bound, spread_bound
from robattr.formula.network import bind, gradient
from robattr.formula.scalars import Scalar
from robattr.models import paper_cnn, small_cnn

EPS = float(torch.finfo(torch.float64).eps)


def _head(features: int) -> list[nn.Module]:
    return [nn.Flatten(), nn.Linear(features, 3)]


NETS: dict[str, Callable[[], nn.Sequential]] = {
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 3)),
    "dense": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.ReLU(), nn.Linear(9, 7), nn.ReLU(), *_head(7)),
    "stride, padding": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 2, stride=3), nn.ReLU(), *_head(3)
    ),
    "groups, dilation": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.LeakyReLU(0.2), nn.Conv2d(4, 6, (3, 2), dilation=2, groups=2, padding=(1, 0)), nn.ReLU(),
        *_head(6 * 4 * 4),
    ),
    "pool, batch norm": lambda: nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(inplace=True), nn.AvgPool2d(2), nn.Conv2d(3, 4, 3),
        nn.LeakyReLU(0.1, inplace=True), *_head(16),
    ),
}  # fmt: skip


class Normalised(nn.Module):
    """What users write: constants, functions, a shortcut, a mean over places."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.body = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding="same", padding_mode="reflect")
        self.head = nn.Linear(4, 3)
        self.register_buffer("mean", torch.tensor([0.3]))

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.conv((x - self.mean) / 0.7))
        h = F.leaky_relu(h + self.body(h), 0.3)
        h = F.dropout(h[:, :, 1:], training=self.training)
        return self.head(2 - F.adaptive_avg_pool2d(-h, 1).flatten(1))


ALL: dict[str, Callable[[], nn.Module]] = {
    **NETS,
    "functions": Normalised,
    "residual": Residual,
    "cnn": lambda: small_cnn(3, size=16),
}


def made(name: str, seed: int = 0) -> tuple[nn.Module, Tensor, Tensor]:
    """A random network in eval mode, and three images."""
    torch.manual_seed(seed)
    net = ALL[name]().double().eval()
    for part in net.modules():
        if isinstance(part, nn.BatchNorm2d):
            for t in (part.running_mean, part.running_var, part.weight, part.bias):
                assert t is not None
                nn.init.uniform_(t, 0.5, 1.5)
    x, _, y = images(seed=seed)
    return net, (F.interpolate(x, scale_factor=2) if name == "cnn" else x), y


def spread(net: nn.Module, x: Tensor, y: Tensor, eps: float, of: Scalar = cross_entropy) -> Tensor:
    return enclose(net, x, y, LinfBall(eps)).spread(of).detach()


@pytest.mark.parametrize("of", [cross_entropy, logit])
@pytest.mark.parametrize("name", sorted(NETS))
def test_ranges_are_those_of_a_naive_implementation(name: str, of: Scalar) -> None:
    net, x, y = made(name)
    assert isinstance(net, nn.Sequential)
    found = enclose(net, x, y, LinfBall(0.07))
    ranges = {"logits": found.logits.range, "margins": found.margins.range, "gradient": found.gradient(of)}
    low, high = (end.numpy() for end in ((x - 0.07).clamp(0, 1), (x + 0.07).clamp(0, 1)))
    for i in range(len(x)):
        kind = "logit" if of is logit else "cross-entropy"
        expected = naive_intervals.bounds(net, x[i].numpy(), int(y[i]), low[i], high[i], of=kind)
        for key, ends in ranges.items():
            for ours, theirs in zip(ends, expected[key], strict=True):
                np.testing.assert_allclose(ours[i].detach().numpy().ravel(), theirs, rtol=1e-9, atol=1e-12, err_msg=key)


@pytest.mark.parametrize("name", sorted(ALL))
@pytest.mark.parametrize("eps", [0.01, 0.1])
def test_no_attack_exceeds_the_bounds(name: str, eps: float) -> None:
    """Random points, corners, and PGD on ‖IG‖₁, on ‖∇ℓ‖₁ and on ℓ, from several starts."""
    net, x, y = made(name)
    ball = LinfBall(eps)
    found = enclose(net, x, y, ball, unit=EPS)
    range_, bound, loss = found.gradient(), found.spread(), found.loss()
    most = (range_.magnitude.flatten(1).sum(1)).detach()
    rule = IG(rule=midpoint(4))
    attacks = (l1 @ rule, l1 @ Gradient(of=cross_entropy), value_of(cross_entropy))
    reached = torch.zeros_like(bound)
    torch.manual_seed(1)
    points = [ball.project(x + eps * torch.randn_like(x).sign(), x) for _ in range(10)]
    points += [ball.start(x) for _ in range(10)]
    for change in attacks:
        points += [maximise(PGD(8, eps / 3), lambda z, d=change: d(bind(net), x, z, y), x, ball) for _ in range(2)]
    for z in points:
        slope = gradient(lambda v: cross_entropy(net, v, y), z)
        assert bool((range_.low <= slope).all() and (slope <= range_.high).all())
        assert bool((slope.abs().flatten(1).sum(1) <= most).all())
        assert bool((cross_entropy(net, z, y) <= loss).all())
        logits = net(z)
        assert bool((found.logits.range.low <= logits).all() and (logits <= found.logits.range.high).all())
        size = rule(net, x, z, y).abs().flatten(1).sum(1)
        assert bool((size <= bound).all())
        reached = torch.maximum(reached, size)
    assert bool((reached > 0).all())


@pytest.mark.parametrize("name", ["linear", "dense", "stride, padding"])
def test_a_third_of_the_bound_is_broken(name: str) -> None:
    """The attack has teeth, at a radius where the bounds are nearly tight."""
    net, x, y = made(name)
    ball = LinfBall(1e-3)
    torch.manual_seed(1)
    worst = maximise(PGD(5, 5e-4), lambda z: (l1 @ IG(rule=midpoint(2)))(bind(net), x, z, y), x, ball)
    size = IG(rule=midpoint(2))(net, x, worst, y).abs().flatten(1).sum(1)
    bound = spread(net, x, y, 1e-3)
    assert bool((size <= bound).all())
    assert bool((size > bound / 3).all())


@pytest.mark.parametrize("of", [cross_entropy, logit])
@pytest.mark.parametrize("name", sorted(ALL))
def test_without_a_ball_the_range_is_the_gradient(name: str, of: Scalar) -> None:
    net, x, y = made(name)
    exact = gradient(lambda v: of(net, v, y), x)
    low, high = enclose(net, x, y, LinfBall(0.0)).gradient(of)
    torch.testing.assert_close(low, exact, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(high, low)


@pytest.mark.parametrize("name", sorted(ALL))
def test_ranges_widened_by_roundings_contain_every_order_of_summation(name: str) -> None:
    """At ε = 0 the range is as wide as the roundings allowed for, and contains autograd's own result."""
    net, x, y = made(name)
    exact = gradient(lambda v: cross_entropy(net, v, y), x)
    low, high = enclose(net, x, y, LinfBall(0.0), unit=EPS).gradient()
    assert bool((low <= exact).all() and (exact <= high).all())
    assert float((high - low).detach().max()) < 1e-6 * float(exact.detach().abs().max())


def test_of_a_linear_model_with_two_classes_the_bound_is_attained() -> None:
    """ℓ = log(1 + e^m), m = w·x + c: sup ‖∇ℓ‖₁ = σ(m + ε‖w‖₁)·‖w‖₁, and the logit's gradient is constant."""
    torch.manual_seed(0)
    net, x, y = nn.Linear(6, 2).double(), torch.rand(4, 6, dtype=torch.float64), torch.tensor([0, 1, 0, 1])
    ball = LinfBall(0.2, bounds=None)
    w = (net.weight[1 - y] - net.weight[y]).detach()
    worst = x + 0.2 * w.sign()
    sup = gradient(lambda v: cross_entropy(net, v, y), worst).abs().sum(1)
    found = enclose(net, x, y, ball)
    torch.testing.assert_close(found.gradient().magnitude.sum(1).detach(), sup)
    torch.testing.assert_close(found.spread().detach(), 0.2 * sup)
    torch.testing.assert_close(found.loss(), cross_entropy(net, worst, y))
    torch.testing.assert_close(found.spread(logit), 0.2 * net.weight[y].abs().sum(1))


def test_of_one_hidden_layer_with_disjoint_inputs_the_range_is_exact() -> None:
    """z_0 = Σ_h v_h ReLU(w_h·x_h + b_h), each unit with inputs of its own: its slope is 0, 1 or either."""
    net = nn.Sequential(nn.Conv1d(1, 1, 2, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(3, 2)).double()
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[[1.0, -2.0]]]))
        net[0].bias.fill_(0.25)
        net[3].weight.copy_(torch.tensor([[1.0, 3.0, -2.0], [0.0, 0.0, 0.0]]))
    x = torch.tensor([[[0.9, 0.1, 0.5, 0.4, 0.1, 0.9]]], dtype=torch.float64)  # on, either, off
    low, high = enclose(net, x, torch.tensor([0]), LinfBall(0.05)).gradient(logit)
    torch.testing.assert_close(low.detach(), torch.tensor([[[1.0, -2.0, 0.0, -6.0, 0.0, 0.0]]], dtype=torch.float64))
    torch.testing.assert_close(high.detach(), torch.tensor([[[1.0, -2.0, 3.0, 0.0, 0.0, 0.0]]], dtype=torch.float64))


@pytest.mark.parametrize("of", [cross_entropy, logit])
@pytest.mark.parametrize("name", ["dense", "pool, batch norm", "functions"])
def test_bounds_grow_with_the_ball(name: str, of: Scalar) -> None:
    net, x, y = made(name)
    found = torch.stack([spread(net, x, y, eps, of) for eps in (0.0, 0.01, 0.05, 0.2, 1.0)])
    assert bool((found[0] == 0).all())
    assert bool((found.diff(dim=0) > 0).all())


def test_the_ball_ends_at_the_valid_inputs() -> None:
    """x' and |x' − x| both: at ε = 1 the box is [0, 1], and the farthest point max(x, 1 − x) away."""
    net, x, y = made("dense")
    everything = Box(x[0], 1 - x[0], bounds=None)
    one = enclose(net, x[:1], y[:1], LinfBall(1.0)).spread()
    torch.testing.assert_close(one, enclose(net, x[:1], y[:1], everything).spread())
    farthest = torch.maximum(x[:1], 1 - x[:1])
    magnitude = enclose(net, x[:1], y[:1], LinfBall(1.0)).gradient().magnitude
    torch.testing.assert_close(one, (farthest * magnitude).flatten(1).sum(1))
    assert bool((spread(net, x, y, 1.0) < enclose(net, x, y, LinfBall(1.0, None)).spread()).all())


@pytest.mark.parametrize("name", ["groups, dilation", "pool, batch norm", "functions"])
def test_bounds_are_differentiable_in_the_parameters(name: str) -> None:
    """By finite differences along a random direction: off the kinks, which are met with probability 0."""
    net, x, y = made(name)
    change = (spread_bound() + 0.5 * spread_bound(of=logit) + shift_bound).over(LinfBall(0.02))
    parameters = list(net.parameters())

    def value() -> Tensor:
        return change(net, x, x, y).sum()

    slopes = torch.autograd.grad(value(), parameters)
    ours = sum(float((s * v).sum()) for s, v in zip(slopes, direction(parameters), strict=True))
    assert ours == pytest.approx(directional(value, parameters, h=1e-7), rel=1e-5)


def test_a_bound_needs_a_neighbourhood_that_is_a_box() -> None:
    net, x, y = made("dense")
    with pytest.raises(InvalidInput, match="LinfBall of the same radius contains"):
        enclose(net, x, y, L2Ball(0.1))
    with pytest.raises(InvalidInput, match=r"change.over\(LinfBall"):
        spread_bound()(net, x, x, y)
    with pytest.raises(InvalidInput, match="expect cross_entropy or logit"):
        enclose(net, x, y, LinfBall(0.1)).spread(margin)


class Lambda(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Reversed(torch.autograd.Function):
    """A derivative that is not that of its forward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return -x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return 10 * grads[0]


def _without_gradient(x: Tensor) -> Tensor:
    with torch.no_grad():
        return 2 * x.flatten(1)


def _view_in_place(x: Tensor) -> Tensor:
    h = x.flatten(1)
    h.relu_()
    return x.flatten(1)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: F.max_pool2d(x, 2).flatten(1), "max_pool2d.*nn.AvgPool2d or a strided convolution"),
        (lambda x: F.softplus(x).flatten(1), "no rule for softplus: expected convolution"),
        (lambda x: F.dropout(x).flatten(1), "dropout in train mode"),
        (lambda x: (x * x).flatten(1), "product of two activations"),
        (lambda x: (x if x.sum() else -x).flatten(1), "got a condition"),
        (lambda x: (1 / x).flatten(1), "no rule for rdiv"),
        (lambda x: (x**2).flatten(1), "no rule for pow"),
        (lambda x: (x > 0).flatten(1), "no rule for gt"),
        (lambda x: x.detach().flatten(1), "no rule for detach"),
        (lambda x: x.T, "attribute 'T'"),
        (lambda x: torch.cat([x, x], 1).flatten(1), "no rule for cat"),
        (lambda x: F.leaky_relu(x, -0.5).flatten(1), r"slope in \[0, 1\], got -0.5"),
        (lambda x: F.pad(x, (1, 1), value=3.0).flatten(1), "padding with 0, got 3.0"),
        (lambda x: Reversed.apply(x.flatten(1)), "neg inside no_grad or an autograd.Function"),
        (_without_gradient, "flatten inside no_grad or an autograd.Function"),
        (_view_in_place, "relu in place into a constant or a view"),
        (lambda x: x, r"\(B, classes\) that depend on the input, got \(3, 1, 8, 8\)"),
        (lambda x: torch.ones(3, 2), r"that depend on the input, got \(3, 2\)"),
    ],
)  # fmt: skip
def test_what_has_no_rule_is_refused(function: Callable[[Tensor], Tensor], reason: str) -> None:
    x, _, y = images()
    with pytest.raises(UnsupportedModel, match=reason):
        enclose(Lambda(function), x, y, LinfBall(0.1))


def test_max_pools_of_the_papers_network_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match="max_pool2d"):
        enclose(paper_cnn(), torch.rand(1, 1, 28, 28), torch.tensor([0]), LinfBall(0.1))


def test_operations_in_place_are_followed() -> None:
    """A name that keeps the old tensor sees the new values, as in torch."""

    def in_place(x: Tensor) -> Tensor:
        h = x.flatten(1) * 2
        same = h
        h -= 1
        torch.relu_(h)
        h.mul_(3)
        return same

    x, _, y = images()
    torch.manual_seed(0)
    head = nn.Linear(64, 3).double()
    nets = [nn.Sequential(Lambda(f), head) for f in (in_place, lambda x: (x.flatten(1) * 2 - 1).relu() * 3)]
    ours, plain = (enclose(net, x, y, LinfBall(0.1)).spread() for net in nets)
    torch.testing.assert_close(ours, plain)


def test_the_input_of_the_last_layer_is_kept_as_it_was() -> None:
    torch.manual_seed(0)
    first, last = nn.Linear(64, 5).double(), nn.Linear(5, 3).double()

    def later(x: Tensor) -> Tensor:
        h = first(x.flatten(1))
        out: Tensor = last(h)
        torch.relu_(h)
        return out

    x, _, y = images()
    ours, plain = (
        enclose(net, x, y, LinfBall(0.1)).spread() for net in (Lambda(later), nn.Sequential(nn.Flatten(), first, last))
    )
    torch.testing.assert_close(ours, plain)


def test_an_input_a_rounding_outside_its_bounds_is_in_its_box() -> None:
    """A kink between the bound and x is on the way from x to every x'."""
    kink, x, y = 1 + 4e-6, torch.tensor([[1 + 9e-6]], dtype=torch.float64), torch.tensor([0])
    head = nn.Linear(1, 2).double()
    net = Lambda(lambda z: head(torch.relu(z - kink)))
    bound = enclose(net, x, y, LinfBall(0.1, (0.0, 1.0))).spread()
    inside = torch.tensor([[1.0]], dtype=torch.float64)
    assert bool(bound >= IG(rule=midpoint(1000))(net, x, inside, y).abs().sum())
    assert bool(bound > 0)
