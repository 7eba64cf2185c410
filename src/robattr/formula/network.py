"""The network inside the formula: a pure function of (parameters, buffers, x).

The formula differentiates the network twice, many times, at points the user never sees. So inside it the network is

- *bound*: called through `torch.func.functional_call`, with its live parameters and a private copy of its buffers;
- *in eval mode*: dropout off and batch-norm statistics frozen, along the path and inside the max;
- *twice differentiable*: attention runs the plain (math) kernel, recurrent layers leave cuDNN, because the fused ones
  have no second derivative; second derivatives of convolutions are weight gradients (`formula.convolution`). Where no
  second derivative follows, attention is fused (`differentiated`).

Nothing of this outlives the call: train/eval flags, `requires_grad` and buffers are as they were, exceptions included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call

from robattr.errors import InvalidInput, UnsupportedModel, shape_of
from robattr.formula.attention import differentiated
from robattr.formula.convolution import custom_derivatives

Model: TypeAlias = Callable[[Tensor], Tensor]
"""Anything that maps inputs (B, ...) to logits (B, classes): an `nn.Module`, or any callable."""


AFFINE = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


class AffineSplit(NamedTuple):
    """A network cut behind its first layer, which is affine: net = rest ∘ stem. `name` is the stem's name in it."""

    name: str
    stem: nn.Module
    rest: nn.Module


@dataclass(eq=False, repr=False)
class Bound:
    """The network as a pure function x ↦ logits of explicit parameters and buffers.

    A plain callable has neither, and is called as it is. `affine_split` cuts a module behind its first layer, where
    that is possible.
    """

    model: Model
    parameters: dict[str, Tensor] = field(default_factory=dict)
    buffers: dict[str, Tensor] = field(default_factory=dict)
    affine_split: AffineSplit | None = None

    @property
    def module(self) -> nn.Module | None:
        """The network where it is a module."""
        return self.model if isinstance(self.model, nn.Module) else None

    def __call__(self, x: Tensor) -> Tensor:
        return self.run(x)

    def run(self, *inputs: Any) -> Tensor:
        """The network on any inputs, its convolutions with custom derivatives."""
        with custom_derivatives(), nullcontext() if torch.is_grad_enabled() else differentiated(once=True):
            if self.module is None:
                return self.model(*inputs)
            out: Tensor = functional_call(self.module, {**self.parameters, **self.buffers}, inputs)
            return out

    def detach(self) -> Bound:
        """The same network with constant parameters: what an adversary needs, at a third of the cost."""
        return self.with_parameters({name: p.detach() for name, p in self.parameters.items()})

    def with_parameters(self, parameters: dict[str, Tensor], buffers: dict[str, Tensor] | None = None) -> Bound:
        """The same network with other parameters, and other buffers where they are given."""
        return replace(self, parameters=parameters, buffers=self.buffers if buffers is None else buffers)

    def split(self) -> tuple[Bound, Bound]:
        """The stem and the rest of the split, on these parameters."""
        assert self.affine_split is not None
        prefix, stem, rest = f"{self.affine_split.name}.", self.affine_split.stem, self.affine_split.rest
        inside = {name.removeprefix(prefix): p for name, p in self.parameters.items() if name.startswith(prefix)}
        behind = {name: p for name, p in self.parameters.items() if not name.startswith(prefix)}
        return Bound(stem, inside), Bound(rest, behind, self.buffers)


def bind(model: Model) -> Bound:
    """Bind a module to its live parameters and a copy of its buffers; pass a `Bound` or a plain callable through.

    The copy matters: a batch-norm layer in training mode overwrites its statistics in place during the clean pass,
    which would invalidate every graph that had saved them.
    """
    if isinstance(model, Bound):
        return model
    if not isinstance(model, nn.Module):
        return Bound(model)
    buffers = {name: b.detach().clone() for name, b in model.named_buffers()}
    return Bound(model, dict(model.named_parameters()), buffers, affine_split(model))


def affine_split(module: nn.Module) -> AffineSplit | None:
    """Split a plain `nn.Sequential` behind its first layer, a convolution or a linear one; others give None.

    A module that wraps such a one has a method `affine_split()`. Hooks, a replaced `forward`, and weights shared
    between the two parts rule the split out.
    """
    said = getattr(module, "affine_split", None)
    if callable(said):
        found: AffineSplit | None = said()
        return found
    if type(module) is not nn.Sequential or len(module) < 2 or type(module[0]) not in AFFINE:
        return None
    stem, rest = module[0], module[1:]
    shared = {id(p) for p in stem.parameters()} & {id(p) for p in rest.parameters()}
    if shared or any(_altered(m) for m in (module, stem)):
        return None
    return AffineSplit(next(iter(module._modules)), stem, rest)


def _altered(m: nn.Module) -> bool:
    """Whether hooks or a replaced `forward`, by which libraries wrap layers, change what a call of `m` does."""
    hooks = (m._forward_hooks, m._forward_pre_hooks, m._backward_hooks, m._backward_pre_hooks)
    return any(hooks) or "forward" in vars(m)


def per_example(value: Tensor, x: Tensor, source: object = "the value") -> Tensor:
    """`value`; refuse one that is not one number per example of x: a mean would count B times."""
    if not isinstance(value, Tensor) or value.shape != x.shape[:1]:
        name = source if isinstance(source, str) else getattr(source, "__name__", repr(source))
        raise InvalidInput(
            f"expected one number per example from {name}, shape ({len(x)},), got {shape_of(value)}: do not average "
            "or sum over the batch"
        )
    return value


def gradient(f: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    """∇_z Σ f(z), itself differentiable in z and in all that f holds."""
    return gradient_and_value(f, z)[0]


def gradient_and_value(f: Callable[[Tensor], Tensor], z: Tensor, *, allow_zero: bool = False) -> tuple[Tensor, Tensor]:
    """∇_z Σ f(z) and f(z) (B,), both differentiable in z and in all that f holds.

    Where f does not depend on z the gradient is refused, or zero with `allow_zero`.
    """
    wanted = torch.is_grad_enabled()
    with torch.enable_grad(), differentiated(once=not wanted):
        v = z if z.requires_grad else z.detach().requires_grad_()
        value = per_example(f(v), z)
        found = None
        if value.requires_grad:
            (found,) = torch.autograd.grad(value.sum(), v, create_graph=wanted, allow_unused=True)
    if found is None:
        if not allow_zero:  # it would be an attribution of nothing, or an attack that never moves
            raise no_gradient()
        found = torch.zeros_like(z)
    return found, value if wanted else value.detach()


def no_gradient() -> UnsupportedModel:
    """The error for a network whose output has no gradient in its input."""
    return UnsupportedModel(
        "the output cannot be differentiated in the input: call it outside torch.inference_mode(), with a model "
        "that neither detaches its input nor runs under no_grad"
    )


def vjp(f: Callable[[Tensor], Tensor], z: Tensor, v: Tensor) -> Tensor:
    """J_f(z)ᵀ v, differentiable in v and in all that f holds."""
    wanted = torch.is_grad_enabled()
    with torch.enable_grad():
        point = z.detach().requires_grad_()
        (back,) = torch.autograd.grad(f(point), point, v, create_graph=wanted)
    return back


@contextmanager
def second_order(model: Model) -> Iterator[None]:
    """While open, `model` is in eval mode and twice differentiable; on leaving, every flag is as it was."""
    module = model.module if isinstance(model, Bound) else model
    modules = list(module.modules()) if isinstance(module, nn.Module) else []
    in_train_mode = [m for m in modules if m.training]
    fast_attention = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as stack:
        if any(isinstance(m, nn.RNNBase) for m in modules):
            stack.enter_context(torch.backends.cudnn.flags(enabled=False))
        stack.enter_context(differentiated(once=False))
        try:
            torch.backends.mha.set_fastpath_enabled(False)
            for m in in_train_mode:
                m.training = False
            yield
        finally:
            for m in in_train_mode:
                m.training = True
            torch.backends.mha.set_fastpath_enabled(fast_attention)
