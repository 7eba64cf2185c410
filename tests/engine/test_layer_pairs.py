"""Pairs of layers as one function have the derivatives of torch's layers, and store no first result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from robattr.engine import forms, layer_pairs
from robattr.engine.layer_pairs import LayerPairs
from robattr.formula.convolution import custom_derivatives

aten = torch.ops.aten
POOLS = {aten.max_pool2d_with_indices.default, aten.max_pool2d_with_indices_backward.default}


@pytest.fixture(autouse=True)
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "applies", lambda x: True)


def image(*shape: int, seed: int = 0, last: bool = True) -> Tensor:
    """Numbers among which windows have ties, and none above 0."""
    drawn = torch.randint(-3, 3, shape, generator=torch.Generator().manual_seed(seed)).double()
    return drawn.contiguous(memory_format=torch.channels_last) if last else drawn


def derivatives(layers: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    """f(x), a first derivative of it and a second one."""
    x = x.detach().requires_grad_()
    out = layers(x)
    weights = torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view_as(out)
    (first,) = torch.autograd.grad((weights * out.pow(3)).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad((first * torch.linspace(1, 3, x.numel(), dtype=x.dtype).view_as(x)).sum(), x)
    return [out.detach(), first.detach(), second]


def paired(layers: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    with LayerPairs(), custom_derivatives():
        return derivatives(layers, x)


def operators(layers: Callable[[Tensor], Tensor], x: Tensor) -> set[Any]:
    graph = make_fx(lambda z: paired(layers, z))(x)
    graph.graph.eliminate_dead_code()
    return {node.target for node in graph.graph.nodes}


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("activation", [F.relu, torch.relu, Tensor.relu, nn.ReLU(), nn.Identity(), torch.tanh])
@pytest.mark.parametrize("window", [2, (2, 3), (1, 2)])
def test_a_pool_behind_an_activation_has_torchs_derivatives(
    activation: Callable[[Tensor], Tensor], window: int | tuple[int, int], last: bool
) -> None:
    def layers(x: Tensor) -> Tensor:
        return F.max_pool2d(activation(x), window)

    x = image(3, 4, 6, 6, last=last)
    torch.testing.assert_close(paired(layers, x), derivatives(layers, x), rtol=0, atol=0)
    assert not POOLS & operators(layers, x)


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_layer_behind_a_flattened_image_has_torchs_derivatives(bias: bool, last: bool) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5, bias=bias)).double()
    x = image(3, 4, 6, 6, last=last)
    torch.testing.assert_close(paired(net, x), derivatives(net, x))
    weights = []
    for run in (paired, derivatives):
        net.zero_grad()
        with LayerPairs() if run is paired else custom_derivatives():
            net(x).square().sum().backward()
        weights.append([p.grad for p in net.parameters()])
    torch.testing.assert_close(*weights)


@pytest.mark.parametrize(
    ("layers", "wanted"),
    [
        (lambda x: F.max_pool2d(F.relu(x), 2), 1),
        (lambda x: F.linear(x.flatten(1), torch.linspace(-1, 1, 2 * 144, dtype=x.dtype).view(2, 144)), 1),
        (nn.Sequential(nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5)).double(), 2),
        (lambda x: F.max_pool2d(torch.tanh(x), 2), 0),
        (lambda x: F.linear(x.contiguous().flatten(1), torch.ones(2, 144, dtype=x.dtype)), 0),
    ],
)
def test_pairs_are_found(layers: Callable[[Tensor], Tensor], wanted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[bool] = []
    given_for = layer_pairs._given_for

    def watched(*args: Any) -> Tensor | None:
        given = given_for(*args)
        found.append(given is not None)
        return given

    monkeypatch.setattr(layer_pairs, "_given_for", watched)
    paired(layers, image(3, 4, 6, 6))
    assert sum(found) == wanted
    monkeypatch.setattr(forms, "applies", lambda x: False)
    paired(layers, image(3, 4, 6, 6))
    assert sum(found) == wanted, "elsewhere none"


def pool_of_something_else(x: Tensor) -> Tensor:
    rectified = F.relu(x)
    return F.max_pool2d(rectified + 1, 2) + rectified[:, :, ::2, ::2]


def given_changed_in_place(x: Tensor) -> Tensor:
    given = x * 1
    rectified = F.relu(given)
    given.sub_(1)
    return F.max_pool2d(rectified, 2)


def in_place_activation(x: Tensor) -> Tensor:
    given = x * 1
    F.relu(given, inplace=True)
    return F.max_pool2d(given, 2)


def detached(x: Tensor) -> Tensor:
    with torch.no_grad():
        rectified = F.relu(x)
    return F.max_pool2d(rectified, 2) * x.mean()


def hooked(x: Tensor) -> Tensor:
    rectified = F.relu(x)
    rectified.register_hook(lambda g: 3 * g)
    return F.max_pool2d(rectified, 2)


def hooked_and_flattened(x: Tensor) -> Tensor:
    flat = x.flatten(1)
    flat.register_hook(lambda g: 3 * g)
    return F.linear(flat, torch.linspace(-1, 1, 2 * 144, dtype=x.dtype).view(2, 144))


def flattened_and_changed(x: Tensor) -> Tensor:
    return F.linear(x.flatten(1).add_(1), torch.linspace(-1, 1, 2 * 144, dtype=x.dtype).view(2, 144))


def partly_flattened(x: Tensor) -> Tensor:
    return F.linear(x.flatten(1, 2), torch.linspace(-1, 1, 2 * 6, dtype=x.dtype).view(2, 6))


@pytest.mark.parametrize(
    "layers",
    [
        pool_of_something_else, given_changed_in_place, in_place_activation, flattened_and_changed, partly_flattened,
        detached, hooked, hooked_and_flattened,
        lambda x: F.linear(x.flatten(), x.new_ones(2, 3 * 144))[None],
        lambda x: F.linear(x.flatten(1), torch.linspace(-1, 1, 144, dtype=x.dtype)),
    ],
)  # fmt: skip
def test_what_looks_like_a_pair_keeps_its_values(layers: Callable[[Tensor], Tensor]) -> None:
    x = image(3, 4, 6, 6, seed=1)
    torch.testing.assert_close(paired(layers, x), derivatives(layers, x))


def test_a_result_that_is_changed_in_place_is_no_longer_rectified() -> None:
    x = image(3, 4, 6, 6, seed=1)
    with LayerPairs():
        rectified = F.relu(x)
        torch.testing.assert_close(F.max_pool2d(rectified.mul_(-1), 2), F.max_pool2d(-x.relu(), 2))


@pytest.mark.parametrize(
    "pool",
    [
        nn.MaxPool2d(3, stride=2), nn.MaxPool2d(4), nn.MaxPool2d(2, padding=1), nn.MaxPool2d(2, dilation=2),
        nn.MaxPool2d(4, ceil_mode=True), nn.MaxPool2d(2, return_indices=True),
    ],
)  # fmt: skip
def test_other_windows_keep_the_operator_of_torch(pool: nn.MaxPool2d) -> None:
    def layers(x: Tensor) -> Tensor:
        out = pool(F.relu(x))
        return out[0] if pool.return_indices else out  # type: ignore[no-any-return]

    x = image(2, 3, 6, 6)
    assert operators(layers, x) >= POOLS
    torch.testing.assert_close(paired(layers, x), derivatives(layers, x))


def test_windows_of_one_image_and_of_series_are_torchs() -> None:
    for x, layer in ((image(2, 6, 6, last=False), nn.MaxPool2d(2)), (image(2, 3, 8, last=False), nn.MaxPool1d(2))):
        torch.testing.assert_close(paired(layer, x), derivatives(layer, x))


def test_a_window_too_large_for_the_code_is_torchs() -> None:
    x = image(1, 2, 12, 12)
    assert operators(nn.MaxPool2d(12), x) >= POOLS


def test_a_pair_elsewhere_than_in_bf16_on_a_gpu_is_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "applies", lambda x: False)
    net = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5)).double()
    assert operators(net, image(3, 4, 6, 6)) >= POOLS
