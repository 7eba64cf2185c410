"""Familiar doors: the same integrated gradients under Captum's names and conventions.

Two differences are kept on purpose: the result can be differentiated again (`create_graph=True`), in θ as well as in
the inputs, and `n_steps=1` is allowed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from robattr.errors import InvalidInput, UnsupportedModel, nearest
from robattr.formula.attribution import IG
from robattr.formula.checks import alike, check_model
from robattr.formula.layers import Layer, at_input, at_layer
from robattr.formula.network import Bound, bind, second_order
from robattr.formula.paths import Path, straight
from robattr.formula.quadrature import Rule, Rules, gauss_legendre, left, midpoint, right
from robattr.formula.scalars import logit

METHODS: dict[str, Rules] = {
    "gausslegendre": gauss_legendre,
    "riemann_left": left,
    "riemann_right": right,
    "riemann_middle": midpoint,
}

Inputs = Tensor | tuple[Tensor, ...]
Baselines = Tensor | float | tuple[Tensor | float, ...] | None
Target = int | Tensor | list[int] | None


@dataclass(frozen=True)
class IntegratedGradients:
    """Integrated gradients of `forward_func`'s output from the baselines to the inputs.

    `forward_func` returns (B, classes), with `target` choosing the class, or one number per example, (B,) or (B, 1),
    with target=None.
    """

    forward_func: Callable[..., Tensor]

    def attribute(
        self,
        inputs: Inputs,
        baselines: Baselines = None,
        target: Target = None,
        additional_forward_args: Any = None,
        n_steps: int = 50,
        method: str = "gausslegendre",
        internal_batch_size: int | None = None,
        return_convergence_delta: bool = False,
        *,
        create_graph: bool = False,
        path: Path = straight,
    ) -> Any:
        """Attributions, and on request the gap sum(IG) − (f(x) − f(x₀)) per example.

        They are shaped like the inputs, or like the layer's output.
        """
        flat = _Flat.of(self.forward_func, inputs, baselines, additional_forward_args)
        at = self._place()
        values, delta = flat.integrate(
            at, target, _rule(method, n_steps), internal_batch_size, path=path, create_graph=create_graph
        )
        attributions = flat.split(values) if at is at_input else values
        return (attributions, delta) if return_convergence_delta else attributions

    def _place(self) -> Layer:
        return at_input


@dataclass(frozen=True)
class PathLayerIG(IntegratedGradients):
    """Integrated gradients of a hidden layer along the curve h∘r that the *inputs* move on (the paper's lemma 1).

    It equals Captum's `LayerConductance`. It is not Captum's `LayerIntegratedGradients`, which straightens the curve in
    the layer's own space. `layer` is the submodule, or its name.
    """

    layer: nn.Module | str

    def _place(self) -> Layer:
        if isinstance(self.layer, str):
            return at_layer(self.layer)
        if isinstance(self.forward_func, nn.Module):
            for name, module in self.forward_func.named_modules():
                if module is self.layer:
                    return at_layer(name)
        raise InvalidInput(
            f"the layer {type(self.layer).__name__} is not a submodule of the model: pass one, or its name"
        )


class _FlatNet(Bound):
    """A bound network that takes all its inputs as one (B, n) tensor."""

    def __init__(self, net: Bound, shapes: tuple[torch.Size, ...], extra: tuple[Any, ...], examples: int) -> None:
        super().__init__(net.call, net.module, net.parameters, net.buffers)
        self.shapes, self.extra, self.examples = shapes, extra, examples

    def __call__(self, x: Tensor) -> Tensor:
        pieces = x.split([s.numel() for s in self.shapes], dim=1)
        inputs = [p.reshape(len(x), *s) for p, s in zip(pieces, self.shapes, strict=True)]
        nodes = len(x) // self.examples
        extra = [
            e.repeat(nodes, *(1,) * (e.dim() - 1))
            if isinstance(e, Tensor) and e.dim() and len(e) == self.examples
            else e
            for e in self.extra
        ]
        out = self.run(*inputs, *extra)
        return out[:, None] if out.dim() == 1 else out

    def with_parameters(self, parameters: dict[str, Tensor], buffers: dict[str, Tensor] | None = None) -> Bound:
        return _FlatNet(super().with_parameters(parameters, buffers), self.shapes, self.extra, self.examples)


@dataclass(frozen=True)
class _Flat:
    """Tuple inputs laid side by side, so that one formula serves them all."""

    net: _FlatNet
    x: Tensor
    x0: Tensor
    single: bool

    @classmethod
    def of(cls, forward: Callable[..., Tensor], inputs: Inputs, baselines: Baselines, extra: Any) -> _Flat:
        check_model(forward)
        single = isinstance(inputs, Tensor)
        xs = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
        for x in xs:
            if not isinstance(x, Tensor) or not x.is_floating_point() or x.dim() < 1 or not torch.isfinite(x).all():
                raise InvalidInput("expected finite floating-point input tensors with a batch dimension")
        if len({len(x) for x in xs}) != 1 or len(xs[0]) == 0:
            raise InvalidInput(f"expected inputs of one batch size ≥ 1, got {[len(x) for x in xs]}")
        given = baselines if isinstance(baselines, tuple) else (baselines,) * len(xs)
        if len(given) != len(xs):
            raise InvalidInput(f"expected one baseline per input, got {len(given)} for {len(xs)} inputs")
        zeros = [_baseline(x, b) for x, b in zip(xs, given, strict=True)]
        further = () if extra is None else extra if isinstance(extra, tuple) else (extra,)
        net = _FlatNet(bind(forward), tuple(x.shape[1:] for x in xs), further, len(xs[0]))
        return cls(net, _lay(xs), _lay(zeros), single)

    def integrate(
        self,
        at: Layer,
        target: Target,
        rule: Rule,
        internal_batch_size: int | None,
        *,
        path: Path,
        create_graph: bool,
    ) -> tuple[Tensor, Tensor]:
        if internal_batch_size is not None and not (isinstance(internal_batch_size, int) and internal_batch_size >= 1):
            raise InvalidInput(f"expected internal_batch_size ≥ 1, got {internal_batch_size!r}")
        chunk = None if internal_batch_size is None else max(1, internal_batch_size // len(self.x))
        ig = IG(of=logit, at=at, along=path, rule=rule, chunk=chunk)
        with second_order(self.net), torch.set_grad_enabled(create_graph and torch.is_grad_enabled()):
            with alike(self.net, self.x):
                out = self.net(self.x)
            y = _labels(target, out, self.x)
            values = ig(self.net, self.x0, self.x, y)
            moved = logit(self.net, self.x, y) - logit(self.net, self.x0, y)
        if not create_graph:
            values, moved = values.detach(), moved.detach()
        return values, values.flatten(1).sum(1) - moved

    def split(self, values: Tensor) -> Inputs:
        pieces = values.split([s.numel() for s in self.net.shapes], dim=1)
        shaped = tuple(p.reshape(len(values), *s) for p, s in zip(pieces, self.net.shapes, strict=True))
        return shaped[0] if self.single else shaped


def _lay(tensors: list[Tensor] | tuple[Tensor, ...]) -> Tensor:
    return torch.cat([t.reshape(len(t), -1) for t in tensors], dim=1)


def _baseline(x: Tensor, baseline: Tensor | float | None) -> Tensor:
    if baseline is None:
        return torch.zeros_like(x)
    if not isinstance(baseline, Tensor | Real) or not torch.isfinite(torch.as_tensor(baseline)).all():
        got = "one with NaN or infinite values" if isinstance(baseline, Tensor) else repr(baseline)
        raise InvalidInput(f"expected finite baselines, each a number or a tensor, got {got}")
    if not isinstance(baseline, Tensor):
        return torch.full_like(x, float(baseline))
    if baseline.shape[1:] != x.shape[1:] or baseline.dim() == 0 or len(baseline) not in (1, len(x)):
        raise InvalidInput(f"expected a baseline of shape {tuple(x.shape)} or (1, ...), got {tuple(baseline.shape)}")
    return baseline.to(x).expand_as(x)


def _labels(target: Target, out: Tensor, x: Tensor) -> Tensor:
    if not isinstance(out, Tensor) or out.dim() != 2 or len(out) != len(x):
        raise UnsupportedModel(f"expected an output of shape ({len(x)}, classes), got {tuple(out.shape)}")
    if target is None:
        if out.shape[1] != 1:
            raise InvalidInput(f"the model has {out.shape[1]} outputs: say which one with target=...")
        target = 0
    try:
        y = torch.as_tensor(target, device=x.device).expand(len(x))
    except (TypeError, ValueError, RuntimeError):
        raise InvalidInput(f"expected one integer target, or one for each of {len(x)} inputs, got {target!r}") from None
    whole = not (y.is_floating_point() or y.is_complex() or y.dtype == torch.bool)
    if not whole or int(y.min()) < 0 or int(y.max()) >= out.shape[1]:
        raise InvalidInput(f"expected an integer target in 0..{out.shape[1] - 1}, got {target!r}")
    return y


def _rule(method: str, n_steps: int) -> Rule:
    if method not in METHODS:
        raise InvalidInput(f"unknown method {method!r}: {nearest(method, METHODS)}")
    return METHODS[method](n_steps)
