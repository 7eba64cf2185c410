"""The layer h of the attribution: f is g∘h, and IG_h integrates along the curve h∘r (paper, lemma 1).

A layer has the integrand ∂f/∂h_i · d h_i(r(t))/dt at given points z = r(t) with velocity dz = r'(t).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn

from robattr.errors import InvalidInput, UnsupportedModel, nearest
from robattr.formula.attention import differentiated
from robattr.formula.network import Bound, gradient, no_gradient, per_example
from robattr.formula.scalars import Scalar


def input_gradient(of: Scalar, net: Bound, z: Tensor, y: Tensor) -> Tensor:
    """∇_x f(z), example by example."""
    return gradient(lambda v: of(net, v, y), z)


@dataclass(frozen=True)
class AtInput:
    """h = identity: ∂f/∂x_i · r'_i(t)."""

    def integrand(self, of: Scalar, net: Bound, z: Tensor, dz: Tensor, y: Tensor) -> Tensor:
        return input_gradient(of, net, z, y) * dz

    def slope(self, of: Scalar, net: Bound, z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """∂f/∂x (z) and z."""
        return input_gradient(of, net, z, y), z


@dataclass(frozen=True)
class AtOutput:
    """h = f itself, the trivial layer: IG_h = f(x') − f(x) exactly, for any path and without nodes (proposition 3)."""


@dataclass(frozen=True)
class AtLayer:
    """h = the output of a named submodule: ∂g/∂h_i · Σ_j ∂h_i/∂x_j · r'_j(t).

    This is the conductance of the layer (Captum's `LayerConductance`), not Captum's `LayerIntegratedGradients`, which
    straightens the path in h-space.
    """

    name: str

    def integrand(self, of: Scalar, net: Bound, z: Tensor, dz: Tensor, y: Tensor) -> Tensor:
        """∂g/∂h by one reverse pass, and J_h r' by two: u ↦ J_hᵀu is linear, and its transpose takes r' to J_h r'."""
        wanted = torch.is_grad_enabled()
        v = z if z.requires_grad else z.detach().requires_grad_()
        slope, h = self._slope(of, net, v, y)
        with torch.enable_grad():
            u = torch.zeros_like(h, requires_grad=True)
            (back,) = _grad(h, v, u, create_graph=True)
            (velocity,) = _grad(back, u, dz, create_graph=wanted)
        return slope * velocity

    def slope(self, of: Scalar, net: Bound, z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """∂g/∂h (h(z)) and h(z)."""
        slope, h = self._slope(of, net, z if z.requires_grad else z.detach().requires_grad_(), y)
        return slope, h if torch.is_grad_enabled() else h.detach()

    def _slope(self, of: Scalar, net: Bound, v: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """∂g/∂h (h(v)) and h(v), which keeps its graph."""
        wanted = torch.is_grad_enabled()
        with torch.enable_grad():
            value, h = self._forward(of, net, v, y)
            if not h.requires_grad or not value.requires_grad:
                raise no_gradient()
            (slope,) = _grad(per_example(value, v).sum(), h, create_graph=wanted)
        return slope, h

    def _forward(self, of: Scalar, net: Bound, v: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """f(v) and h(v), in one graph."""
        seen: list[Tensor] = []

        def capture(_module: nn.Module, _args: object, out: Tensor) -> Tensor:
            if not isinstance(out, Tensor):
                raise UnsupportedModel(
                    f"expected layer {self.name!r} to return one tensor, got {type(out).__name__}: choose a layer "
                    "inside it"
                )
            seen.append(out)
            return out.clone()  # an in-place activation behind the layer would overwrite what was seen

        with self._find(net).register_forward_hook(capture), differentiated(once=False):
            value = of(net, v, y)
        if len(seen) != 1:
            raise UnsupportedModel(
                f"expected layer {self.name!r} to run once per forward pass, it ran {len(seen)} times: "
                "attribute at a layer that runs once"
            )
        return value, seen[0]

    def _find(self, net: Bound) -> nn.Module:
        if net.module is None:
            raise UnsupportedModel(f"at_layer({self.name!r}) expects an nn.Module, got a plain callable")
        modules = dict(net.module.named_modules())
        if not self.name or self.name not in modules:
            known = [n for n in modules if n]
            raise InvalidInput(f"the model has no layer {self.name!r}: {nearest(str(self.name), known)}")
        layer: nn.Module = modules[self.name]
        return layer


def _grad(of: Tensor, at: Tensor, v: Tensor | None = None, *, create_graph: bool) -> tuple[Tensor, ...]:
    return torch.autograd.grad(of, at, v, retain_graph=True, create_graph=create_graph, materialize_grads=True)


Layer: TypeAlias = AtInput | AtLayer | AtOutput

at_input = AtInput()
"""The input: IG of the pixels."""

at_output = AtOutput()
"""The scalar itself: IG is f(x') − f(x), proposition 3."""


def at_layer(name: str) -> AtLayer:
    """The output of the submodule called `name` (as in `dict(model.named_modules())`)."""
    return AtLayer(name)
