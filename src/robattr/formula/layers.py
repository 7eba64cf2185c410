"""Where the attribution lands: a layer h splits f into g∘h, and IG_h integrates along the curve h∘r (paper, lemma 1).

Each place knows its integrand ∂f/∂h_i · d h_i(r(t))/dt at given points z = r(t) with velocity dz = r'(t).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.func import grad, jvp
from torch.utils.hooks import RemovableHandle

from robattr.errors import InvalidInput, UnsupportedModel, nearest
from robattr.formula.network import Bound, gradient
from robattr.formula.scalars import Scalar


class Layer(Protocol):
    """A place inside the network, or one of its ends."""

    def integrand(self, of: Scalar, net: Bound, z: Tensor, dz: Tensor, y: Tensor) -> Tensor: ...


def input_gradient(of: Scalar, net: Bound, z: Tensor, y: Tensor) -> Tensor:
    """∇_x f(z), each example for itself."""
    return gradient(lambda v: of(net, v, y), z)


@dataclass(frozen=True)
class AtInput:
    """h = identity: ∂f/∂x_i · r'_i(t)."""

    def integrand(self, of: Scalar, net: Bound, z: Tensor, dz: Tensor, y: Tensor) -> Tensor:
        return input_gradient(of, net, z, y) * dz


@dataclass(frozen=True)
class AtOutput:
    """h = f itself, the trivial layer: IG_h = f(x') − f(x) exactly, for any path (paper, proposition 3).

    No quadrature is needed: `IG` asks for the difference itself.
    """

    def integrand(self, of: Scalar, net: Bound, z: Tensor, dz: Tensor, y: Tensor) -> Tensor:
        out: Tensor = jvp(lambda v: of(net, v, y), (z,), (dz,))[1]
        return out


@dataclass(frozen=True)
class AtLayer:
    """h = the output of a named submodule: ∂g/∂h_i · Σ_j ∂h_i/∂x_j · r'_j(t).

    This is the conductance of the layer (Captum's `LayerConductance`), not Captum's `LayerIntegratedGradients`, which
    straightens the path in h-space.
    """

    name: str

    def integrand(self, of: Scalar, net: Bound, z: Tensor, dz: Tensor, y: Tensor) -> Tensor:
        layer = self._find(net)

        def h(v: Tensor) -> Tensor:
            seen: list[Tensor] = []

            def capture(_module: nn.Module, _args: object, out: Tensor) -> None:
                # A clone, because an in-place activation behind the layer would overwrite what was seen.
                seen.append(self._tensor(out).clone())

            with _Hook(layer.register_forward_hook(capture)):
                of(net, v, y)
            if len(seen) != 1:
                raise UnsupportedModel(
                    f"expected layer {self.name!r} to run once per forward pass, it ran {len(seen)} times: "
                    "attribute at a layer that runs once"
                )
            return seen[0]

        def g(shift: Tensor) -> Tensor:
            def add(_module: nn.Module, _args: object, out: Tensor) -> Tensor:
                return out + shift

            with _Hook(layer.register_forward_hook(add)):
                return of(net, z, y).sum()

        value, velocity = jvp(h, (z,), (dz,))[:2]
        slope: Tensor = grad(g)(torch.zeros_like(value))
        out: Tensor = slope * velocity
        return out

    def _find(self, net: Bound) -> nn.Module:
        if net.module is None:
            raise UnsupportedModel(f"at_layer({self.name!r}) expects an nn.Module, got a plain callable")
        modules = dict(net.module.named_modules())
        if not self.name or self.name not in modules:
            known = [n for n in modules if n]
            raise InvalidInput(f"the model has no layer {self.name!r}: {nearest(str(self.name), known)}")
        layer: nn.Module = modules[self.name]
        return layer

    def _tensor(self, out: object) -> Tensor:
        if not isinstance(out, Tensor):
            raise UnsupportedModel(
                f"expected layer {self.name!r} to return one tensor, got {type(out).__name__}: choose a layer inside it"
            )
        return out


class _Hook:
    """A forward hook that is removed whatever happens."""

    def __init__(self, handle: RemovableHandle) -> None:
        self.handle = handle

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.handle.remove()


at_input = AtInput()
at_output = AtOutput()


def at_layer(name: str) -> AtLayer:
    """The output of the submodule called `name` (as in `dict(model.named_modules())`)."""
    return AtLayer(name)
