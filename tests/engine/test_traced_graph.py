"""A function that is iterated: what every iteration would repeat is computed once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from robattr.engine.compiled import Compiled, traced
from robattr.engine.traced_graph import constant, split, trace
from robattr.errors import CompilationFellBack

aten = torch.ops.aten


def counts(graph: GraphModule | None) -> dict[str, int]:
    """How many convolutions, products and conversions a graph has."""
    kinds = {"conv": aten.convolution.default, "product": aten.mm.default, "cast": aten._to_copy.default}
    targets = [] if graph is None else [n.target for n in graph.graph.nodes]
    return {name: targets.count(kind) for name, kind in kinds.items()}


def operands() -> tuple[Tensor, Tensor, Tensor]:
    draws = torch.Generator().manual_seed(0)
    return tuple(torch.rand(shape, generator=draws) for shape in [(2, 1, 6, 6), (2, 1, 6, 6), (1, 1, 3, 3)])


def moved(x: Tensor, z: Tensor, w: Tensor) -> Tensor:
    """One convolution of x, one of z, kernels in bf16 in between; the next z."""
    low = w.bfloat16().float()
    return 0.5 * (aten.convolution(x, low, None, [1], [1], [1], False, [0], 1).tanh()
                  + aten.convolution(z, low, None, [1], [1], [1], False, [0], 1))  # fmt: skip


def test_what_does_not_move_is_computed_once() -> None:
    x, z, w = operands()
    first, rest = split(trace(moved, (x, z, w))[0], {1})
    assert counts(first) == {"conv": 1, "product": 0, "cast": 2}
    assert counts(rest) == {"conv": 1, "product": 0, "cast": 0}
    kept = first(x, z, w)
    assert len(kept) == 2  # the kernel, and the convolution of x
    torch.testing.assert_close(rest(x, z, w, *kept)[0], moved(x, z, w))


def test_iterations_are_those_of_the_function() -> None:
    x, z, w = operands()
    fast = Compiled(moved, name="step", backend=traced, at=1)
    wanted = z
    for _ in range(5):
        wanted = moved(x, wanted, w)
    for other in (x, x + 1):  # with other arguments, what was kept is computed anew
        got = fast.iterate(5, other, z, w)
        assert torch.equal(got, wanted) == (other is x)
    torch.testing.assert_close(fast.iterate(0, x, z, w), z)
    assert not fast.fell_back


@pytest.mark.parametrize("at", [{1}, {0, 1, 2}, set()])
def test_a_graph_that_overwrites_or_moves_as_a_whole_stays_whole(at: set[int]) -> None:
    x, z, w = operands()

    def overwrites(x: Tensor, z: Tensor, w: Tensor) -> Tensor:
        return aten.convolution(x, w, None, [1], [1], [1], False, [0], 1).add_(z)

    graph = trace(overwrites, (x, z, w))[0]
    assert split(graph, at) == (None, graph)


def test_a_result_that_does_not_move_and_is_not_used_stays_where_it_is() -> None:
    x, z, w = operands()

    def apart(x: Tensor, z: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return aten.convolution(x, w, None, [1], [1], [1], False, [0], 1), z + 1

    graph = trace(apart, (x, z, w))[0]
    assert split(graph, {1}) == (None, graph)


def test_what_gives_only_a_shape_is_not_computed_first() -> None:
    """The loss at x is part of the value that the attack climbs, not of its gradient."""
    x, z, _ = operands()
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 3, bias=False))

    def gradient(x: Tensor, z: Tensor) -> Tensor:
        with torch.enable_grad():
            at = z.detach().requires_grad_()
            gain = net(at).square().sum(1) - net(x).square().sum(1)
            return torch.autograd.grad(gain.sum(), at)[0]

    first, rest = split(trace(gradient, (x, z))[0], {1})
    assert first is None
    assert counts(rest)["product"] == 3  # forwards at x and z, and the gradient


def test_random_numbers_of_a_functions_own_generator_are_the_same_at_each_call() -> None:
    """A graph would go on drawing from the generator: such a function runs eagerly, or its draws are a constant."""
    x, *_ = operands()

    def drawn() -> Tensor:
        return torch.randn(6, generator=torch.Generator().manual_seed(0))

    recorded = Compiled(lambda x: x + drawn(), name="function", backend=traced)
    with pytest.warns(CompilationFellBack, match="(?i)generator"):
        recorded(x)
    held = Compiled(lambda x: x + constant(drawn), name="function", backend=traced)
    for _ in range(2):
        torch.testing.assert_close(recorded(x), x + drawn())
        torch.testing.assert_close(held(x), x + drawn())
    assert not held.fell_back
