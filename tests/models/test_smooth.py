"""The softplus twin: equal to hand-written twins, smooth to second order, and owner of nothing."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad

from memory_fixtures import DEVICES
from robattr.errors import InvalidInput, UnsupportedModel
from robattr.models import Smooth, flower_resnet, gtsrb_resnet, paper_cnn, small_cnn, smooth


def sp(u: Tensor, beta: float) -> Tensor:
    return torch.logaddexp(beta * u, torch.zeros_like(u)) / beta


def leaky(u: Tensor, beta: float, slope: float) -> Tensor:
    return slope * u + (1 - slope) * sp(u, beta)


class Wrap(nn.Module):
    """A linear layer, then `act`: a user's module whose activation is any piece of code."""

    def __init__(self, act) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 5)
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.linear(x))


def ignoring(method: str):
    def act(u: Tensor) -> Tensor:
        alias = u.view(-1, 5)
        getattr(u, method)()  # the result is thrown away: only the overwritten tensor counts
        return alias

    return act


SLOPES = torch.linspace(-0.2, 0.6, 5, dtype=torch.float64)


def with_slopes() -> nn.PReLU:
    module = nn.PReLU(5, dtype=torch.float64)
    with torch.no_grad():
        module.weight.copy_(SLOPES)
    return module


RELUS = {
    "nn.ReLU": nn.ReLU(),
    "nn.ReLU in place": nn.ReLU(inplace=True),
    "F.relu": F.relu,
    "F.relu in place": lambda u: F.relu(u, inplace=True),
    "F.relu_": F.relu_,
    "torch.relu": torch.relu,
    "torch.relu_": torch.relu_,
    "Tensor.relu": lambda u: u.relu(),
    "Tensor.relu_": lambda u: u.relu_(),
    "Tensor.relu_, result ignored": ignoring("relu_"),
    "keyword input": lambda u: F.relu(input=u),
}
LEAKIES = {
    "nn.LeakyReLU": nn.LeakyReLU(0.2),
    "nn.LeakyReLU in place": nn.LeakyReLU(0.2, inplace=True),
    "F.leaky_relu": lambda u: F.leaky_relu(u, 0.2),
    "F.leaky_relu keywords": lambda u: F.leaky_relu(u, negative_slope=0.2, inplace=True),
    "F.leaky_relu_": lambda u: F.leaky_relu_(u, 0.2),
}
OTHERS = {
    "nn.PReLU": (with_slopes(), lambda u, b: SLOPES * u + (1 - SLOPES) * sp(u, b)),
    "Tensor.prelu": (lambda u: u.prelu(SLOPES), lambda u, b: SLOPES * u + (1 - SLOPES) * sp(u, b)),
    "nn.ReLU6": (nn.ReLU6(), lambda u, b: sp(u, b) - sp(u - 6, b)),
    "F.relu6": (lambda u: F.relu6(u, inplace=True), lambda u, b: sp(u, b) - sp(u - 6, b)),
    "nn.Hardtanh": (nn.Hardtanh(-2, 1, inplace=True), lambda u, b: -2 + sp(u + 2, b) - sp(u - 1, b)),
    "F.hardtanh_": (lambda u: F.hardtanh_(u, -2.0, 1.0), lambda u, b: -2 + sp(u + 2, b) - sp(u - 1, b)),
}
UNTOUCHED = {
    "GELU": nn.GELU(),
    "SiLU": nn.SiLU(),
    "ELU": nn.ELU(),
    "clamp(min=0), as a guard": lambda u: u.clamp(min=0),
    "max-pool": lambda u: F.max_pool1d(u[:, None], 2).flatten(1),
}
CASES = [
    *[pytest.param(act, sp, id=name) for name, act in RELUS.items()],
    *[pytest.param(act, lambda u, b: leaky(u, b, 0.2), id=name) for name, act in LEAKIES.items()],
    *[pytest.param(act, twin, id=name) for name, (act, twin) in OTHERS.items()],
    *[pytest.param(act, lambda u, b, act=act: act(u), id=name) for name, act in UNTOUCHED.items()],
]


@pytest.mark.parametrize(("act", "expected"), CASES)
def test_every_spelling_of_an_activation(act, expected) -> None:
    """Value, gradient and second derivative of the twin equal those of the hand-written formula."""
    torch.manual_seed(0)
    net = Wrap(act).double().eval().requires_grad_(False)
    twin = smooth(net, 3.0)
    x, v = 4 * torch.randn(7, 6, dtype=torch.float64), torch.randn(7, 6, dtype=torch.float64)

    def by_hand(z: Tensor) -> Tensor:
        return expected(net.linear(z), 3.0)

    def first(model):
        return grad(lambda z: model(z).square().sum())

    def second(model):
        return grad(lambda z: (first(model)(z) * v).sum())

    torch.testing.assert_close(twin(x), by_hand(x))
    torch.testing.assert_close(first(twin)(x), first(by_hand)(x))
    torch.testing.assert_close(second(twin)(x), second(by_hand)(x))
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(twin(leaf).square().sum(), leaf, create_graph=True)
    (again,) = torch.autograd.grad((gradient * v).sum(), leaf)
    torch.testing.assert_close(again, second(by_hand)(x))


def hand_written_cnn(net: nn.Module, x: Tensor, beta: float) -> Tensor:
    for layer in net:
        x = sp(x, beta) if isinstance(layer, nn.ReLU) else layer(x)
    return x


def hand_written_resnet(net: nn.Module, x: Tensor, beta: float) -> Tensor:
    x = net.stem(net.standardise(x))
    for unit in net.units:
        active = leaky(x, beta, 0.1)
        shortcut = active if unit.after_activation else x
        if unit.grow:
            shortcut = F.pad(F.avg_pool2d(shortcut, 2), (0, 0, 0, 0, unit.grow, unit.grow))
        x = unit.conv2(leaky(unit.conv1(active), beta, 0.1)) + shortcut
    return net.fc(leaky(x, beta, 0.1).mean((2, 3)))


NETS = [
    pytest.param(paper_cnn, hand_written_cnn, (1, 28, 28), 1.0, id="paper_cnn"),
    pytest.param(small_cnn, hand_written_cnn, (1, 28, 28), 1.0, id="small_cnn"),
    pytest.param(gtsrb_resnet, hand_written_resnet, (3, 32, 32), 255.0, id="gtsrb_resnet"),
    pytest.param(flower_resnet, hand_written_resnet, (3, 32, 32), 255.0, id="flower_resnet"),
]


@pytest.mark.parametrize(("make", "by_hand", "shape", "top"), NETS)
def test_twins_of_the_papers_networks(make, by_hand, shape: tuple[int, ...], top: float) -> None:
    torch.manual_seed(1)
    net = make().double()
    x = top * torch.rand(2, *shape, dtype=torch.float64)
    plain = net(x)
    torch.testing.assert_close(smooth(net)(x), by_hand(net, x, 1.0))
    errors = [(smooth(net, beta)(x) - plain).abs().max().item() for beta in (1.0, 30.0, 1e3, 1e6)]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 1e-2
    assert errors[-1] < 1e-4 * plain.abs().max().item()
    assert torch.equal(net(x), plain)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_softplus_is_smooth_to_second_order_everywhere(dtype: torch.dtype) -> None:
    """Across the kernel's threshold and far out: s, s′ = σ(βu), s″ = β σ(βu) σ(−βu), against NumPy."""
    twin = smooth(nn.ReLU(), 2.0)
    grid = torch.cat([torch.linspace(-60, 60, 2001), torch.tensor([19.999, 20.0, 20.001, 1e4, -1e4])])
    u = grid.to(dtype).requires_grad_()
    value = twin(u)
    (first,) = torch.autograd.grad(value.sum(), u, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), u)
    z = 2 * u.detach().double().numpy()
    sigma, rest = np.exp(-np.logaddexp(0, -z)), np.exp(-np.logaddexp(0, z))
    tol = 1e-6 if dtype == torch.float32 else 1e-14
    np.testing.assert_allclose(value.detach().double().numpy(), np.logaddexp(0, z) / 2, rtol=tol, atol=tol)
    np.testing.assert_allclose(first.detach().double().numpy(), sigma, rtol=tol, atol=tol)
    np.testing.assert_allclose(second.double().numpy(), 2 * sigma * rest, atol=tol)


class Block(nn.Module):
    """Root-level parameter and buffer, functional dropout on the root's own flag, batch norm, in-place activation."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("shift", torch.tensor(0.3))
        self.linear = nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.linear(x)) * self.scale + self.shift
        return F.dropout(F.relu(h, inplace=True), 0.5, training=self.training)


def test_the_twin_shares_everything_under_the_same_names() -> None:
    torch.manual_seed(2)
    net = Block().eval()
    twin = smooth(net, 2.0)
    x = torch.randn(4, 6)
    assert dict(twin.named_parameters()).keys() == dict(net.named_parameters()).keys()
    assert all(a is b for a, b in zip(twin.parameters(), net.parameters(), strict=True))
    assert twin.state_dict().keys() == net.state_dict().keys()
    assert twin.get_submodule("linear") is net.linear
    assert twin.twin_of is net
    before = twin(x)
    with torch.no_grad():
        net.scale.mul_(2)
        net.linear.weight = nn.Parameter(torch.eye(6))
    assert not torch.equal(twin(x), before)
    assert torch.equal(twin.linear.weight, torch.eye(6))
    assert not [name for name, _ in net.named_modules() if "smooth" in name.lower()]


def test_flags_belong_to_the_network() -> None:
    for flag in (True, False):
        net = Block().train(flag)
        net.norm.eval()
        twin = smooth(net)
        assert net.training is twin.training is flag
        assert not net.norm.training
        twin(torch.randn(4, 6))
        assert net.training is flag
    twin.eval()
    assert not net.training
    twin.training = True
    assert net.training


def test_functional_call_reaches_root_parameters_and_buffers() -> None:
    torch.manual_seed(3)
    net = Block().eval()
    twin = smooth(net)
    x = torch.randn(4, 6)
    expected = twin(x)
    values = {**dict(twin.named_parameters()), **dict(twin.named_buffers())}
    other = {name: value + 1 if name in ("scale", "shift") else value for name, value in values.items()}
    called = functional_call(twin, other, (x,))
    assert not torch.allclose(called, expected)
    torch.testing.assert_close(called, sp(net.norm(net.linear(x)) * 2.5 + 1.3, 1.0))
    torch.testing.assert_close(twin(x), expected)
    chosen = {name: values[name] for name in ("scale", "shift", "norm.weight")}
    gradients = grad(lambda p: functional_call(twin, {**values, **p}, (x,)).sum())(chosen)
    torch.testing.assert_close(gradients["shift"], torch.sigmoid(net.norm(net.linear(x)) * 1.5 + 0.3).sum())
    assert gradients["norm.weight"].abs().sum() > 0


def test_hooks_copies_and_moves() -> None:
    net = small_cnn()
    twin = smooth(net, 4.0)
    seen = []
    handle = twin.get_submodule("relu2").register_forward_hook(lambda module, args, out: seen.append(out))
    x = torch.rand(2, 1, 28, 28)
    twin(x)
    handle.remove()
    assert (seen[0] > 0).all()  # the twin's values, not the ReLU's
    clone = copy.deepcopy(twin)
    with torch.no_grad():
        net.fc2.bias.add_(1)
    torch.testing.assert_close(clone(x) + 1, twin(x))
    assert clone.fc2.weight is clone.twin_of.fc2.weight
    twin.double()
    assert net.fc1.weight.dtype == torch.float64
    assert twin(x.double()).dtype == torch.float64


def test_the_twin_ends_with_the_call() -> None:
    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("from the user's forward")

    u = torch.tensor([-1.0, 2.0])
    smooth(nn.ReLU())(u)
    with pytest.raises(RuntimeError, match="user's forward"):
        smooth(Broken())(u)
    assert torch.equal(F.relu(u), torch.tensor([0.0, 2.0]))
    torch.testing.assert_close(smooth(smooth(nn.ReLU(), 2.0), 5.0)(u), sp(u, 2.0))  # the innermost twin decides


@pytest.mark.parametrize(
    ("net", "shape", "backend"),
    [
        pytest.param(small_cnn(), (2, 1, 28, 28), "aot_eager", id="small_cnn"),
        pytest.param(flower_resnet(), (2, 3, 16, 16), "aot_eager", id="flower_resnet"),
        pytest.param(Wrap(ignoring("relu_")), (2, 6), "aot_eager", id="in place, result ignored"),
        pytest.param(Wrap(ignoring("relu_")), (2, 6), "eager", id="in place, result ignored, before autograd's trace"),
    ],
)
def test_inside_a_compiled_gradient_function(net: nn.Module, shape: tuple[int, ...], backend: str) -> None:
    """The twin of an uncompiled module, inside the function that returns its second derivative: one whole graph."""
    torch.manual_seed(4)
    torch._dynamo.reset()
    twin = smooth(net.eval())
    weights = {name: value.detach() for name, value in twin.named_parameters()}
    x = torch.rand(shape)

    def second(p: dict[str, Tensor], z: Tensor) -> Tensor:
        def first(q: Tensor) -> Tensor:
            return grad(lambda r: functional_call(twin, p, (r,)).square().sum())(q)

        return grad(lambda q: first(q).square().sum())(z)

    expected = second(weights, x)
    compiled = torch.compile(second, backend=backend, dynamic=False, fullgraph=True)
    torch.testing.assert_close(compiled(weights, x), expected, rtol=1e-4, atol=1e-6 * expected.abs().max().item())
    torch._dynamo.reset()


class Exportable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 5), nn.ReLU6(), nn.LeakyReLU(0.1, inplace=True), nn.PReLU())

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.layers(x) - 0.1, inplace=True)


def test_traced_and_exported_graphs() -> None:
    torch.manual_seed(5)
    net, x = Exportable().eval(), torch.randn(4, 6)
    expected = smooth(net, 2.0)(x)
    assert not torch.allclose(expected, net(x))
    torch.testing.assert_close(smooth(torch.fx.symbolic_trace(net), 2.0)(x), expected)
    torch.testing.assert_close(smooth(torch.export.export(net, (x,)).module(), 2.0)(x), expected)


def test_what_cannot_be_smoothed_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match=r"nn\.Module to smooth"):
        smooth(torch.relu)
    with pytest.raises(UnsupportedModel, match="TorchScript"):
        smooth(nn.Sequential(nn.Linear(2, 2), torch.jit.ScriptModule()))
    for beta in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(InvalidInput, match="beta > 0"):
            smooth(nn.ReLU(), beta)
    assert isinstance(smooth(nn.ReLU()), Smooth)


def test_a_layer_may_be_called_as_one_likes() -> None:
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module, self.beta = nn.Sequential(nn.Linear(3, 3), nn.ReLU()), nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.beta(self.module(x))

    net, x = Wrapped(), torch.randn(4, 3)
    twin = smooth(net, 2.0)
    expected = net.beta(F.softplus(net.module[0](x), 2.0))
    torch.testing.assert_close(torch.func.functional_call(twin, dict(twin.named_parameters()), (x,)), expected)


def rescaled(net: nn.Sequential, factor: float) -> nn.Sequential:
    """The same function: every input of a ReLU is `factor` times as large, and the last layer makes up for it."""
    other = copy.deepcopy(net)
    layers = [part for part in other if isinstance(part, nn.Conv2d | nn.Linear)]
    with torch.no_grad():
        layers[0].weight *= factor
        for layer in layers[:-1]:
            layer.bias *= factor
        layers[-1].weight /= factor
    return other


@pytest.mark.parametrize("factor", [1e-3, 30.0])
def test_the_relative_twin_does_not_see_how_the_weights_are_scaled(factor: float) -> None:
    """Values and input gradients of the relative twins are equal; those of the plain twins are not."""
    torch.manual_seed(2)
    net = small_cnn().double()
    x = torch.rand(3, 1, 28, 28, dtype=torch.float64, requires_grad=True)
    nets = net, rescaled(net, factor)
    torch.testing.assert_close(nets[1](x), nets[0](x), rtol=1e-9, atol=1e-9)
    for relative in (True, False):
        values = [smooth(each, 2.0, relative=relative)(x) for each in nets]
        slopes = [torch.autograd.grad(value.square().sum(), x)[0] for value in values]
        alike = [torch.allclose(*pair, rtol=1e-8, atol=1e-10) for pair in (values, slopes)]
        assert alike == [relative, relative]


def test_the_relative_twin_of_one_value_an_example_is_in_units_of_that_value() -> None:
    u = torch.tensor([-3.0, 0.5, 200.0], dtype=torch.float64)
    together = smooth(nn.ReLU(), 5.0, relative=True)(u)
    torch.testing.assert_close(together, u.abs() * torch.log1p(torch.exp(5 * u.sign())) / 5)


def test_the_relative_twin_measures_each_example_for_itself() -> None:
    u = torch.tensor([[3.0, -4.0], [300.0, -400.0], [0.0, 0.0]], dtype=torch.float64)
    soft = smooth(nn.ReLU(), 5.0, relative=True)(u)
    size = math.sqrt(12.5)
    by_hand = [size * math.log1p(math.exp(5 * v / size)) / 5 for v in (3.0, -4.0)]
    torch.testing.assert_close(soft[0], torch.tensor(by_hand, dtype=torch.float64))
    torch.testing.assert_close(soft[1], 100 * soft[0])
    assert soft[2].abs().max() < 1e-300  # nothing to measure, and no division by zero
    plain = torch.func.vmap(torch.func.grad(lambda v: smooth(nn.ReLU(), 5.0, relative=True)(v[None]).sum()))(u[:2])
    torch.testing.assert_close(plain, torch.sigmoid(5 * u[:2] / torch.tensor([[size], [100 * size]])))


@pytest.mark.parametrize("relative", [True, False])
@pytest.mark.parametrize("device", DEVICES)
def test_a_twin_keeps_the_type_of_its_input_as_a_relu_does(device: str, relative: bool) -> None:
    u = torch.randn(2, 5, dtype=torch.bfloat16, device=device)
    for beta in (3.0, torch.tensor(3.0, device=device)):
        with torch.autocast(device, torch.bfloat16):
            assert Smooth(nn.ReLU(), beta, relative=relative)(u).dtype == torch.bfloat16
