"""ρ of a model inside another library's wrapper: DistributedDataParallel, mixed precision.

DistributedDataParallel averages the gradients of what its forward pass returns. A loss that differentiates the bare
module behind its back gets no averaging; one that calls the wrapper along the path gets wrong gradients without an
error. Exact, also for a loss of attributions alone: the whole of ρ as one forward pass of the wrapper, which must look
for unused parameters (the last bias has no gradient in IG).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from robattr.errors import InvalidInput, UnsupportedModel
from robattr.formula import Distributional, Rho
from robattr.formula.network import Model
from robattr.training.custom import Objective, as_rho, check_objective

REMEDY = (
    "ρ would get wrong gradients without an error: set find_unused_parameters=True and static_graph=False "
    '(Lightning: strategy="ddp_find_unused_parameters_true"; Accelerate: '
    "Accelerator(kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)]); Hugging Face's "
    "Trainer: ddp_find_unused_parameters=True)"
)

SHARDED = ("FullyShardedDataParallel", "DeepSpeedEngine")


def rho_of(
    objective: Objective, model: nn.Module, x: Tensor, y: Tensor, *, view: Callable[[nn.Module], Model] | None = None
) -> Rho:
    """ρ(x, y; θ) of a model as `accelerator.prepare`, Lightning or DistributedDataParallel returned it.

        rho_of(objective, model, x, y).value.mean().backward()

    gives the gradient of the mean over all processes, each with as many examples. ρ is computed in float32, whatever
    mixed precision surrounds it. `view` makes of the bare module what the formula sees, if its forward pass is not
    already x ↦ logits.
    """
    check_wrapper(model)
    bare, found = unwrapped(model), list[Rho]()
    plain = vars(bare).get("_original_forward", vars(bare).get("forward"))  # Accelerate keeps the one in full precision

    def at(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        with _forward(bare, plain), torch.autocast(x.device.type, enabled=False):
            found.append(as_rho(objective(bare if view is None else view(bare), x, y), x))
        return found[0].loss, found[0].penalty

    if not isinstance(model, DistributedDataParallel):
        at(x, y)
        return found[0]
    with _forward(bare, at):
        loss, penalty = model(x, y)
    return replace(found[0], loss=loss, penalty=penalty)


def check_wrapper(model: nn.Module) -> None:
    """Refuse wrappers under which the gradient of ρ is wrong or unknown."""
    if isinstance(model, DistributedDataParallel) and (model.static_graph or not model.find_unused_parameters):
        raise UnsupportedModel(
            "expected DistributedDataParallel that looks for unused parameters, got "
            f"find_unused_parameters={model.find_unused_parameters}, static_graph={model.static_graph}. {REMEDY}"
        )
    sharded = [name for m in model.modules() if (name := type(m).__name__) in SHARDED]
    if sharded or any(hasattr(p, "device_mesh") for p in model.parameters()):  # FSDP of either version, tensor parallel
        raise UnsupportedModel(
            f"expected whole parameters on every process, got a sharded model ({(sharded or ['DTensor'])[0]}): second "
            "derivatives through sharded parameters are not tested; use DistributedDataParallel, or one process"
        )


def stateless(objective: Any) -> Objective:
    """The objective, refused if it is none, or if it has a state that the library's checkpoints would lose."""
    found = check_objective(objective, of="objective")
    if isinstance(found, Distributional):
        raise InvalidInput(
            "expected an objective without a state, got Distributional, whose γ these checkpoints would not keep: use "
            "robattr.train(config, out, objective=rho)"
        )
    return found


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside DistributedDataParallel."""
    inside: nn.Module = model.module if isinstance(model, DistributedDataParallel) else model
    return inside


@contextmanager
def _forward(module: nn.Module, function: Callable[..., Any] | None) -> Iterator[None]:
    """While open, `function` is the module's forward pass; None is the one of its class."""
    own = vars(module)
    kept = own.pop("forward", None)
    if function is not None:
        own["forward"] = function
    try:
        yield
    finally:
        own.pop("forward", None)
        if kept is not None:
            own["forward"] = kept
