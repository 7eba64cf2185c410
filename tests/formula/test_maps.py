"""Maps of one point and references, against plain autograd, SciPy and closed forms."""

from __future__ import annotations

import pytest
import torch
from scipy.ndimage import gaussian_filter
from torch import Tensor, nn
from torch.nn import functional as F

from nets import conv, images, mlp
from robattr import (
    IG,
    BaselineIG,
    Gradient,
    Map,
    at_layer,
    at_output,
    blurred,
    clean,
    frozen,
    kl,
    l1,
    logits,
    magnitude,
    midpoint,
    runner_up,
    target,
    the_input,
    uniform,
    wrong_logit,
)
from robattr.errors import InvalidInput
from robattr.formula.attribution import Attribution

FEW = IG(rule=midpoint(4))


def plain() -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    x = torch.rand(4, 6, dtype=torch.float64)
    return mlp().double(), x, x + 0.2, torch.arange(4) % 3


def loop_gradient(net: nn.Module, z: Tensor, labels: Tensor) -> Tensor:
    """One example after the other."""
    found = []
    for one, label in zip(z, labels, strict=True):
        v = one.clone().requires_grad_()
        found.append(torch.autograd.grad(net(v[None])[0, label], v)[0])
    return torch.stack(found)


def test_gradients_of_the_label_and_of_the_best_wrong_class() -> None:
    net, x, x1, y = plain()
    expected = loop_gradient(net, x1, y)
    torch.testing.assert_close(Gradient()(net, x, x1, y), expected)
    torch.testing.assert_close(Gradient(times_input=True)(net, x, x1, y), x1 * expected)
    torch.testing.assert_close(clean(Gradient())(net, x, x1, y), loop_gradient(net, x, y))
    z = net(x1).detach()
    wrong = torch.tensor([max((j for j in range(3) if j != int(k)), key=lambda j: z[i, j]) for i, k in enumerate(y)])
    torch.testing.assert_close(Gradient(of=wrong_logit)(net, x, x1, y), loop_gradient(net, x1, wrong))
    torch.testing.assert_close(runner_up(Gradient())(net, x, x1, y), loop_gradient(net, x1, wrong))


def test_gradients_at_a_layer() -> None:
    net, x, x1, y = plain()
    h = net[1](net[0](x1)).detach().requires_grad_()
    expected = torch.autograd.grad(net[2:](h).gather(1, y[:, None]).sum(), h)[0]
    torch.testing.assert_close(Gradient(at=at_layer("1"))(net, x, x1, y), expected)
    torch.testing.assert_close(Gradient(at=at_layer("1"), times_input=True)(net, x, x1, y), h.detach() * expected)


def test_a_baseline_is_the_start_of_the_path() -> None:
    net, x, x1, y = plain()
    ones, draws = torch.ones(6, dtype=torch.float64), torch.rand(3, 6, dtype=torch.float64)
    for baseline, expected in (
        (0.0, FEW(net, torch.zeros_like(x), x1, y)),
        (ones, FEW(net, torch.ones_like(x), x1, y)),
        (draws, sum(FEW(net, d.expand_as(x), x1, y) for d in draws) / 3),
        (torch.sin, FEW(net, x1.sin(), x1, y)),
    ):
        torch.testing.assert_close(BaselineIG(FEW, baseline)(net, x, x1, y), expected)


def test_the_blurred_baseline_is_scipys() -> None:
    z = torch.rand(2, 3, 7, 9, dtype=torch.float64)
    for sigma in (0.5, 1.0, 4.0):  # the last reaches beyond the image
        expected = gaussian_filter(z.numpy(), (0, 0, sigma, sigma), mode="mirror", truncate=4.0)
        torch.testing.assert_close(blurred(sigma)(z), torch.from_numpy(expected))
    assert blurred(1.0) == blurred(1.0)
    net, (x, x1, y) = conv(nn.Tanh()).double(), images()
    assert BaselineIG(FEW, blurred(1.0))(net, x, x1, y).shape == x.shape


def test_references() -> None:
    net, x, x1, y = plain()
    assert the_input(net, x, x1, y) is x1
    torch.testing.assert_close(clean(the_input)(net, x, x1, y), x)
    torch.testing.assert_close((l1 @ (the_input, target(0.5)))(net, x, x1, y), (x1 - 0.5).abs().sum(1))
    wanted = torch.rand(6, dtype=torch.float64)
    torch.testing.assert_close((l1 @ (the_input, target(wanted)))(net, x, x1, y), (x1 - wanted).abs().sum(1))
    a = Gradient()(net, x, x1, y)
    flat = torch.full_like(a, 1 / 6)
    expected = (flat * (flat.log() - a.log_softmax(1))).sum(1)
    torch.testing.assert_close((kl @ (Gradient(), uniform))(net, x, x1, y), expected)
    assert clean(Gradient())(net, x, x1, y).requires_grad
    assert not frozen(Gradient())(net, x, x1, y).requires_grad


def test_trades_divergence() -> None:
    net, x, x1, y = plain()
    expected = F.kl_div(net(x1).log_softmax(1), net(x).softmax(1), reduction="none").sum(1)
    torch.testing.assert_close((kl @ logits)(net, x, x1, y), expected)


def test_the_magnitude_sums_channels() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(18, 3), nn.Tanh()).double()
    x, y = torch.rand(2, 2, 3, 3, dtype=torch.float64), torch.tensor([0, 2])
    torch.testing.assert_close(magnitude(Gradient())(net, x, x, y), Gradient()(net, x, x, y).abs().sum(1))


@pytest.mark.parametrize(
    "attribution",
    [
        Gradient(), Gradient(times_input=True), Gradient(at=at_layer("1")), BaselineIG(FEW),
        BaselineIG(IG(rule=midpoint(4), chunk=2)), runner_up(BaselineIG(FEW)), magnitude(Gradient()),
    ],
    ids=["gradient", "gradient times input", "at a layer", "from black", "in chunks", "runner-up", "magnitude"],
)  # fmt: skip
def test_derivatives_in_the_point_are_finite_differences(attribution: Attribution) -> None:
    net, x, x1, y = plain()
    assert torch.autograd.gradcheck(lambda z: attribution(net, x, z, y), x1.requires_grad_())


def test_a_map_of_ones_own() -> None:
    class Squares(Map):
        def at_point(self, net, z: Tensor, y: Tensor) -> Tensor:
            return z**2

    net, x, x1, y = plain()
    torch.testing.assert_close((l1 @ Squares())(net, x, x1, y), (x1**2).sum(1))

    class Empty(Map):
        pass

    with pytest.raises(NotImplementedError, match=r"at_point\(net, z, y\)"):
        Empty()(net, x, x1, y)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: Gradient(of=3), "such as logit"),
        (lambda: Gradient(at=at_output), "at_input or at_layer"),
        (lambda: BaselineIG(3), "IG\\(of=logit\\)"),
        (lambda: BaselineIG(FEW, "black"), "0.0 or blurred"),
        (lambda: BaselineIG(FEW, torch.zeros(5))(*plain()), "broadcasts to \\(6,\\)"),
        (lambda: BaselineIG(FEW, torch.mean)(*plain()), "shape of x'"),
        (lambda: BaselineIG(FEW, blurred(1.0))(*plain()), "images"),
        (lambda: blurred(0.0), "σ > 0"),
        (lambda: target("x"), "broadcasts to the map"),
        (lambda: magnitude(IG()), "map of one point"),
        (lambda: runner_up(3), "map of one point"),
    ],
)
def test_mistakes_are_named(wrong, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        wrong()
