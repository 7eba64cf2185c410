"""The networks against a plain NumPy reading of the reference graph (NHWC, TensorFlow's SAME rule), in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.signal import correlate2d
from torch import Tensor, nn
from torch.func import grad

from robattr.errors import InvalidInput
from robattr.models import (
    architectures,
    flower_resnet,
    for_dataset,
    gtsrb_resnet,
    paper_cnn,
    resnet,
    scale_invariant,
    small_cnn,
    smooth,
)
from robattr.models.architecture import Spec, build
from robattr.models.resnet import SameConv, Standardise

# --- the reference graph in NumPy: images (H, W, C), kernels (kh, kw, in, out) -----------------------------------


def np_conv_same(image: np.ndarray, kernel: np.ndarray, stride: int = 1) -> np.ndarray:
    """Every position of the window, then TensorFlow's choice among them: out = ceil(n/s), pad_before = total // 2."""
    k, sides = kernel.shape[0], image.shape[:2]
    full = np.zeros((sides[0] + k - 1, sides[1] + k - 1, kernel.shape[3]))
    for i in range(kernel.shape[2]):
        for o in range(kernel.shape[3]):
            full[:, :, o] += correlate2d(image[:, :, i], kernel[:, :, i, o], mode="full")
    starts = []
    for n in sides:
        out = -(-n // stride)
        before = max((out - 1) * stride + k - n, 0) // 2
        starts.append((k - 1) - before + stride * np.arange(out))  # full[j] is the window that begins at j - (k - 1)
    return full[np.ix_(starts[0], starts[1])]


def np_pool(image: np.ndarray, reduce: str) -> np.ndarray:
    h, w, c = image.shape
    blocks = image.reshape(h // 2, 2, w // 2, 2, c)
    return blocks.max((1, 3)) if reduce == "max" else blocks.mean((1, 3))


def np_act(u: np.ndarray) -> np.ndarray:
    return np.where(u < 0, 0.1 * u, u)


def np_standardise(image: np.ndarray) -> np.ndarray:
    mean = image.mean()
    variance = np.maximum((image**2).mean() - mean**2, 0)
    return (image - mean) / max(np.sqrt(variance), 1 / np.sqrt(image.size))


def np_resnet(
    image: np.ndarray, kernels: list[np.ndarray], fc: tuple[np.ndarray, np.ndarray], units: int
) -> np.ndarray:
    kernels = list(kernels)
    x = np_conv_same(np_standardise(image), kernels.pop(0))
    width = 16
    for stage, out in enumerate((16, 32, 64)):
        for unit in range(units):
            shortcut = x
            x = np_act(x)
            if stage == 0 and unit == 0:
                shortcut = x
            stride = 2 if stage > 0 and unit == 0 else 1
            x = np_conv_same(x, kernels.pop(0), stride)
            x = np_conv_same(np_act(x), kernels.pop(0))
            if width != out:
                half = (out - width) // 2
                shortcut = np.pad(np_pool(shortcut, "mean"), ((0, 0), (0, 0), (half, half)))
            x, width = x + shortcut, out
    assert not kernels
    return np_act(x).mean((0, 1)) @ fc[0] + fc[1]


def nhwc(x: Tensor) -> np.ndarray:
    return x.detach().permute(0, 2, 3, 1).numpy()


def hwio(weight: Tensor) -> np.ndarray:
    return weight.detach().permute(2, 3, 1, 0).numpy()


def parameters(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


# --- values ------------------------------------------------------------------------------------------------------


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


def test_paper_cnn_is_the_reference_graph() -> None:
    torch.manual_seed(3)
    net = paper_cnn().double()
    x = torch.rand(1, 1, 28, 28, dtype=torch.float64)
    h = nhwc(x)[0]
    for conv in (net.conv1, net.conv2):
        h = np_pool(np.maximum(np_conv_same(h, hwio(conv.weight)) + conv.bias.detach().numpy(), 0), "max")
    flat = h.transpose(2, 0, 1).ravel()  # ours flattens (channel, row, column)
    hidden = np.maximum(net.fc1.weight.detach().numpy() @ flat + net.fc1.bias.detach().numpy(), 0)
    expected = net.fc2.weight.detach().numpy() @ hidden + net.fc2.bias.detach().numpy()
    np.testing.assert_allclose(net(x)[0].detach().numpy(), expected, rtol=1e-10)


# --- sizes, initialisers, names ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dataset", "count", "shape", "classes"),
    [
        ("mnist", 3_274_634, (1, 28, 28), 10),
        ("fashion-mnist", 3_274_634, (1, 28, 28), 10),
        ("gtsrb", 173_723, (3, 32, 32), 43),
        ("flower", 75_265, (3, 128, 128), 17),
        ("fashion-mini", 27_250, (1, 28, 28), 10),
    ],
)
def test_network_of_each_dataset(dataset: str, count: int, shape: tuple[int, ...], classes: int) -> None:
    net = for_dataset(dataset)
    assert parameters(net) == count
    assert net(torch.zeros(2, *shape)).shape == (2, classes)
    rebuilt = build(Spec.from_json(net.spec.to_json()))
    assert rebuilt.spec == net.spec
    assert parameters(rebuilt) == count


@pytest.mark.parametrize("make", [paper_cnn, small_cnn, gtsrb_resnet, flower_resnet])
def test_initialisation_follows_the_global_seed(make) -> None:
    torch.manual_seed(5)
    first = make().state_dict()
    again = make().state_dict()
    torch.manual_seed(5)
    assert all(torch.equal(a, b) for a, b in zip(first.values(), make().state_dict().values(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first.values(), again.values(), strict=True))


def test_paper_cnn_weights_are_truncated_normal_and_biases_a_tenth() -> None:
    torch.manual_seed(6)
    net = paper_cnn()
    for layer in (net.conv1, net.conv2, net.fc1, net.fc2):
        weight = layer.weight.detach().flatten().double().numpy()
        assert np.abs(weight).max() <= 0.2
        assert stats.kstest(weight[:50_000] / 0.1, stats.truncnorm(-2, 2).cdf).pvalue > 1e-3
        assert (layer.bias == 0.1).all()


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


@pytest.mark.parametrize("size", [9, 28, 32, 45])
@pytest.mark.parametrize("channels", [1, 3])
def test_small_cnn_takes_other_images(size: int, channels: int) -> None:
    assert small_cnn(4, channels=channels, size=size)(torch.rand(2, channels, size, size)).shape == (2, 4)


def test_unknown_names_and_sizes_are_refused() -> None:
    with pytest.raises(InvalidInput, match="did you mean 'mnist'"):
        for_dataset("minst")
    with pytest.raises(InvalidInput, match="did you mean 'small_cnn'"):
        build(Spec("smal_cnn"))
    with pytest.raises(InvalidInput, match="does not take"):
        build(Spec("small_cnn", {"depth": 3}))
    for spec in ('{"name": "resnet"}', "[]", "{", '{"name": 3, "arguments": {}}'):
        with pytest.raises(InvalidInput, match="spec"):
            Spec.from_json(spec)
    for make in (lambda: paper_cnn(0), lambda: small_cnn(2.5), lambda: resnet(10, True), lambda: resnet(10, 10**9)):
        with pytest.raises(InvalidInput, match="expected"):
            make()
    with pytest.raises(InvalidInput, match="divisible by 4"):
        paper_cnn(size=30)
    with pytest.raises(InvalidInput, match="divisible by 4"):
        gtsrb_resnet()(torch.rand(1, 3, 30, 30))
    assert set(architectures) >= {"paper_cnn", "small_cnn", "resnet"}


# --- derivatives -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "shape", "top"),
    [
        (small_cnn, (1, 28, 28), 1.0),
        (paper_cnn, (1, 28, 28), 1.0),
        (gtsrb_resnet, (3, 16, 16), 255.0),
        (flower_resnet, (3, 16, 16), 255.0),
    ],
)
def test_second_derivative_against_finite_differences(make, shape: tuple[int, ...], top: float) -> None:
    """∂/∂x ⟨∇ℓ(x), u⟩ along v, from nested torch.func.grad and from central differences of the gradient."""
    torch.manual_seed(8)
    net = make().double().requires_grad_(False)
    x, u, v = top * torch.rand(1, *shape).double(), torch.randn(1, *shape).double(), torch.randn(1, *shape).double()
    first = grad(lambda z: net(z).log_softmax(1)[0, 0])
    exact = (grad(lambda z: (first(z) * u).sum())(x) * v).sum()
    step = 1e-6 * top
    numeric = ((first(x + step * v) - first(x - step * v)) * u).sum() / (2 * step)
    assert exact.abs() > 0
    torch.testing.assert_close(exact, numeric, rtol=1e-4, atol=0)


# --- scale invariance --------------------------------------------------------------------------------------------


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
