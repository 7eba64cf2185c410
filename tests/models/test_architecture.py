"""Networks by spec: sizes, seeds, second derivatives, and specs that cannot be built."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import grad

from robattr.errors import InvalidInput
from robattr.models import architectures, flower_resnet, for_dataset, gtsrb_resnet, paper_cnn, resnet, small_cnn
from robattr.models.architecture import Spec, build


def parameters(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


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
    with torch.device("meta"):  # shapes without numbers
        net = for_dataset(dataset)
        assert net(torch.zeros(2, *shape)).shape == (2, classes)
        rebuilt = build(Spec.from_json(net.spec.to_json()))
    assert parameters(net) == count
    assert rebuilt.spec == net.spec
    assert parameters(rebuilt) == count


@pytest.mark.parametrize("make", [lambda: paper_cnn(size=8), small_cnn, gtsrb_resnet, flower_resnet])
def test_initialisation_follows_the_global_seed(make) -> None:
    torch.manual_seed(5)
    first = make().state_dict()
    again = make().state_dict()
    torch.manual_seed(5)
    assert all(torch.equal(a, b) for a, b in zip(first.values(), make().state_dict().values(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first.values(), again.values(), strict=True))


@pytest.mark.parametrize(
    ("make", "shape", "top"),
    [
        (small_cnn, (1, 28, 28), 1.0),
        (lambda: paper_cnn(size=8), (1, 8, 8), 1.0),
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


def test_unknown_names_and_sizes_are_refused() -> None:
    with pytest.raises(InvalidInput, match="did you mean 'mnist'"):
        for_dataset("minst")
    with pytest.raises(InvalidInput, match="did you mean 'small_cnn'"):
        build(Spec("smal_cnn"))
    with pytest.raises(InvalidInput, match="does not take"):
        build(Spec("small_cnn", {"depth": 3}))
    for spec in ('{"name": "resnet"}', "[]", "{"):
        with pytest.raises(InvalidInput, match="spec"):
            Spec.from_json(spec)
    for make in (lambda: paper_cnn(0), lambda: small_cnn(2.5), lambda: resnet(10, True), lambda: resnet(10, 10**9)):
        with pytest.raises(InvalidInput, match="expected"):
            make()
    assert set(architectures) >= {"paper_cnn", "small_cnn", "resnet"}
