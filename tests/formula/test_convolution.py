"""Convolutions with our own derivatives: values agree with torch, and no kernel is as large as an image."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.fx import GraphModule

from robattr import IG, l1, midpoint
from robattr.engine import precision
from robattr.engine.traced_graph import trace
from robattr.formula import convolution
from robattr.formula.convolution import custom_derivatives
from robattr.formula.network import bind
from robattr.models import flower_resnet, gtsrb_resnet, paper_cnn

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]

# dimensions, side, kernel, stride, padding, dilation, groups
CASES = {
    "1d": (1, 6, 3, 1, 0, 1, 1),
    "1d strided, grouped": (1, 7, 3, 2, 1, 1, 2),
    "2d": (2, 4, 3, 1, 1, 1, 1),
    "2d strided": (2, 5, 3, 2, 1, 1, 1),
    "2d strided, remainder": (2, 6, 3, 2, 0, 1, 1),  # the last row is not read
    "2d dilated, grouped": (2, 5, 2, 1, 1, 2, 2),
    "2d, two strides and paddings": (2, 5, (3, 1), (2, 1), (1, 0), (1, 2), 1),
    "2d valid": (2, 4, 2, 1, "valid", 1, 1),
    "2d same": (2, 4, 3, 1, "same", 1, 1),
    "2d same, even kernel": (2, 4, 2, 1, "same", 1, 1),
    "3d strided": (3, 3, 2, 2, 1, 1, 1),
    "3d same, grouped": (3, 2, (3, 2, 1), 1, "same", 1, 2),
}
CONVOLUTIONS: tuple[Callable[..., Tensor], ...] = (F.conv1d, F.conv2d, F.conv3d)
TRANSPOSED: tuple[Callable[..., Tensor], ...] = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)


def every_derivative(f: Callable[..., Tensor], *operands: Tensor) -> list[Tensor]:
    """f, its gradients, and the gradients of ‖gradients‖²: every second derivative of the trilinear form."""
    operands = tuple(t.detach().requires_grad_() for t in operands)
    out = f(*operands)
    v = torch.linspace(-1, 1, out.numel(), dtype=out.dtype, device=out.device).view_as(out).requires_grad_()
    first = torch.autograd.grad((out.sin() * v).sum(), operands, create_graph=True)
    size = torch.stack([g.square().sum() for g in first]).sum()
    return [out, *first, *torch.autograd.grad(size, (*operands, v))]


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
def test_derivatives_are_torchs(name: str, traced: bool) -> None:
    n, side, kernel, stride, padding, dilation, groups = CASES[name]
    sides = (kernel,) * n if isinstance(kernel, int) else kernel
    x = torch.rand(2, 2, *(side,) * n, dtype=torch.float64)
    w, b = torch.rand(4, 2 // groups, *sides, dtype=torch.float64), torch.rand(4, dtype=torch.float64)

    def plain(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return CONVOLUTIONS[n - 1](x, w, b, stride, padding, dilation, groups)

    def ours(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        with custom_derivatives():
            return plain(x, w, b)

    if traced:
        graph, _, _ = trace(lambda *t: every_derivative(ours, *t), (x, w, b))
        found = graph(x, w, b)
    else:
        assert "Convolution" in type(ours(x.requires_grad_(), w, b).grad_fn).__name__
        found = every_derivative(ours, x, w, b)
    torch.testing.assert_close(found, every_derivative(plain, x, w, b), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last], ids=["plain", "last"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_operands_that_tell_a_shape_alone_are_not_read(
    device: str, form: torch.memory_format, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are uninitialised memory: filled with NaN, every derivative is finite."""
    honest = convolution._blank
    monkeypatch.setattr(convolution, "_blank", lambda shape, *others: honest(shape, *others).fill_(torch.nan))
    for stride, padding, dilation, groups in ((1, 1, 1, 1), (2, 0, 1, 1), (1, 2, 2, 1), (2, 1, 1, 4)):
        x, w = torch.rand(2, 8, 9, 9), torch.rand(8, 8 // groups, 3, 3)
        x, w = (t.to(device, dtype, memory_format=form) for t in (x, w))

        def f(x: Tensor, w: Tensor, settings=(stride, padding, dilation, groups)) -> Tensor:
            return F.conv2d(x, w, None, *settings)

        with custom_derivatives():
            assert all(bool(t.isfinite().all()) for t in every_derivative(f, x, w))


@pytest.mark.parametrize("lasts", [(False, False), (True, False), (False, True)], ids=str)
@pytest.mark.parametrize("n", [1, 2, 3])
def test_operands_that_tell_a_shape_alone_lie_as_the_others(n: int, lasts: tuple[bool, bool]) -> None:
    """Channels last where those of one operand are: torch else copies the others, in each derivative."""
    form = {1: torch.contiguous_format, 2: torch.channels_last, 3: torch.channels_last_3d}[n]
    others = [
        torch.rand(2, 3, *(4,) * n).contiguous(memory_format=form if last else torch.contiguous_format)
        for last in lasts
    ]
    blank = convolution._blank(torch.Size((5, 3, *(2,) * n)), *others)
    assert blank.shape == (5, 3, *(2,) * n)
    assert blank.is_contiguous(memory_format=form) == (any(lasts) or n == 1)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_derivatives_of_transposed_convolutions_are_torchs(n: int) -> None:
    x, w = torch.rand(2, 4, *(3,) * n, dtype=torch.float64), torch.rand(4, 2, *(2,) * n, dtype=torch.float64)

    def plain(x: Tensor, w: Tensor) -> Tensor:
        return TRANSPOSED[n - 1](x, w, stride=2, padding=1, output_padding=1, groups=2)

    def ours(x: Tensor, w: Tensor) -> Tensor:
        with custom_derivatives():
            return plain(x, w)

    pairs = zip(every_derivative(ours, x, w), every_derivative(plain, x, w), strict=True)
    for found, expected in pairs:
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


def test_finite_differences_agree() -> None:
    """An oracle that does not share torch's own second derivatives."""

    def ours(x: Tensor, w: Tensor) -> Tensor:
        with custom_derivatives():
            return F.conv2d(x, w, stride=2, padding=1)

    x = torch.rand(1, 2, 3, 3, dtype=torch.float64, requires_grad=True)
    w = torch.rand(2, 2, 2, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(ours, (x, w))
    assert torch.autograd.gradgradcheck(ours, (x, w))


def test_what_torch_refuses_or_treats_otherwise_is_left_to_it() -> None:
    x, w = torch.rand(2, 4, 4, requires_grad=True), torch.rand(3, 2, 3, 3)
    with custom_derivatives():
        assert F.conv2d(x, w).shape == (3, 2, 2)  # without a batch
        with pytest.raises(RuntimeError, match="Invalid padding string"):
            F.conv2d(x[None], w, padding="full")
        with pytest.raises(RuntimeError, match="padding='same' is not supported for strided"):
            F.conv2d(x[None], w, padding="same", stride=2)


def test_only_what_a_derivative_needs_is_kept() -> None:
    """An attack, whose parameters are constant, keeps no activations for the sake of weight gradients."""
    kept: list[Tensor] = []
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t)
    x, w = torch.rand(1, 2, 4, 4, requires_grad=True), torch.rand(3, 2, 3, 3)
    with custom_derivatives(), hooks:
        F.conv2d(x, w)
    assert [t.shape for t in kept] == [w.shape]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_autocast_casts_as_it_does_for_torchs_convolution(dtype: torch.dtype) -> None:
    x, w, b = torch.rand(2, 2, 4, 4, dtype=dtype), torch.rand(3, 2, 3, 3, dtype=dtype), torch.rand(3, dtype=dtype)
    with precision("bf16", "cpu"):
        expected = F.conv2d(x, w, b)
        with custom_derivatives():
            free = [t.requires_grad_() for t in (x, w, b)]
            out = F.conv2d(*free)
            gradients = torch.autograd.grad(out.sum(), free, create_graph=True)
            seconds = torch.autograd.grad(sum(g.square().sum() for g in gradients), [x, w])
    assert torch.equal(out, expected)
    assert {g.dtype for g in (*gradients, *seconds)} == {dtype}


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], float]] = {
    "paper_cnn": (paper_cnn, (1, 28, 28), 1.0),
    "gtsrb_resnet": (gtsrb_resnet, (3, 32, 32), 255.0),
    "flower_resnet": (flower_resnet, (3, 32, 32), 255.0),
    "grouped": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, groups=2), nn.Flatten(), nn.Linear(144, 3)
        ),
        (2, 8, 8), 1.0,
    ),
    "strided": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, stride=2), nn.ReLU(), nn.Conv2d(4, 4, 3, stride=2, padding=1), nn.Flatten(),
            nn.Linear(64, 3),
        ),
        (2, 16, 16), 1.0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
def test_no_convolution_has_a_kernel_larger_than_its_output(name: str) -> None:
    make, shape, high = NETWORKS[name]
    net, x, y = make(), high * torch.rand(2, *shape), torch.tensor([0, 2])
    change, bound = l1 @ IG(rule=midpoint(2)), bind(net)

    def update(parameters: dict[str, Tensor], x: Tensor, x1: Tensor, y: Tensor) -> list[Tensor]:
        with torch.enable_grad():
            free = {k: p.detach().requires_grad_() for k, p in parameters.items()}
            value = change(bound.with_parameters(free), x, x1, y).sum()
            return list(torch.autograd.grad(value, list(free.values()), materialize_grads=True))

    graph, _, _ = trace(update, ({k: p.detach() for k, p in net.named_parameters()}, x, high - x, y))
    forward, larger = kernels(graph)
    convolutions = sum(isinstance(m, nn.Conv2d) for m in net.modules())
    assert forward >= convolutions
    assert larger == 0


def kernels(graph: GraphModule) -> tuple[int, int]:
    """How many forward convolutions there are, and how many with a kernel larger than their output."""
    sizes = [
        (prod(node.args[1].meta["val"].shape[2:]), prod(node.meta["val"].shape[2:]))
        for node in graph.graph.nodes
        if node.target is torch.ops.aten.convolution.default
    ]
    return len(sizes), sum(kernel > output for kernel, output in sizes)


def test_torchs_own_second_derivatives_would_be_counted() -> None:
    """The count above is not blind."""

    def update(x: Tensor, w: Tensor) -> Tensor:
        x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
        (g,) = torch.autograd.grad(F.conv2d(x, w).square().sum(), x, create_graph=True)
        return torch.autograd.grad(g.abs().sum(), w)[0]

    graph, _, _ = trace(update, (torch.rand(2, 3, 8, 8), torch.rand(4, 3, 3, 3)))
    assert kernels(graph)[1] > 0


@pytest.mark.parametrize("norm", [nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d])
@pytest.mark.parametrize("affine", [True, False])
def test_a_frozen_batch_norm_is_an_affine_map_with_torchs_derivatives(norm: type[nn.Module], affine: bool) -> None:
    n = int(norm.__name__[-2])
    layer = norm(3, affine=affine).double()
    x = torch.rand(4, 3, *(2,) * n, dtype=torch.float64)
    layer(x)  # statistics of its own
    layer.eval()
    s, t = torch.rand(3, dtype=torch.float64) + 0.5, torch.randn(3, dtype=torch.float64)

    def plain(x: Tensor, s: Tensor, t: Tensor) -> Tensor:
        given = {"weight": s, "bias": t} if affine else {}
        return torch.tanh(functional_call(layer, given, (x,)) + t.sum() + s.sum())

    def ours(x: Tensor, s: Tensor, t: Tensor) -> Tensor:
        with custom_derivatives():
            return plain(x, s, t)

    graph, statistics, _ = trace(lambda *each: every_derivative(ours, *each), (x, s, t))
    assert not [node for node in graph.graph.nodes if "batch_norm" in str(node.target)]
    torch.testing.assert_close(graph(x, s, t, *statistics), every_derivative(plain, x, s, t), rtol=1e-11, atol=1e-11)
    layer.train()
    with custom_derivatives():
        found = layer(x)
    torch.testing.assert_close(found, layer(x), rtol=0, atol=0)  # those of the batch


@pytest.mark.parametrize("inplace", [False, True])
def test_hard_sigmoids_are_twice_differentiable(inplace: bool) -> None:
    """torch has no derivative of hardsigmoid_backward, so that MobileNetV3 could not be attacked."""
    x = torch.tensor([-4.0, -2.5, 0.3, 2.0, 5.0], dtype=torch.float64, requires_grad=True)  # none on a corner

    def gate(z: Tensor) -> Tensor:
        with custom_derivatives():
            return z * nn.Hardsigmoid(inplace=inplace)(2.0 * z)

    torch.testing.assert_close(gate(x), x * F.hardsigmoid(2.0 * x))
    assert torch.autograd.gradcheck(gate, x)
    assert torch.autograd.gradgradcheck(gate, x)
