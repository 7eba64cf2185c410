"""Integrated gradients as a value that can be called and differentiated again.

    IG_h^f(x, x'; r)_i = ∫₀¹ ∂f/∂h_i (r(t)) · d h_i(r(t))/dt dt ≈ Σ_k w_k · integrand(r(t_k))_i

Shapes: B examples; x, x' (B, ...); h (B, *h); m nodes, evaluated together in chunks of c as one batch of c·B rows.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from robattr.errors import InvalidInput, brief
from robattr.formula.algebra import Operand
from robattr.formula.checks import check_whole, checked
from robattr.formula.layers import AtOutput, Layer, at_input
from robattr.formula.network import Bound, Model, gradient_and_value, per_example, second_order, vjp
from robattr.formula.paths import Path, straight
from robattr.formula.quadrature import Rule, midpoint
from robattr.formula.scalars import OF_THE_OUTPUT, Scalar, cross_entropy

Floats: TypeAlias = tuple[float, ...]


class Attribution(Protocol):
    """a(model, x, x', y) -> (B, ...): any way to spread the step from x to x' over coordinates."""

    def __call__(self, model: Model, x: Tensor, x1: Tensor, y: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class IG(Operand):
    """IG_h^f(x, x'; r): the change of f from x to x', spread over the coordinates of h.

    of      f, the scalar that is attributed (`cross_entropy` in training, `logit` for maps)
    at      h, where the attribution lands (`at_input`, `at_layer(name)`, `at_output`)
    along   r, the curve (`straight`, `polyline(...)`)
    rule    nodes and weights of the integral
    chunk   how many nodes run together; None for all. With a chunk, the graph of the nodes is not kept: the backward
            pass computes each chunk again (exactly, for any size function), and memory no longer grows with m. (Of a
            plain callable the parameters are unknown: its graph is kept.)

    Completeness: the coordinates sum to f(x') − f(x), up to the error of the rule.

    >>> from robattr.formula.scalars import logit
    >>> net = torch.nn.Linear(2, 1, bias=False)
    >>> _ = torch.nn.init.constant_(net.weight, 3.0)
    >>> IG(of=logit)(net, torch.zeros(1, 2), torch.tensor([[1.0, 2.0]]), torch.tensor([0])).detach()
    tensor([[3., 6.]])
    """

    of: Scalar = cross_entropy
    at: Layer = at_input
    along: Path = straight
    rule: Rule = field(default_factory=lambda: midpoint(50))
    chunk: int | None = None

    def __post_init__(self) -> None:
        for name, part, fits, such in (
            ("of", self.of, callable(self.of), "a scalar such as logit"),
            ("at", self.at, isinstance(self.at, Layer), "at_input, at_output or at_layer('conv1')"),
            ("along", self.along, hasattr(self.along, "derivative"), "a path with a derivative, such as straight,"),
            ("rule", self.rule, isinstance(self.rule, Rule), "a rule such as midpoint(10)"),
        ):
            if not fits:
                raise InvalidInput(f"IG expects {such} as `{name}`, got {brief(part)}")
        if self.chunk is not None:
            check_whole("IG expects None, or a whole number of nodes as chunk", self.chunk, least=1)

    def __call__(self, model: Model, x: Tensor, x1: Tensor, y: Tensor) -> Tensor:
        """The attribution (B, *h), differentiable in θ, x and x'."""
        with checked(model, x, x1, y) as net:
            return self._integral(net, x, x1, y)

    def _integral(self, net: Bound, x: Tensor, x1: Tensor, y: Tensor) -> Tensor:
        if isinstance(self.at, AtOutput):
            at_x1, at_x = (per_example(self.of(net, z, y), z, self.of) for z in (x1, x))
            return at_x1 - at_x
        size = self.chunk or len(self.rule)
        chunks = [slice(i, i + size) for i in range(0, len(self.rule), size)]
        if len(chunks) == 1 or net.module is None:
            return _sum(self._partial(net, x, x1, y, chunk) for chunk in chunks)

        def part(chunk: slice) -> Callable[..., Tensor]:
            def of_tensors(a: Tensor, b: Tensor, *parameters: Tensor) -> Tensor:
                bound = net.with_parameters(dict(zip(net.parameters, parameters, strict=True)))
                return self._partial(bound, a, b, y, chunk)

            return of_tensors

        return recomputed([part(chunk) for chunk in chunks], x, x1, *net.parameters.values(), net=net)

    def _partial(self, net: Bound, x: Tensor, x1: Tensor, y: Tensor, chunk: slice) -> Tensor:
        """Σ over the chunk's nodes of w_k · integrand(r(t_k)), all nodes as one batch."""
        assert not isinstance(self.at, AtOutput)
        times, weights = self.rule.nodes[chunk], self.rule.weights[chunk]
        if self._flat:
            return (x1 - x) * self._slope(net, x, x1, y, times, weights)[0]
        z, labels = self._points(x, x1, times), _repeated(y, len(times))
        dz = torch.cat([self.along.derivative(x, x1, t) for t in times])
        return _weighted(self.at.integrand(self.of, net, z, dz, labels), weights)

    @property
    def _flat(self) -> bool:
        """Whether r' does not depend on t, so that it can be taken out of the sum."""
        return self.at == at_input and self.along == straight

    @property
    def runs_at_end(self) -> bool:
        """Whether x' itself is one of the nodes and all nodes run together: then f(x') is known as well."""
        return self._flat and self.rule.nodes[-1] == 1.0 and (self.chunk or len(self.rule)) >= len(self.rule)

    def with_end(self, net: Bound, x: Tensor, x1: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """IG(x, x') and f(x') (B,), where `runs_at_end`: the network runs once for both."""
        slope, values = self._slope(net, x, x1, y, self.rule.nodes, self.rule.weights)
        return (x1 - x) * slope, values[-len(x) :]

    def _slope(
        self, net: Bound, x: Tensor, x1: Tensor, y: Tensor, times: Floats, weights: Floats
    ) -> tuple[Tensor, Tensor]:
        """Σ_k w_k ∇f(z_k), and every f(z_k), (k·B,)."""
        labels = _repeated(y, len(times))
        if net.affine_split is not None and self.of in OF_THE_OUTPUT:
            return self._behind_stem(net, x, x1, labels, times, weights)
        z = self._points(x, x1, times)
        slopes, values = gradient_and_value(lambda v: self.of(net, v, labels), z)
        return _weighted(slopes, weights), values

    def _points(self, x: Tensor, x1: Tensor, times: Floats) -> Tensor:
        """r(t_k) of the chunk's nodes as one batch (k·B, ...).

        Evenly spaced nodes of a straight line are one broadcast with an `arange` on the device: joining a hundred
        tensors costs the compiler minutes, and copying a list of times breaks a CUDA graph.
        """
        first, gap = times[0], (times[-1] - times[0]) / max(1, len(times) - 1)
        even = all(abs(t - first - k * gap) < 1e-12 for k, t in enumerate(times))
        if not even or self.along != straight:
            return torch.cat([self.along(x, x1, t) for t in times])
        fine = torch.promote_types(x.dtype, torch.float32)  # a half-precision x lies behind a stem under autocast
        t = first + gap * torch.arange(len(times), dtype=fine, device=x.device).view(-1, *(1,) * x.dim())
        return (x + t * (x1 - x)).to(x.dtype).flatten(0, 1)

    def _behind_stem(
        self, net: Bound, x: Tensor, x1: Tensor, y: Tensor, times: Floats, weights: Floats
    ) -> tuple[Tensor, Tensor]:
        """Σ_k w_k ∇f(z_k), and every f(z_k), of a net g∘h whose first layer h is affine: J_hᵀ Σ_k w_k ∇g(h_k).

        h takes the straight line from x to x' to that from h(x) to h(x'), and its Jacobian J_h is the same everywhere:
        so h is applied to two points and J_hᵀ to one sum, instead of both at every node. Only for an f that uses x
        through the net alone: g gets h_k in the place of x.
        """
        h, g = net.split()
        u, u1 = h(x), h(x1)
        nodes = self._points(u, u1, times)
        # A clone, because what follows h may be an activation in place, and a leaf must not be overwritten.
        slopes, values = gradient_and_value(lambda v: self.of(g, v.clone(), y), nodes)
        slope = _weighted(slopes, weights)
        # At zero, which depends on nothing: at x autograd would differentiate the slope as well.
        return vjp(h, torch.zeros_like(x), slope), values


def _repeated(y: Tensor, times: int) -> Tensor:
    return y.repeat(times, *(1,) * (y.dim() - 1))


def _weighted(each: Tensor, weights: Floats) -> Tensor:
    """Σ_k w_k · each_k, for `each` of shape (k·B, ...)."""
    nodes: Tensor = each.unflatten(0, (len(weights), len(each) // len(weights)))
    if len(set(weights)) == 1:
        return weights[0] * nodes.sum(0)
    # No tensor of weights: a copy to the device would break a CUDA graph.
    return _sum(w * node for w, node in zip(weights, nodes, strict=True))


class _Recomputed(torch.autograd.Function):
    """Σ of parts, in two passes: the first keeps no graph, the second computes one part at a time again.

    With v = ∂s/∂IG from the graph above, the gradient of s is Σ_chunks ⟨v, ∂ part⟩: linear in the parts, so
    exact for any s, and never more than one part's graph is alive.
    """

    @staticmethod
    def forward(ctx: Any, work: tuple[list[Callable[..., Tensor]], Bound | None], *tensors: Tensor) -> Tensor:
        ctx.work = work
        ctx.save_for_backward(*tensors)
        return _sum(part(*tensors) for part in work[0])

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor | None, ...]:
        parts, net = ctx.work
        wanted = [i for i, needed in enumerate(ctx.needs_input_grad[1:]) if needed]
        total: dict[int, Tensor] = {}
        again = torch.is_grad_enabled()  # whether this pass is itself differentiated
        # The backward pass may run long after the forward one: the network must be in eval mode again.
        with second_order(net) if net else nullcontext(), torch.enable_grad():
            for part in parts:
                # Fresh views, so that the derivative in x does not include what x' owes to x.
                tensors = [t.view_as(t) if again else t.detach() for t in ctx.saved_tensors]
                for i in wanted:
                    tensors[i].requires_grad_()
                found = torch.autograd.grad(
                    part(*tensors), [tensors[i] for i in wanted], v, create_graph=again, materialize_grads=True
                )
                for i, each in zip(wanted, found, strict=True):
                    total[i] = total[i] + each if i in total else each
        return (None, *(total.get(i) for i in range(len(ctx.saved_tensors))))


def recomputed(parts: list[Callable[..., Tensor]], *tensors: Tensor, net: Bound | None = None) -> Tensor:
    """Σ of parts of the tensors; more than one are computed again in the backward pass instead of kept.

    `net` is the network that they run, if any.
    """
    if len(parts) == 1:
        return parts[0](*tensors)
    out: Tensor = _Recomputed.apply((parts, net), *tensors)  # type: ignore[no-untyped-call]
    return out


def _sum(parts: Iterable[Tensor]) -> Tensor:
    return reduce(operator.add, parts)
