"""The softplus twin of a network: the same weights, every ReLU replaced by a smooth function.

    relu(u)  →  s(u) = log(1 + e^{βu}) / β        leaky (slope a)  →  a·u + (1 − a)·s(u)

A ReLU network is piecewise linear: the gradient of its attribution is blind to curvature. The attribution attack takes
its direction from the twin and everything else from the network itself (paper, section on evaluation; β = 1).

A ReLU network stays the same function when one layer's weights grow and the next one's shrink by the same factor. Its
twin at a fixed β does not, so the strength of an attack by the twin depends on that arbitrary factor. The *relative*
twin measures u in units of its own size, r·s(u/r) with r the root mean square of u over the example, and is the same
for all those networks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from numbers import Real
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from robattr.errors import InvalidInput, UnsupportedModel
from robattr.formula.convolution import Replaced
from robattr.formula.network import AffineSplit, affine_split

# Past βu = 40 the kernel returns u itself; the exact value differs by e⁻⁴⁰, below the resolution of float64, in the
# value and in both derivatives. Torch's default of 20 leaves a step of 2e-9, and e⁴⁰ is still far from overflow.
THRESHOLD = 40.0


def softplus(u: Tensor, beta: float | Tensor) -> Tensor:
    """s(u) = log(1 + e^{βu})/β; s′ = sigmoid(βu); s″ = β s′(1 − s′).

    In the type of u, as a ReLU: under autocast on a GPU torch's is float32.
    """
    if isinstance(beta, Tensor):
        return (F.softplus(beta * u, 1.0, THRESHOLD) / beta).to(u.dtype)
    return F.softplus(u, beta, THRESHOLD).to(u.dtype)


def relative_softplus(u: Tensor, beta: float | Tensor) -> Tensor:
    """r·s(u/r), r = √(mean u²) of each example, a constant of the derivatives: positively homogeneous in u.

    Examples are along the first axis of u, which a network with `batch_first=False` inside mixes.
    """
    squares, inner = u.detach().square(), tuple(range(1, u.dim()))
    r = (squares.mean(dim=inner, keepdim=True) if inner else squares).sqrt().clamp_min(torch.finfo(u.dtype).tiny)
    return (r * softplus(u / r, beta)).to(u.dtype)


Soft = Callable[[Tensor], Tensor]


def _relu(soft: Soft, input: Tensor, inplace: bool = False) -> Tensor:
    return _result(input, soft(_kept(input, inplace)), inplace)


def _leaky(soft: Soft, input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    u = _kept(input, inplace)
    return _result(input, negative_slope * u + (1 - negative_slope) * soft(u), inplace)


def _prelu(soft: Soft, input: Tensor, weight: Tensor) -> Tensor:
    slope = weight.view(-1, *[1] * (input.ndim - 2)) if input.ndim > 1 else weight
    return slope * input + (1 - slope) * soft(input)


def _hardtanh(soft: Soft, input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Tensor:
    u = _kept(input, inplace)
    return _result(input, min_val + soft(u - min_val) - soft(u - max_val), inplace)


def _relu6(soft: Soft, input: Tensor, inplace: bool = False) -> Tensor:
    return _hardtanh(soft, input, 0.0, 6.0, inplace)


def _kept(u: Tensor, inplace: bool) -> Tensor:
    # softplus saves its argument for the backward pass; an overwritten argument must be saved as a copy.
    return u.clone() if inplace else u


def _result(input: Tensor, value: Tensor, inplace: bool) -> Tensor:
    # In place stays in place: a caller may ignore the returned tensor, or hold another view of the same one.
    return input.copy_(value) if inplace else value


aten = torch.ops.aten  # the operators that the graph of an exported module calls
SPELLINGS: tuple[tuple[Callable[..., Tensor], tuple[Any, ...], tuple[Any, ...]], ...] = (
    (_relu, (F.relu, torch.relu, Tensor.relu, aten.relu.default), (torch.relu_, Tensor.relu_, aten.relu_.default)),
    (_leaky, (F.leaky_relu, aten.leaky_relu.default), (F.leaky_relu_, aten.leaky_relu_.default)),
    (_prelu, (torch.prelu, Tensor.prelu, aten.prelu.default), ()),  # F.prelu is torch.prelu
    (_relu6, (F.relu6,), ()),
    (_hardtanh, (F.hardtanh, aten.hardtanh.default), (F.hardtanh_, aten.hardtanh_.default)),
)
"""The smooth version of each activation, its spellings, and its spellings in place."""

TWINS = {spelling: rule for rule, plain, _ in SPELLINGS for spelling in plain} | {
    spelling: partial(rule, inplace=True) for rule, _, in_place in SPELLINGS for spelling in in_place
}
"""By spelling. Max-pool, clamp, maximum, GELU, SiLU, ELU, … are unchanged."""


def _softened(soft: Soft) -> Replaced:
    """While active, calls of the activations in TWINS compute their smooth versions."""
    return Replaced({spelling: partial(rule, soft) for spelling, rule in TWINS.items()})


class Smooth(nn.Module):
    """The softplus twin of `module`, with the same parameters, buffers, children and flags under the same names.

    They are shared, not copied: a change of one is a change of both, and layer names and state dicts agree.
    """

    twin_of: nn.Module

    def __init__(self, module: nn.Module, beta: float | Tensor, *, relative: bool) -> None:
        flag = module.training
        self.__dict__["twin_of"] = module  # not registered: a child would prefix every name
        super().__init__()
        self.twin_beta, self.twin_relative = beta, relative
        self.__dict__.update(_parameters=module._parameters, _buffers=module._buffers, _modules=module._modules)
        module.training = flag  # nn.Module.__init__ has just set it through the property below

    @property
    def training(self) -> bool:
        return self.twin_of.training

    @training.setter
    def training(self, flag: bool) -> None:
        self.twin_of.training = flag

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        soft = relative_softplus if self.twin_relative else softplus
        with _softened(partial(soft, beta=self.twin_beta)):
            return self.twin_of(*args, **kwargs)

    def affine_split(self) -> AffineSplit | None:
        """The split of the network with a smooth rest; the affine stem has no activation."""
        found = affine_split(self.twin_of)
        if found is None:
            return None
        return found._replace(rest=Smooth(found.rest, self.twin_beta, relative=self.twin_relative))


def smooth(model: nn.Module, beta: float = 1.0, *, relative: bool = False) -> Smooth:
    """The softplus twin of `model`, whose activations may be modules or function calls, in place or not.

    β → ∞ gives back the network. With `relative`, β is in units of one over the size of the activation's input. Nothing
    is edited or copied. Works under `torch.func` transforms and inside a compiled gradient function. A clamp(min=0) or
    maximum(u, 0) is not treated as an activation (it also guards variances). Not supported: TorchScript, which is
    refused, and activation checkpointing, whose second forward pass would run without the twin (torch.func refuses
    it; plain autograd does not: switch it off).
    """
    if not isinstance(model, nn.Module):
        raise UnsupportedModel(f"expected a torch.nn.Module to smooth, got {type(model).__name__}: wrap it in one")
    if any(isinstance(part, torch.jit.ScriptModule) for part in model.modules()):
        raise UnsupportedModel("the activations of a TorchScript module cannot be replaced: pass the eager module")
    if not (isinstance(beta, Real) and 0 < beta < float("inf")):
        raise InvalidInput(f"expected a finite softplus sharpness beta > 0, got {beta}")
    return Smooth(model, float(beta), relative=relative)


def has_activations(model: nn.Module, x: Tensor) -> bool:
    """Whether the twin of `model` is another function at all: whether a pass at x calls an activation of TWINS."""
    called = []

    def soft(u: Tensor) -> Tensor:
        called.append(u.shape)
        return F.relu(u)

    with torch.no_grad(), _softened(soft):
        model(x)
    return bool(called)
