"""Attribution maps against Captum, autograd and finite differences."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from robattr import Rule, gauss_legendre, left, midpoint, right
from robattr.attacks import from_callable, gradient_input, integrated_gradients, simple_gradient, smooth_grad
from robattr.attacks.maps import by_name, constant_along_ray, magnitude, saliency
from robattr.errors import InvalidInput
from robattr.models import resnet, smooth


@pytest.fixture(scope="module")
def case() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(75, 4)).double()
    return net, torch.rand(3, 2, 5, 5, dtype=torch.float64), torch.tensor([0, 3, 1])


def test_magnitude_adds_channels_and_has_mean_one() -> None:
    a = torch.tensor([[[[1.0, -2.0]], [[-3.0, 0.0]]]])
    torch.testing.assert_close(magnitude(a), torch.tensor([[[4.0, 2.0]]]) * 2 / 6)
    flat = torch.tensor([[1.0, -3.0]])
    torch.testing.assert_close(magnitude(flat), torch.tensor([[0.5, 1.5]]))
    assert magnitude(torch.zeros(1, 3)).isnan().all()


def test_ig_is_captums_right_riemann_sum(case) -> None:
    captum = pytest.importorskip("captum.attr")
    net, x, y = case
    theirs = captum.IntegratedGradients(net).attribute(x, target=y, n_steps=10, method="riemann_right")
    torch.testing.assert_close(integrated_gradients(10)(net, x, y), magnitude(theirs), rtol=1e-9, atol=1e-9)


def test_gradient_maps_are_autograds(case) -> None:
    net, x, y = case
    z = x.clone().requires_grad_()
    (g,) = torch.autograd.grad(net(z).gather(1, y[:, None]).sum(), z)
    torch.testing.assert_close(simple_gradient()(net, x, y), magnitude(g))
    torch.testing.assert_close(gradient_input()(net, x, y), magnitude(g * x))


def test_smooth_grad_is_the_mean_over_fixed_draws(case) -> None:
    net, x, y = case
    map = smooth_grad(samples=6, sigma=0.3, seed=2)
    noise = torch.randn(6, *x.shape[1:], generator=torch.Generator().manual_seed(2)).double()
    total = torch.zeros_like(x)
    for xi in noise:
        z = (x + 0.3 * xi).requires_grad_()
        total += torch.autograd.grad(net(z).gather(1, y[:, None]).sum(), z)[0]
    torch.testing.assert_close(map(net, x, y), magnitude(total / 6), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(map(net, x[1:2], y[1:2]), map(net, x, y)[1:2])


@pytest.mark.parametrize(
    "map", [integrated_gradients(4), simple_gradient(), gradient_input(), smooth_grad(3)], ids=lambda m: m.name
)
def test_maps_are_differentiable_again(case, map) -> None:
    net, x, y = case
    twin = smooth(net, 2.0)
    assert torch.autograd.gradcheck(lambda z: map(twin, z, y[:1])[:, :2, :2], (x[:1].clone().requires_grad_(),))


def test_flat_inputs_keep_their_shape() -> None:
    net = nn.Sequential(nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 2))
    map = integrated_gradients(5)(net, torch.rand(2, 7), torch.tensor([0, 1]))
    assert map.shape == (2, 7)
    torch.testing.assert_close(map.mean(dim=1), torch.ones(2))


@pytest.mark.parametrize("map", [simple_gradient(), gradient_input(), smooth_grad(3), integrated_gradients(3)])
def test_a_module_in_training_mode_is_asked_as_it_stands(map) -> None:
    torch.manual_seed(1)
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(18, 3)).double()
    x, y = torch.rand(6, 1, 5, 5, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1, 2])
    before = {name: value.clone() for name, value in net.state_dict().items()}
    whole = map(net, x, y)
    assert net.training
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    torch.testing.assert_close(map(net, x[:1], y[:1]), whole[:1])
    torch.testing.assert_close(map(net.eval(), x, y), whole)


def test_a_callable_sees_the_module_itself(case) -> None:
    net, x, y = case
    seen = []

    def attribute(model, x: Tensor, y: Tensor) -> Tensor:
        seen.append(model)
        return x

    torch.testing.assert_close(saliency(from_callable(attribute), net, x, y), magnitude(x))
    assert seen == [net]


@pytest.mark.parametrize(
    ("attribute", "got"),
    [
        (lambda x: x[:, :, ::2, ::2], r"\(3, 2, 3, 3\)"),
        (lambda x: x[:1], r"\(1, 2, 5, 5\)"),
        (lambda x: x.sum((1, 2, 3)), r"\(3,\)"),
        (lambda x: x.flatten(1), r"\(3, 50\)"),
        (lambda x: x.numpy(), "ndarray"),
        (lambda x: (x,), "tuple"),
    ],
)
def test_what_is_no_map_of_the_input_is_refused(case, attribute, got: str) -> None:
    net, x, y = case
    for fine in (x, x[:, :1], x[:, 0]):
        torch.testing.assert_close(from_callable(lambda m, x, y, fine=fine: fine)(net, x, y), magnitude(fine))
    with pytest.raises(InvalidInput, match=f"'custom' .* got {got}: .*interpolate"):
        from_callable(lambda m, x, y: attribute(x))(net, x, y)


def test_the_shortcut_equals_the_hundred_point_sum() -> None:
    torch.manual_seed(2)
    net = resnet(3, 1, channels=1).double()
    x = 255 * torch.rand(3, 1, 8, 8, dtype=torch.float64)
    x[1] = 7.0 + torch.rand(1, 8, 8, dtype=torch.float64)
    y = torch.tensor([0, 1, 2])
    map = integrated_gradients(100)
    assert constant_along_ray(map, net, x).tolist() == [True, False, True]
    torch.testing.assert_close(saliency(map, net, x, y), map(net, x, y).detach(), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("rule", [right(50), midpoint(50), gauss_legendre(12), left(50)], ids=repr)
def test_the_shortcut_is_taken_only_where_the_first_point_of_the_rule_allows(rule: Rule) -> None:
    torch.manual_seed(2)
    net = resnet(3, 1, channels=1).double()
    x = torch.rand(6, 1, 8, 8, dtype=torch.float64) * torch.tensor([255.0, 60, 40, 30, 20, 9]).view(-1, 1, 1, 1)
    y = torch.arange(6) % 3
    map = integrated_gradients(rule=rule)
    granted = constant_along_ray(map, net, x)
    assert bool(granted.any()) == (min(rule.nodes) > 0)
    assert not granted.all()
    torch.testing.assert_close(saliency(map, net, x, y), map(net, x, y).detach(), rtol=1e-7, atol=1e-9)


def test_the_shortcut_holds_in_the_whole_ball() -> None:
    """Where it is granted for a ball, it holds at the point of the ball with the least deviation."""
    torch.manual_seed(3)
    net = resnet(3, 1, channels=1).double()
    map = integrated_gradients(100)
    spread = torch.tensor([21.0, 25.0, 40.0], dtype=torch.float64).view(3, 1, 1, 1)
    signs = torch.ones(1, 1, 8, 8, dtype=torch.float64)
    signs[..., ::2] = -1
    x = 128 + spread * signs
    granted = constant_along_ray(map, net, x, eps=8.0)
    nearest = x - 8 * signs
    assert granted.tolist() == constant_along_ray(map, net, nearest).tolist()
    assert granted.tolist() == [True, True, True] or 1 <= granted.sum() < 3
    assert not constant_along_ray(map, nn.Flatten(), x, eps=8.0).any(), "no promise for other nets"


def test_names() -> None:
    assert by_name("ig", N=7).nodes == 7
    assert by_name("smoothgrad", bounds=(0.0, 255.0)).nodes == 20
    with pytest.raises(InvalidInput, match="did you mean 'ig'"):
        by_name("igg")
