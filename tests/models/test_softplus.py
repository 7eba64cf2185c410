"""Networks with softplus units against the softplus twin of the same network with ReLUs."""

from __future__ import annotations

import pytest
import torch

from robattr import models
from robattr.models.softplus import BETAS, SOFTPLUS, with_softplus


@pytest.mark.parametrize(
    ("name", "shape"), [("paper_cnn", (1, 28, 28)), ("resnet", (3, 8, 8)), ("small_cnn", (1, 12, 12))]
)
@pytest.mark.parametrize("beta", BETAS)
def test_a_softplus_network_is_the_twin_of_the_network(name: str, shape: tuple[int, ...], beta: int) -> None:
    """Values and gradients agree, weights fit, and no ReLU is left; the file's spec is the softplus network's."""
    size = {} if name == "resnet" else {"size": shape[-1]}
    made = []
    for kind in (name, f"{name}_softplus{beta}"):
        torch.manual_seed(0)
        made.append(models.architectures[kind](4, **size).double())
    plain, ours = made
    assert ours.spec == models.Spec(f"{name}_softplus{beta}", plain.spec.arguments)
    twin = models.smooth(plain, beta)
    x = (255 if name == "resnet" else 1) * torch.rand(3, *shape, dtype=torch.float64)
    gradients = []
    for net in (twin, ours):
        at = x.clone().requires_grad_()
        y = net(at)
        gradients.append((y, *torch.autograd.grad(y[:, 0].sum(), at)))
    torch.testing.assert_close(*gradients)
    assert not torch.allclose(plain(x), ours(x))
    assert not any(isinstance(part, torch.nn.ReLU | torch.nn.LeakyReLU) for part in ours.modules())
    assert ours.state_dict().keys() == plain.state_dict().keys()


def test_names_of_the_registered_networks() -> None:
    assert len(SOFTPLUS) == 3 * len(BETAS)
    try:
        with_softplus(models.small_cnn, 2.5)
        assert "small_cnn_softplus2.5" in models.architectures
    finally:
        models.architectures.pop("small_cnn_softplus2.5", None)
