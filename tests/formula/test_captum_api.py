"""Captum's doors: the same calls, the same values, and a second derivative."""

from __future__ import annotations

import captum.attr
import pytest
import torch
from torch import Tensor, nn

from nets import NETS, direction, directional, images, mlp
from robattr import IntegratedGradients, PathLayerIG, polyline
from robattr.errors import InvalidInput, UnsupportedModel

METHODS = ["gausslegendre", "riemann_left", "riemann_right", "riemann_middle"]


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(10, 4)

    def forward(self, x: Tensor, w: Tensor, factor: Tensor, power: int = 1) -> Tensor:
        return torch.tanh(self.a(x) * self.b(w.flatten(1)) * factor[:, None]) ** power


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("baseline", [None, 0.25, "one", "each"])
@pytest.mark.parametrize("batch", [None, 4, 9])
def test_the_call_users_type(method: str, baseline: object, batch: int | None) -> None:
    net = mlp()
    x = torch.randn(4, 6)
    base = {"one": torch.randn(1, 6), "each": torch.randn(4, 6)}.get(baseline, baseline)  # type: ignore[arg-type]
    arguments = {"baselines": base, "target": torch.tensor([0, 1, 2, 0]), "n_steps": 11, "method": method}
    ours, gap = IntegratedGradients(net).attribute(
        x, **arguments, internal_batch_size=batch, return_convergence_delta=True
    )
    theirs, captums_gap = captum.attr.IntegratedGradients(net).attribute(x, **arguments, return_convergence_delta=True)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gap, captums_gap.to(gap), rtol=1e-4, atol=1e-5)
    assert not ours.requires_grad


def test_tuples_and_further_arguments() -> None:
    net = TwoInputs()
    x, w, factor = torch.randn(5, 3), torch.randn(5, 2, 5), torch.rand(5)
    arguments = {"target": 2, "additional_forward_args": (factor, 3), "n_steps": 6}
    ours = IntegratedGradients(net).attribute((x, w), baselines=(0.1, torch.zeros(1, 2, 5)), **arguments)
    theirs = captum.attr.IntegratedGradients(net).attribute((x, w), baselines=(0.1, torch.zeros(1, 2, 5)), **arguments)
    assert isinstance(ours, tuple)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_a_per_sample_loss_needs_no_target() -> None:
    net, y = mlp(), torch.tensor([0, 1, 2])

    def loss(x: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(net(x), labels, reduction="none")

    x = torch.randn(3, 6)
    ours = IntegratedGradients(loss).attribute(x, additional_forward_args=y, n_steps=5)
    theirs = captum.attr.IntegratedGradients(loss).attribute(x, additional_forward_args=y, n_steps=5)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_one_step_is_gradient_times_input() -> None:
    net = mlp()
    x = torch.randn(2, 6, requires_grad=True)
    (g,) = torch.autograd.grad(net(x)[:, 1].sum(), x)
    ours = IntegratedGradients(net).attribute(x, target=1, n_steps=1, method="riemann_right")
    torch.testing.assert_close(ours, (g * x).detach())


@pytest.mark.parametrize("batch", [None, 3])
def test_it_can_be_differentiated_again(batch: int | None) -> None:
    net = NETS["softplus"]().double()
    x, _, y = images()
    x.requires_grad_()
    parameters = list(net.parameters())

    def value() -> Tensor:
        a = IntegratedGradients(net).attribute(x, target=y, n_steps=4, internal_batch_size=batch, create_graph=True)
        return a.abs().sum()

    for tensors in (parameters, [x]):
        # The last bias moves no gradient: one pass leaves it out, two passes give zero.
        gradients = torch.autograd.grad(value(), tensors, allow_unused=True, materialize_grads=True)
        slope = sum(float((g * v).sum()) for g, v in zip(gradients, direction(tensors), strict=True))
        assert slope == pytest.approx(directional(value, tensors), rel=1e-5)


@pytest.mark.parametrize("layer", ["1", 1])
def test_the_layer_twin_is_captums_conductance(layer: str | int) -> None:
    net = mlp().double()
    x = torch.randn(3, 6, dtype=torch.float64)
    place = layer if isinstance(layer, str) else net[layer]
    ours, gap = PathLayerIG(net, place).attribute(x, target=1, n_steps=40, return_convergence_delta=True)
    theirs = captum.attr.LayerConductance(net, net[1]).attribute(x, target=1, n_steps=3000, method="riemann_right")
    torch.testing.assert_close(ours, theirs.detach(), rtol=2e-3, atol=1e-4)
    assert float(gap.abs().max()) < 1e-10


def test_another_path() -> None:
    net = mlp()
    x = torch.randn(2, 6)
    bent = IntegratedGradients(net).attribute(
        x, target=0, n_steps=200, method="riemann_middle", path=polyline(torch.ones(6))
    )
    line = IntegratedGradients(net).attribute(x, target=0, n_steps=200, method="riemann_middle")
    torch.testing.assert_close(bent.sum(1), line.sum(1), rtol=1e-2, atol=1e-3)
    assert float((bent - line).abs().max()) > 1e-3


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"method": "gauslegendre", "target": 0}, InvalidInput, "gausslegendre"),
        ({"n_steps": 0, "target": 0}, InvalidInput, "m ≥ 1"),
        ({"target": None}, InvalidInput, "target"),
        ({"target": 7}, InvalidInput, r"0\.\.2"),
        ({"target": 0, "baselines": torch.zeros(2, 5)}, InvalidInput, "baseline"),
        ({"target": 0, "internal_batch_size": 0}, InvalidInput, "internal_batch_size"),
        ({"target": 0, "internal_batch_size": "4"}, InvalidInput, "internal_batch_size"),
        ({"target": [0, 1, 2]}, InvalidInput, "one for each of 2 inputs"),
        ({"target": "cat"}, InvalidInput, "integer target"),
        ({"target": True}, InvalidInput, "integer class labels"),
        ({"target": 0, "baselines": torch.tensor(0.0)}, InvalidInput, "baseline"),
        ({"target": 0, "baselines": "black"}, InvalidInput, "a number or a tensor"),
        ({"target": 0, "baselines": torch.full((2, 6), float("nan"))}, InvalidInput, "NaN"),
    ],
)
def test_mistakes(arguments: dict, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        IntegratedGradients(mlp()).attribute(torch.randn(2, 6), **arguments)


def test_inputs_that_do_not_fit() -> None:
    net = TwoInputs()
    with pytest.raises(InvalidInput, match="one batch size"):
        IntegratedGradients(net).attribute((torch.randn(2, 3), torch.randn(3, 2, 5)), target=0)
    with pytest.raises(InvalidInput, match="at least one example"):
        IntegratedGradients(mlp()).attribute(torch.randn(0, 6), target=0)
    with pytest.raises(InvalidInput, match=r"float64 on cpu and torch\.float32"):
        IntegratedGradients(mlp()).attribute(torch.randn(2, 6).double(), target=0)


def test_a_layer_that_is_not_there() -> None:
    with pytest.raises(InvalidInput, match="not a submodule"):
        PathLayerIG(mlp(), nn.Linear(2, 2)).attribute(torch.randn(2, 6), target=0)
    with pytest.raises(UnsupportedModel, match="logits of shape"):
        IntegratedGradients(lambda x: x[:, None, :]).attribute(torch.randn(2, 6), target=0)
