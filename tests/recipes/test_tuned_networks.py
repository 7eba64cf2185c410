"""The networks of the tuned recipes against the paper's networks and SciPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.ndimage import convolve1d
from torch import nn

from robattr import IntegratedGradients
from robattr.errors import InvalidInput
from robattr.models import paper_cnn, scale_invariant
from robattr.models.architecture import build
from robattr.recipes.tuned_networks import (
    additive_net,
    avgpool_cnn,
    blur_cnn,
    linear_net,
    pooled_resnet,
    smooth_resnet,
    tone_curve_cnn,
    wide_resnet,
)
from robattr.training import TrainConfig, checkpoint, settings


def test_avgpool_cnn_starts_as_paper_cnn_and_blocks_a_black_image() -> None:
    def made(make):
        torch.manual_seed(6)
        return make(size=8)

    ours, paper = made(avgpool_cnn), made(paper_cnn)
    for name, value in paper.state_dict().items():
        expected = torch.full_like(value, -0.1) if name == "conv1.bias" else value
        torch.testing.assert_close(ours.state_dict()[name], expected, rtol=0, atol=0)
    assert (ours[:2](torch.zeros(1, 1, 8, 8)) == 0).all()
    paper.load_state_dict(ours.state_dict())
    paper.pool1, paper.pool2 = nn.AvgPool2d(2), nn.AvgPool2d(2)
    x = torch.rand(2, 1, 8, 8)
    assert torch.equal(ours(x), paper(x))


@pytest.mark.parametrize("slope", [0.0, 0.25, 0.5])
def test_tone_curve_cnn_is_avgpool_cnn_behind_a_piecewise_linear_curve(slope: float) -> None:
    torch.manual_seed(6)
    net = tone_curve_cnn(size=8, threshold=0.1, slope=slope).double()
    inner = avgpool_cnn(size=8).double()
    inner.load_state_dict(net.state_dict())
    x = torch.rand(4, 1, 8, 8, dtype=torch.float64)
    curve = np.interp(x.numpy(), [0, 0.1, 1], [0, 0.1 * slope, 0.1 * slope + 0.9])
    torch.testing.assert_close(net(x), inner(torch.from_numpy(curve)), rtol=1e-12, atol=1e-12)


def test_a_tone_curve_of_slope_0_hides_a_raised_background() -> None:
    torch.manual_seed(6)
    net = tone_curve_cnn(size=8, threshold=0.1, slope=0.0).double()
    x = torch.rand(4, 1, 8, 8, dtype=torch.float64)
    x[:, :, :4] = 0
    raised = x.clone()
    raised[:, :, :4] += 0.1 * torch.rand(4, 1, 4, 8, dtype=torch.float64)
    assert torch.equal(net(raised), net(x))
    y = torch.tensor([0, 1, 2, 3])
    maps = [IntegratedGradients(net).attribute(z, target=y, n_steps=10) for z in (x, raised)]
    assert torch.equal(maps[0], maps[1])
    assert maps[0][:, :, 4:].abs().amax() > 0
    assert (maps[0][:, :, :4] == 0).all()


@pytest.mark.parametrize("value", [-0.1, 1.0, float("nan"), "0.1"])
@pytest.mark.parametrize("name", ["threshold", "slope"])
def test_threshold_and_slope_are_checked(name: str, value: object) -> None:
    with pytest.raises(InvalidInput, match=rf"{name} in \[0, 1\)"):
        tone_curve_cnn(**{name: value})


def test_blur_cnn_blurs_behind_the_tone_curve() -> None:
    torch.manual_seed(6)
    net = blur_cnn(size=8, threshold=0.1, slope=0.5, blur=0.2).double()
    inner = avgpool_cnn(size=8).double()
    inner.load_state_dict(net.state_dict())
    x = torch.rand(4, 1, 8, 8, dtype=torch.float64)
    seen = np.interp(x.numpy(), [0, 0.1, 1], [0, 0.05, 0.95])
    for axis in (2, 3):
        seen = convolve1d(seen, [0.2, 0.6, 0.2], axis=axis, mode="constant")
    torch.testing.assert_close(net(x), inner(torch.from_numpy(seen)), rtol=1e-12, atol=1e-12)
    assert build(net.spec).spec.arguments["blur"] == 0.2


@pytest.mark.parametrize("value", [-0.1, 0.3, float("nan"), "0.1"])
def test_the_blur_is_checked(value: object) -> None:
    with pytest.raises(InvalidInput, match=r"blur in \[0, 0\.25\]"):
        blur_cnn(blur=value)


def test_pooled_resnet_sees_averages_of_the_standardised_image() -> None:
    torch.manual_seed(3)
    pooled = pooled_resnet(4, channels=3, scale=1.0).double()
    wide = wide_resnet(4, channels=3, scale=1.0).double()
    assert (wide.stem.out_channels, wide.fc.in_features) == (32, 128)
    wide.load_state_dict(pooled.state_dict())
    x = 255 * torch.rand(2, 3, 16, 24, dtype=torch.float64)
    values = x.numpy()
    standard = (values - values.mean((1, 2, 3), keepdims=True)) / values.std((1, 2, 3), keepdims=True)
    averages = torch.from_numpy(standard.reshape(2, 3, 8, 2, 12, 2).mean((3, 5)))
    wide.standardise = nn.Identity()
    torch.testing.assert_close(pooled(x), wide(averages), rtol=1e-9, atol=1e-9)
    with pytest.raises(InvalidInput, match="divisible by 8"):
        pooled(x[:, :, :12])


def test_a_configuration_with_an_earlier_name_of_a_network_is_read() -> None:
    written = {**TrainConfig(model="avgpool_cnn").as_dict(), "model": "threshold_cnn"}
    assert settings.change(TrainConfig(), written).model == "avgpool_cnn"
    assert checkpoint.differences(TrainConfig(model="avgpool_cnn"), written) == ""


def test_additive_net_is_its_formula() -> None:
    torch.manual_seed(6)
    net = additive_net(3, channels=2, size=4, hidden=5, threshold=0.2, width=0.1).double()
    x = torch.rand(6, 2, 4, 4, dtype=torch.float64)
    t = np.tanh(np.maximum(x.numpy() - 0.2, 0) / 0.1) / np.tanh(8)
    averages = t.reshape(6, 2, 2, 2, 2, 2).mean(axis=(3, 5)).reshape(6, 8)
    w = {name: value.numpy() for name, value in net.state_dict().items()}
    hidden = np.logaddexp(0, averages @ w["blocks.2.weight"].T + w["blocks.2.bias"])
    blocks = hidden @ w["blocks.4.weight"].T + w["blocks.4.bias"]
    expected = t.reshape(6, 32) @ w["pixels.weight"].T + w["pixels.bias"] + blocks
    torch.testing.assert_close(net(x), torch.from_numpy(expected), rtol=1e-12, atol=1e-12)


def test_maps_of_additive_net_are_sums_over_single_pixels_without_its_averages() -> None:
    """|w_p·(t(x_p) - t(0))|; a black background raised to the threshold changes no pixel of them."""
    torch.manual_seed(6)
    net = additive_net(size=4, hidden=2).double()
    torch.nn.init.zeros_(net.blocks[4].weight)
    x = torch.rand(3, 1, 4, 4, dtype=torch.float64)
    x[:, :, :2] = 0
    raised = x.clone()
    raised[:, :, :2] = 0.1 * torch.rand(3, 1, 2, 4, dtype=torch.float64)
    y = torch.tensor([0, 5, 9])
    maps = [IntegratedGradients(net).attribute(z, target=y, n_steps=3000) for z in (x, raised)]
    assert torch.equal(maps[0], maps[1])
    expected = net.pixels.weight[y].view_as(x) * net.step(x)
    # The ReLU's kink lies in one of 3,000 intervals, of weight at most |w|·x/width/3,000 with |w| ≤ 1/4.
    torch.testing.assert_close(maps[0], expected, rtol=0, atol=0.25 / 0.08 / 3000)


@pytest.mark.parametrize("wrong", [{"threshold": 1.0}, {"threshold": -0.1}, {"width": 0.0}, {"size": 5}])
def test_additive_net_refuses_settings_outside_its_formula(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidInput, match=r"expected a threshold in|expected a width in|expected an even size"):
        additive_net(**{"size": 4, **wrong})


def test_linear_net_attributes_each_pixel_its_own_weight() -> None:
    torch.manual_seed(6)
    net, x = linear_net(3, channels=2, size=3).double(), torch.rand(3, 2, 3, 3, dtype=torch.float64)
    y = torch.tensor([2, 0, 1])
    expected = net[1].weight[y].view_as(x) * x
    torch.testing.assert_close(IntegratedGradients(net).attribute(x, target=y, n_steps=3), expected)


def test_smooth_resnet_is_wide_resnet_with_softplus_units_on_averages_of_centred_images() -> None:
    torch.manual_seed(6)
    net, rough = smooth_resnet(5, beta=3.0), wide_resnet(5, channels=1)
    rough.load_state_dict(net.state_dict())
    x = torch.rand(2, 1, 16, 16)
    rough.standardise = nn.Identity()
    for unit in rough.units:
        unit.act1 = unit.act2 = rough.act = Leaky(3.0)
    seen = nn.functional.avg_pool2d((x - 0.5) * 3.4, 2)
    torch.testing.assert_close(net(x), rough(seen), rtol=1e-4, atol=1e-4)
    assert not scale_invariant(net, x).any()  # its maps are no multiple of one gradient


class Leaky(nn.Module):
    """0.1·u + 0.9·softplus(u)."""

    def __init__(self, beta: float) -> None:
        super().__init__()
        self.beta = beta

    def forward(self, u: torch.Tensor) -> torch.Tensor:
        return 0.1 * u + 0.9 * nn.functional.softplus(u, beta=self.beta)
