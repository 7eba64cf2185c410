"""The CNNs against a plain NumPy reading of the reference graph, and their initialisers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from reference_graphs import hwio, nhwc, np_conv_same, np_pool
from robattr.errors import InvalidInput
from robattr.models import paper_cnn, small_cnn


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


def test_paper_cnn_weights_are_truncated_normal_and_biases_a_tenth() -> None:
    torch.manual_seed(6)
    net = paper_cnn()
    for layer in (net.conv1, net.conv2, net.fc1, net.fc2):
        weight = layer.weight.detach().flatten().double().numpy()
        assert np.abs(weight).max() <= 0.2
        assert stats.kstest(weight[:50_000] / 0.1, stats.truncnorm(-2, 2).cdf).pvalue > 1e-3
        assert (layer.bias == 0.1).all()


@pytest.mark.parametrize("size", [9, 28, 32, 45])
@pytest.mark.parametrize("channels", [1, 3])
def test_small_cnn_takes_other_images(size: int, channels: int) -> None:
    assert small_cnn(4, channels=channels, size=size)(torch.rand(2, channels, size, size)).shape == (2, 4)


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InvalidInput, match="divisible by 4"):
        paper_cnn(size=30)
    with pytest.raises(InvalidInput, match="at least 9 pixels"):
        small_cnn(size=8)
