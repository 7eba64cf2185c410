"""The residual networks against a plain NumPy reading of the reference graph, and their initialisers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.func import grad

from reference_graphs import hwio, nhwc, np_conv_same, np_resnet, np_standardise
from robattr.errors import InvalidInput
from robattr.models import flower_resnet, gtsrb_resnet, resnet, scale_invariant, small_cnn, smooth
from robattr.models.resnet import SameConv, Standardise


@pytest.mark.parametrize(("units", "classes", "size"), [(2, 43, 32), (1, 17, 64)], ids=["gtsrb", "flower"])
def test_resnet_is_the_reference_graph(units: int, classes: int, size: int) -> None:
    torch.manual_seed(0)
    net = resnet(classes, units).double()
    nn.init.normal_(net.fc.bias)
    x = torch.rand(2, 3, size, size, dtype=torch.float64) * 255
    kernels = [hwio(m.weight) for m in net.modules() if isinstance(m, nn.Conv2d)]
    fc = net.fc.weight.detach().numpy().T, net.fc.bias.detach().numpy()
    expected = np.stack([np_resnet(image, kernels, fc, units) for image in nhwc(x)])
    np.testing.assert_allclose(net(x).detach().numpy(), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("size", [8, 9, 32])
@pytest.mark.parametrize("stride", [1, 2])
def test_same_padding(size: int, stride: int) -> None:
    torch.manual_seed(1)
    conv = SameConv(2, 3, stride=stride).double()
    x = torch.randn(1, 2, size, size + 1, dtype=torch.float64)
    expected = np_conv_same(nhwc(x)[0], hwio(conv.weight), stride)
    np.testing.assert_allclose(nhwc(conv(x))[0], expected, atol=1e-12)


def test_stride_two_pads_bottom_and_right_only() -> None:
    conv = SameConv(1, 1, stride=2)
    nn.init.ones_(conv.weight)
    out = conv(torch.ones(1, 1, 4, 4))
    assert out[0, 0].tolist() == [[9, 6], [6, 4]]


@pytest.mark.parametrize("spread", [80.0, 1.0, 1e-3, 0.0], ids=["usual", "flat", "below the floor", "constant"])
def test_standardisation(spread: float) -> None:
    torch.manual_seed(2)
    x = 100 + spread * torch.randn(3, 3, 8, 8, dtype=torch.float64)
    expected = np.stack([np_standardise(image) for image in nhwc(x)])
    np.testing.assert_allclose(nhwc(Standardise()(x)), expected, atol=1e-6)


def test_standardisation_of_a_constant_image_has_a_finite_gradient() -> None:
    x = torch.full((1, 3, 8, 8), 7.0, requires_grad=True)
    (first,) = torch.autograd.grad(gtsrb_resnet()(x).square().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), x)
    assert first.isfinite().all()
    assert second.isfinite().all()


def test_resnet_weights_are_fan_out_normal_and_the_last_layer_uniform() -> None:
    torch.manual_seed(7)
    net = gtsrb_resnet()
    for conv in (m for m in net.modules() if isinstance(m, SameConv)):
        weight = conv.weight.detach().flatten().double().numpy() / math.sqrt(2 / (9 * conv.out_channels))
        assert conv.bias is None
        assert stats.kstest(weight, stats.norm.cdf).pvalue > 1e-3
    last = net.fc.weight.detach().flatten().double().numpy() / math.sqrt(3 / 64)
    assert stats.kstest(last, stats.uniform(-1, 2).cdf).pvalue > 1e-3
    assert (net.fc.bias == 0).all()
    widest = net.units[-1].conv2.weight.detach() / math.sqrt(2 / (9 * 64))
    assert widest.abs().max() > 2.5  # not truncated


def ig_from_black(net: nn.Module, x: Tensor, points: int = 100) -> Tensor:
    """The reference's sum: (1/N) Σ ∇f((i/N)x) ⊙ x over i = 1..N, one image at a time."""
    nodes = torch.arange(1, points + 1, dtype=x.dtype).view(-1, 1, 1, 1) / points
    ray = (nodes * x).requires_grad_()
    (gradient,) = torch.autograd.grad(net(ray)[:, 3].sum(), ray)
    return gradient.mean(0) * x[0]


@pytest.mark.parametrize("beta", [None, 1.0], ids=["net", "twin"])
@pytest.mark.parametrize("pool", [1, 2])
def test_ig_from_black_is_gradient_times_input_where_the_guard_says_so(beta: float | None, pool: int) -> None:
    torch.manual_seed(9)
    net = resnet(17, 1, pool=pool).double().requires_grad_(False)
    model = net if beta is None else smooth(net, beta)
    pattern = torch.randn(1, 3, 16, 16, dtype=torch.float64)
    bound = 100 / math.sqrt(3 * 16 * 16)
    pattern = (pattern - pattern.mean()) / pattern.std(correction=0)
    harmonic = sum(1 / i for i in range(1, 101))
    assert harmonic == pytest.approx(5.187, abs=1e-3)
    for sigma, holds in ((40.0, True), (1.01 * bound, True), (0.99 * bound, False)):
        x = 120 + sigma * pattern
        one = x[0] * grad(lambda z: model(z)[0, 3])(x)[0] * harmonic
        full = ig_from_black(model, x)
        assert scale_invariant(model, x).tolist() == [holds]
        assert torch.allclose(full, one, rtol=1e-9, atol=1e-9 * one.abs().max().item()) == holds


def test_a_scaled_resnet_sees_unit_images_as_the_plain_one_sees_theirs() -> None:
    torch.manual_seed(3)
    wide = resnet(4, channels=1, width=32, scale=255.0).double()
    plain = resnet(4, channels=1, width=32).double()
    plain.load_state_dict(wide.state_dict())
    x = torch.rand(3, 1, 12, 12, dtype=torch.float64)
    x[2] = 0.5 + 1e-4 * x[2]  # below the floor of both
    torch.testing.assert_close(wide(x), plain(255 * x), rtol=1e-9, atol=1e-12)
    assert scale_invariant(wide, x).tolist() == scale_invariant(plain, 255 * x).tolist() == [True, True, False]
    for wrong, message in (
        ({"width": 15}, "even width"),
        ({"width": 0}, "width to be a positive"),
        ({"scale": 0.0}, "positive scale"),
        ({"scale": "255"}, "positive scale"),
        ({"width": 10**6}, "width of at most 4096"),
        ({"pool": 0}, "pool to be a positive"),
    ):
        with pytest.raises(InvalidInput, match=message):
            resnet(4, 1, **wrong)


def test_the_guard_is_the_published_bound_and_per_image() -> None:
    for net, size, bound in ((gtsrb_resnet(), 32, 1.80), (flower_resnet(), 128, 0.45)):
        pattern = torch.ones(3, size, size)
        pattern[:, ::2] = -1
        x = 100 + torch.stack([(bound - 0.01) * pattern, (bound + 0.02) * pattern, 50 * pattern])
        assert scale_invariant(net, x).tolist() == [False, True, True]
        assert scale_invariant(net, x, smallest=0.5).all()
    assert not scale_invariant(small_cnn(), torch.rand(2, 1, 28, 28)).any()


def test_images_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InvalidInput, match="divisible by 4"):
        gtsrb_resnet()(torch.rand(1, 3, 30, 30))
