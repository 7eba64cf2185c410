"""IG against its axioms, Captum and finite differences."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import captum.attr
import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from nets import NETS, Residual, Transformer, direction, directional, images, mlp
from robattr import (
    IG,
    Rule,
    at_input,
    at_layer,
    at_output,
    cross_entropy,
    gauss_legendre,
    l1,
    l2,
    left,
    linf,
    logit,
    margin,
    midpoint,
    polyline,
    power,
    right,
    smooth,
    straight,
    total,
)
from robattr.engine.traced_graph import trace
from robattr.errors import UnsupportedModel
from robattr.formula.ascent import grad_and_value
from robattr.formula.layers import Layer
from robattr.formula.network import Model, affine_split, bind, gradient, second_order
from robattr.formula.paths import Path
from robattr.formula.sizes import Size

PATHS = {
    "straight": straight,
    "polyline": polyline(lambda x, x1: torch.where(torch.arange(x.shape[1]) % 2 == 0, x1, x)),
    "detour": polyline(torch.tensor(0.3, dtype=torch.float64), lambda x, x1: x1 + 0.2),
}


def vectors(n: int = 4) -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    net = mlp().double()
    with torch.no_grad():
        for p in net.parameters():  # curved enough that paths and rules differ visibly
            p.mul_(2.0)
    return (
        net.requires_grad_(True),
        torch.randn(n, 6, dtype=torch.float64),
        torch.randn(n, 6, dtype=torch.float64),
        torch.arange(n) % 3,
    )


@pytest.mark.parametrize("scalar", [cross_entropy, logit, margin], ids=lambda f: f.__name__)
@pytest.mark.parametrize("path", sorted(PATHS))
@pytest.mark.parametrize("at", [at_input, at_layer("0"), at_layer("3"), at_output], ids=repr)
def test_completeness(scalar, path: str, at: Layer) -> None:
    net, x, x1, y = vectors()
    # One rule per segment of the path, so that none straddles a kink. The margin has kinks of its own, where the
    # runner-up class changes: there only many nodes help.
    base = midpoint(1000) if scalar is margin else gauss_legendre(64)
    pieces = len(getattr(PATHS[path], "waypoints", ())) + 1
    rule = Rule(
        tuple((t + i) / pieces for i in range(pieces) for t in base.nodes),
        tuple(w / pieces for _ in range(pieces) for w in base.weights),
    )
    a = IG(of=scalar, at=at, along=PATHS[path], rule=rule)(net, x, x1, y)
    moved = scalar(net, x1, y) - scalar(net, x, y)
    tolerance = 1e-2 if scalar is margin else 1e-9
    torch.testing.assert_close(a.reshape(len(x), -1).sum(1), moved, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("family", "order"), [(left, 1), (right, 1), (midpoint, 2)], ids=["left", "right", "midpoint"])
@pytest.mark.parametrize("at", [at_input, at_layer("1")], ids=repr)
def test_order_of_convergence(family, order: int, at: Layer) -> None:
    net, x, x1, y = vectors()
    exact = IG(at=at, rule=gauss_legendre(60))(net, x, x1, y)
    errors = [float((IG(at=at, rule=family(m))(net, x, x1, y) - exact).detach().norm()) for m in (64, 128)]
    assert math.log2(errors[0] / errors[1]) == pytest.approx(order, abs=0.1)


def test_gauss_legendre_converges_faster_than_any_power() -> None:
    net, x, x1, y = vectors()
    exact = IG(rule=gauss_legendre(60))(net, x, x1, y)
    errors = [float((IG(rule=gauss_legendre(m))(net, x, x1, y) - exact).detach().norm()) for m in (4, 8, 16)]
    assert errors[1] / errors[0] < 0.1
    assert errors[2] / errors[1] < 0.05


@pytest.mark.parametrize("method", ["riemann_left", "riemann_right", "riemann_middle", "gausslegendre"])
def test_input_ig_is_captums_value(method: str) -> None:
    rules = {"riemann_left": left, "riemann_right": right, "riemann_middle": midpoint, "gausslegendre": gauss_legendre}
    net, x, x1, y = vectors()
    ours = IG(of=logit, rule=rules[method](7))(net, x, x1, y).detach()
    theirs = captum.attr.IntegratedGradients(net).attribute(x1, baselines=x, target=y, n_steps=7, method=method)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)  # Captum keeps its nodes in float32


@pytest.mark.parametrize("name", ["0", "1", "3"])
def test_hidden_ig_is_captums_conductance_and_not_its_layer_ig(name: str) -> None:
    net, x, x1, y = vectors()
    # Captum's conductance differences h between neighbouring points: first order, so compare at a fine step.
    ours = IG(of=logit, at=at_layer(name), rule=gauss_legendre(40))(net, x, x1, y).detach()
    conductance = (
        captum.attr.LayerConductance(net, net.get_submodule(name))
        .attribute(x1, baselines=x, target=y, n_steps=4000, method="riemann_right")
        .detach()
    )
    layer_ig = captum.attr.LayerIntegratedGradients(net, net.get_submodule(name)).attribute(
        x1, baselines=x, target=y, n_steps=200
    )
    torch.testing.assert_close(ours, conductance, rtol=2e-3, atol=2e-4)
    if name == "1":  # before a linear map, or behind one, the two curves give the same
        assert float((ours - layer_ig).abs().max()) > 50 * float((ours - conductance).abs().max())


def test_a_path_has_the_right_ends_and_derivative() -> None:
    x, x1 = torch.randn(3, 5, dtype=torch.float64), torch.randn(3, 5, dtype=torch.float64)
    for path in PATHS.values():
        torch.testing.assert_close(path(x, x1, 0.0), x)
        torch.testing.assert_close(path(x, x1, 1.0), x1)
        for t in (0.1, 0.4, 0.9):
            slope = (path(x, x1, t + 1e-6) - path(x, x1, t - 1e-6)) / 2e-6
            torch.testing.assert_close(path.derivative(x, x1, t), slope, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("size", [total, l1, l2, linf, power(l1, 1.5)], ids=repr)
@pytest.mark.parametrize("chunk", [None, 2], ids=["one pass", "two passes"])
@pytest.mark.parametrize("at", [at_input, at_layer("1")], ids=repr)
def test_second_derivatives_match_finite_differences(size: Size, chunk: int | None, at: Layer) -> None:
    net, x, x1, y = vectors()
    change = size @ IG(at=at, rule=midpoint(5), chunk=chunk)
    parameters = list(net.parameters())
    x1.requires_grad_()
    x.requires_grad_()

    def value() -> Tensor:
        return change(net, x, x1, y).sum()

    for tensors in (parameters, [x1], [x]):
        gradients = torch.autograd.grad(value(), tensors)
        slope = sum(float((g * v).sum()) for g, v in zip(gradients, direction(tensors), strict=True))
        assert slope == pytest.approx(directional(value, tensors), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("q", [0.5, 1.0, 2.0])
def test_a_power_has_no_slope_where_nothing_changes(q: float) -> None:
    a = torch.tensor([[0.0, 0.0], [1.0, -3.0], [float("nan"), 0.0]], dtype=torch.float64, requires_grad=True)
    sizes = power(l1, q)(a)
    assert sizes[:2].tolist() == [0.0, 4.0**q]
    assert sizes[2].isnan()
    (slope,) = torch.autograd.grad(sizes[:2].sum(), a)
    assert slope[0].tolist() == [0.0, 0.0]
    assert slope[1].tolist() == pytest.approx([q * 4.0 ** (q - 1), -q * 4.0 ** (q - 1)])


@pytest.mark.parametrize("chunk", [None, 2], ids=["one pass", "two passes"])
@pytest.mark.parametrize("name", sorted(NETS))
def test_every_kind_of_network(name: str, chunk: int | None) -> None:
    """∂/∂θ and ∂/∂x' of ‖IG‖₁ in float64, with batch norm and dropout in training mode held still."""
    net = NETS[name]().double().train()
    x, x1, y = images()
    change = l1 @ IG(rule=midpoint(4), chunk=chunk)
    parameters = list(net.parameters())
    x1.requires_grad_()

    def value() -> Tensor:
        return change(net, x, x1, y).sum()

    for tensors in (parameters, [x1]):
        gradients = torch.autograd.grad(value(), tensors)
        slope = sum(float((g * v).sum()) for g, v in zip(gradients, direction(tensors), strict=True))
        assert abs(slope) > 1e-6
        assert slope == pytest.approx(directional(value, tensors, h=1e-7), rel=2e-5)


class Whole(nn.Module):
    """A network that cannot be cut behind its first layer, because nobody can see it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


@pytest.mark.parametrize("twin", [False, True], ids=["itself", "its twin"])
@pytest.mark.parametrize("chunk", [None, 2], ids=["one pass", "two passes"])
@pytest.mark.parametrize("name", ["relu in place", "softplus"])
def test_an_affine_first_layer_is_applied_once_and_changes_nothing(name: str, chunk: int | None, twin: bool) -> None:
    inner = NETS[name]().double()
    net, whole = (smooth(n) if twin else n for n in (inner, Whole(inner)))
    assert affine_split(net) is not None
    assert affine_split(whole) is None
    x, x1, y = images()
    x1.requires_grad_()
    change = l1 @ IG(rule=midpoint(5), chunk=chunk)
    wanted = [x1, *inner.parameters()]
    (a, da), (b, db) = ((v := change(n, x, x1, y), torch.autograd.grad(v.sum(), wanted)) for n in (net, whole))
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(da, db, rtol=1e-9, atol=1e-12)
    seen: list[int] = []
    inner[0].register_forward_hook(lambda _m, args, _out: seen.append(len(args[0])))  # type: ignore[operator]
    assert affine_split(net) is None  # the hook must see every node
    IG(rule=midpoint(5))(net, x, x1, y)
    assert max(seen) == 5 * len(x)


@pytest.mark.parametrize("chunk", [None, 7], ids=["one pass", "two passes"])
def test_a_scalar_that_touches_x_itself_is_attributed_in_full_behind_an_affine_first_layer(chunk: int | None) -> None:
    """A loss that normalises its input, or adds a term in x, sees x and never what the first layer makes of it."""
    net, x, x1, y = vectors()
    assert affine_split(net) is not None

    def normalising(model: Model, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(model, (x - 0.5) / 0.25, y) + x.square().sum(1)

    found = IG(of=normalising, rule=gauss_legendre(60), chunk=chunk)(net, x, x1, y)
    change = normalising(net, x1, y) - normalising(net, x, y)
    torch.testing.assert_close(found.sum(1), change, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found, IG(of=normalising, rule=gauss_legendre(60))(Whole(net), x, x1, y))


def test_halves_that_share_a_weight_stay_together() -> None:
    net = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
    assert affine_split(net) is not None
    net[2].weight = net[0].weight
    assert affine_split(net) is None


@pytest.mark.parametrize("where", ["the network", "its first layer"])
def test_a_forward_pass_that_was_put_in_place_of_the_classs_is_heeded(where: str) -> None:
    """As adapters and hooks of other libraries do it: what is called is then no affine layer any more."""
    net = NETS["softplus"]().double()
    part = net if where == "the network" else net[0]  # type: ignore[index]
    plain = part.forward
    part.forward = lambda v: plain(v).square()  # type: ignore[method-assign]
    x, x1, y = images()
    torch.testing.assert_close(IG()(net, x, x1, y), IG()(Whole(net), x, x1, y), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("chunk", [1, 3, 4, 99])
@pytest.mark.parametrize("at", [at_input, at_layer("norm")], ids=repr)
def test_chunks_change_nothing(chunk: int, at: Layer) -> None:
    net = Residual().double()
    x, x1, y = images()
    values, gradients = [], []
    for c in (None, chunk):
        change = l1 @ IG(at=at, rule=midpoint(7), chunk=c)
        value = change(net, x, x1, y)
        values.append(value.detach())
        gradients.append(torch.autograd.grad(value.sum(), list(net.parameters()), allow_unused=True))
    torch.testing.assert_close(values[0], values[1], rtol=1e-12, atol=1e-14)
    for a, b in zip(*gradients, strict=True):
        # A parameter that the value does not touch has no gradient in one pass, and zero in two.
        expected = torch.zeros_like(b) if a is None else a
        torch.testing.assert_close(b, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("activation", ["relu", "leaky"])  # where relu is off both factors vanish: leaky tells
def test_a_hidden_layer_survives_in_place_activations(activation: str) -> None:
    plain, in_place = NETS[activation]().double(), NETS[f"{activation} in place"]().double()
    in_place.load_state_dict(plain.state_dict())
    x, x1, y = images()
    ig = IG(at=at_layer("0"), rule=midpoint(3))
    torch.testing.assert_close(ig(plain, x, x1, y), ig(in_place, x, x1, y))


def test_the_curve_matters() -> None:
    net, x, x1, y = vectors()
    along: list[Path] = [straight, PATHS["polyline"]]
    a, b = (IG(along=r, rule=midpoint(40))(net, x, x1, y) for r in along)
    assert float((a - b).detach().abs().max()) > 1e-2


def test_the_gradient_is_torch_funcs() -> None:
    """Values, derivatives in z and derivatives in what f holds; with nothing to differentiate it says so."""
    w = torch.rand(3, dtype=torch.float64, requires_grad=True)
    z = torch.rand(4, 3, dtype=torch.float64, requires_grad=True)

    def f(v: Tensor) -> Tensor:
        return (w * v**3).sum(1).sin()

    plain = gradient(f, z)
    pure = torch.func.grad(lambda v: f(v).sum())(z)
    assert torch.equal(plain, pure)
    for a, b in zip(*(torch.autograd.grad((g**2).sum(), (w, z)) for g in (plain, pure)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=0)
    with torch.no_grad():
        still = gradient(f, z)
    assert torch.equal(still, pure)
    assert not still.requires_grad
    for constant in (lambda v: torch.ones(len(v)), lambda v: w.sum().expand(len(v))):
        with pytest.raises(UnsupportedModel, match="cannot be differentiated"):
            gradient(constant, z)


def test_attention_is_fused_where_no_second_derivative_follows() -> None:
    """The maps of an evaluation, forward passes and prediction attacks; not what training and attacks differentiate."""
    net = Transformer().eval().double()
    x, y = torch.rand(3, 8, 8, dtype=torch.float64), torch.tensor([0, 1, 2])
    ig = IG(of=logit, rule=midpoint(3))

    def attention(f: Callable[[Tensor], Tensor]) -> set[str]:
        with second_order(net), torch.no_grad():
            graph, _, _ = trace(f, (x,))
        names = " ".join(str(node.target) for node in graph.graph.nodes).replace("_log_softmax", "")
        return {kind for kind, word in (("fused", "_attention"), ("plain", "softmax")) if word in names}

    bound = bind(net).detach()
    assert attention(bound) == {"fused"}
    assert attention(lambda x: ig(bound, torch.zeros_like(x), x, y)) == {"fused"}
    assert attention(lambda x: grad_and_value(lambda z: cross_entropy(bound, z, y))(x)[0]) == {"fused"}
    penalty = l1 @ ig
    second = grad_and_value(lambda z: penalty(bound, torch.zeros_like(z), z, y))
    assert attention(lambda x: second(x)[0]) == {"plain"}
    layer = l1 @ replace(ig, at=at_layer("encoder"))
    assert attention(lambda x: layer(bound, torch.zeros_like(x), x, y)) == {"plain"}
    with second_order(net), sdpa_kernel(SDPBackend.MATH):
        plain = ig(net, torch.zeros_like(x), x, y)  # differentiable: by the plain kernel
        with torch.no_grad():
            torch.testing.assert_close(ig(bound, torch.zeros_like(x), x, y), plain.detach(), rtol=1e-9, atol=1e-12)
