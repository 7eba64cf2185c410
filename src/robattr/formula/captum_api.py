"""The same integrated gradients under Captum's names and conventions.

Two differences are kept on purpose: the result can be differentiated again (`create_graph=True`), in θ as well as in
the inputs, and `n_steps=1` is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from robattr.errors import InvalidInput, nearest
from robattr.formula.attribution import IG
from robattr.formula.checks import check_batch, check_model, check_whole
from robattr.formula.layers import Layer, at_input, at_layer
from robattr.formula.network import Bound, bind, second_order
from robattr.formula.paths import Path, straight
from robattr.formula.quadrature import Rules, gauss_legendre, left, midpoint, right
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
        xs = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
        if (
            not all(isinstance(x, Tensor) and x.is_floating_point() and x.dim() for x in xs)
            or len(set(map(len, xs))) != 1
        ):
            raise InvalidInput("expected floating-point input tensors of one batch size")
        if method not in METHODS:
            raise InvalidInput(f"unknown method {method!r}: {nearest(method, METHODS)}")
        if internal_batch_size is not None:
            check_whole("expected a whole number internal_batch_size", internal_batch_size, least=1)
        check_model(self.forward_func)
        extra = additional_forward_args
        further = () if extra is None else extra if isinstance(extra, tuple) else (extra,)
        x, x0, at = _side_by_side(xs), _side_by_side(_baselines(xs, baselines)), self._place()
        own, shapes = bind(self.forward_func), tuple(x.shape[1:] for x in xs)
        net = _FlatNet(own.model, own.parameters, own.buffers, shapes=shapes, extra=further, examples=len(x))
        y = _labels(target, x)
        outputs = check_batch(net, x, y, x0)
        if target is None and outputs > 1:
            raise InvalidInput(f"the model has {outputs} outputs: say which one with target=...")
        chunk = None if internal_batch_size is None else max(1, internal_batch_size // len(x))
        ig = IG(of=logit, at=at, along=path, rule=METHODS[method](n_steps), chunk=chunk)
        with second_order(net), torch.set_grad_enabled(create_graph and torch.is_grad_enabled()):
            values = ig(net, x0, x, y)
            gap = values.flatten(1).sum(1) - (logit(net, x, y) - logit(net, x0, y))
        pieces = tuple(net.pieces(values)) if at is at_input else (values,)
        attributions = pieces[0] if isinstance(inputs, Tensor) or at is not at_input else pieces
        return (attributions, gap) if return_convergence_delta else attributions

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


@dataclass(eq=False, repr=False, kw_only=True)
class _FlatNet(Bound):
    """A bound network that takes all its inputs side by side, as one (B, n) tensor."""

    shapes: tuple[torch.Size, ...]
    extra: tuple[Any, ...]
    examples: int

    def pieces(self, x: Tensor) -> list[Tensor]:
        parts = x.split([s.numel() for s in self.shapes], dim=1)
        return [part.reshape(len(x), *s) for part, s in zip(parts, self.shapes, strict=True)]

    def __call__(self, x: Tensor) -> Tensor:
        example = torch.arange(len(x), device=x.device) % self.examples  # nodes of the path follow one another
        extra = [
            e[example.to(e.device)] if isinstance(e, Tensor) and e.dim() and len(e) == self.examples else e
            for e in self.extra
        ]
        out = self.run(*self.pieces(x), *extra)
        return out[:, None] if isinstance(out, Tensor) and out.dim() == 1 else out


def _side_by_side(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([t.reshape(len(t), prod(t.shape[1:])) for t in tensors], dim=1)


def _baselines(xs: tuple[Tensor, ...], given: Baselines) -> list[Tensor]:
    """One baseline per input, shaped like it."""
    baselines = given if isinstance(given, tuple) else (given,) * len(xs)
    if len(baselines) != len(xs):
        raise InvalidInput(f"expected one baseline per input, got {len(baselines)} for {len(xs)} inputs")
    made = []
    for x, b in zip(xs, baselines, strict=True):
        if isinstance(b, Tensor) and b.shape not in (x.shape, (1, *x.shape[1:])):
            raise InvalidInput(f"expected a baseline of shape {tuple(x.shape)} or (1, ...), got {tuple(b.shape)}")
        try:
            made.append(b.to(x).expand_as(x) if isinstance(b, Tensor) else torch.full_like(x, b or 0.0))
        except TypeError:
            raise InvalidInput(f"expected baselines, each a number or a tensor, got {b!r}") from None
    return made


def _labels(target: Target, x: Tensor) -> Tensor:
    try:
        return torch.as_tensor(0 if target is None else target, device=x.device).expand(len(x))
    except (TypeError, ValueError, RuntimeError):
        raise InvalidInput(f"expected one integer target, or one for each of {len(x)} inputs, got {target!r}") from None
