"""The other forms of operators that the benchmark times are equal to torch's."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from benchmarks import forms


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("channels", "kernel", "size"), [(1, 5, 8), (1, 3, 6), (3, 3, 6)])
def test_convolutions_and_pools_have_the_same_derivatives(
    layout: torch.memory_format, channels: int, kernel: int, size: int
) -> None:
    draws = torch.Generator().manual_seed(channels)
    weight = torch.randn(4, channels, kernel, kernel, generator=draws, dtype=torch.float64)
    bias = torch.randn(4, generator=draws, dtype=torch.float64)

    def gradient(x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.contiguous(memory_format=layout).requires_grad_()
        out = F.max_pool2d(F.conv2d(x, weight, bias, padding=kernel // 2), 2)
        (first,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.pow(3).sum(), x)
        return first.detach(), second

    x = torch.randn(2, channels, size, size, generator=draws, dtype=torch.float64)
    trace = partial(make_fx, decomposition_table={**forms.POOL, **forms.PRODUCTS})
    graph = trace(gradient)(x)
    graph.graph.eliminate_dead_code()
    called = {node.target for node in graph.graph.nodes}
    assert torch.ops.aten.max_pool2d_with_indices_backward.default not in called
    assert (torch.ops.aten.convolution.default in called) == (channels > 1)
    for ours, theirs in zip(graph(x), gradient(x), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_windows_that_overlap_or_leave_a_rest_keep_the_operator_of_torch() -> None:
    def gradient(x: Tensor) -> Tensor:
        x = x.requires_grad_()
        return torch.autograd.grad(F.max_pool2d(x, 3, stride=2).square().sum(), x)[0]

    x = torch.randn(2, 3, 9, 9, generator=torch.Generator().manual_seed(0))
    graph = make_fx(gradient, decomposition_table=forms.POOL)(x)
    called = {node.target for node in graph.graph.nodes}
    assert torch.ops.aten.max_pool2d_with_indices_backward.default in called
    torch.testing.assert_close(graph(x), gradient(x))


@pytest.mark.inductor
def test_a_step_of_other_forms_has_the_gradients_of_the_engine(capsys: pytest.CaptureFixture[str]) -> None:
    assert forms.main(["--network", "mini", "--quick", "--precision", "fp32", "--form", "last + pool + products"]) == 0
    row = [cell.strip() for cell in capsys.readouterr().out.splitlines()[-1].split("|") if cell.strip()]
    assert row[0] == "last + pool + products"
    assert float(row[1]) > 0
    assert float(row[3]) < 1e-3
