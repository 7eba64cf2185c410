"""The forms of operators in generated code are equal to torch's, and take their place in bf16 on a GPU."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from robattr import objectives
from robattr.engine import Step, forms
from robattr.engine.compiled import traced
from robattr.errors import CompilationFellBack
from robattr.formula import PGD, LinfBall


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "applies", lambda x: True)


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    ("channels", "groups", "kernel", "size"),
    [
        (1, 1, (5, 5), (8, 8)), (1, 1, (3, 3), (6, 6)), (1, 1, (5, 3), (7, 9)), (1, 1, (1, 7), (5, 4)),
        (3, 1, (3, 3), (6, 6)), (4, 4, (3, 3), (6, 6)), (4, 2, (3, 3), (6, 6)), (1, 1, (3, 3), (3, 33)),
    ],
)  # fmt: skip
def test_convolutions_have_the_same_derivatives(
    layout: torch.memory_format, channels: int, groups: int, kernel: tuple[int, int], size: tuple[int, int]
) -> None:
    draws = torch.Generator().manual_seed(channels)
    weight = torch.randn(4, channels // groups, *kernel, generator=draws, dtype=torch.float64)
    bias = torch.randn(4, generator=draws, dtype=torch.float64)

    def gradient(x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.contiguous(memory_format=layout).requires_grad_()
        out = F.conv2d(x, weight, bias, padding=[k // 2 for k in kernel], groups=groups)
        (first,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.pow(3).sum(), x)
        return first.detach(), second

    x = torch.randn(2, channels, *size, generator=draws, dtype=torch.float64)
    graph = make_fx(gradient, forms.TABLE)(x)
    graph.graph.eliminate_dead_code()
    assert (torch.ops.aten.convolution.default in {node.target for node in graph.graph.nodes}) == (
        channels > 1 or size[1] > 32
    )
    for ours, theirs in zip(graph(x), gradient(x), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize(("m", "k", "n"), [(7, 40, 10), (7, 10, 40), (7, 16, 16), (1, 1, 1), (7, 17, 17), (4097, 2, 2)])
def test_thin_products_are_sums(m: int, k: int, n: int) -> None:
    draws = torch.Generator().manual_seed(m)
    a, b, c = (torch.randn(s, generator=draws, dtype=torch.float64) for s in ((k, m), (k, n), (n,)))

    def products(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        return a.t() @ b, torch.addmm(c, a.t(), b), torch.addmm(c, a.t(), b, beta=2, alpha=0.5)

    graph = make_fx(products, forms.TABLE)(a, b, c)
    targets = [node.target for node in graph.graph.nodes]
    assert (torch.ops.aten.mm.default in targets) == (min(k, n) > 16 or m > 4096)
    assert targets.count(torch.ops.aten.addmm.default) == (1 if n <= 16 and m <= 4096 else 2)
    torch.testing.assert_close(graph(a, b, c), products(a, b, c))


def test_elsewhere_torchs_kernels_run() -> None:
    """Not on a CPU, and on a GPU not in fp32 or tf32."""
    assert not forms.applies(torch.zeros(1, dtype=torch.bfloat16))
    for dtype, wanted in ((torch.bfloat16, True), (torch.float32, False)):
        assert forms.applies(SimpleNamespace(is_cuda=True, dtype=dtype)) == wanted  # type: ignore[arg-type]


def test_a_step_has_the_gradients_of_torchs_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 3)
    ).double()
    x, y, ball = torch.rand(3, 1, 8, 8, dtype=torch.float64), torch.arange(3), LinfBall(0.1)
    rho = objectives.ig_norm(1.0, ball, PGD(2, 0.05), m=3, m_attack=2)

    def gradients() -> list[Tensor]:
        net.zero_grad()
        Step(net, compiled=True, backend=traced)(rho, x, y, start=x + 0.05)
        return [p.grad.clone() for p in net.parameters() if p.grad is not None]

    asked: list[Tensor] = []
    monkeypatch.setattr(forms, "applies", lambda x: asked.append(x) or True)
    ours = gradients()
    assert asked
    monkeypatch.setattr(forms, "applies", lambda x: False)
    torch.testing.assert_close(ours, gradients())


class Viewed(nn.Module):
    """A network that reshapes by `view`, which takes one layout of memory."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(256, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.softplus(self.stem(x)).view(len(x), -1))


@pytest.mark.usefixtures("everywhere")
def test_a_network_that_the_forms_do_not_fit_is_compiled_without_them() -> None:
    torch.manual_seed(0)
    net, x, y = Viewed().double(), torch.rand(4, 1, 8, 8, dtype=torch.float64), torch.arange(4) % 3
    rho = objectives.ig_norm(1.0, LinfBall(0.1), PGD(2, 0.05), m=3, m_attack=2)
    fast, found = Step(net, compiled=True, backend=traced), []
    with warnings.catch_warnings(action="error", category=CompilationFellBack):
        for step in (fast, Step(net)):
            net.zero_grad()
            step(rho, x, y, start=x + 0.01)
            found.append([p.grad.clone() for p in net.parameters() if p.grad is not None])
    torch.testing.assert_close(*found)
