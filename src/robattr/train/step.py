"""One step: the gradient of ρ over the global batch, and the update."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor, nn

from robattr.engine import precision
from robattr.errors import Diverged
from robattr.formula import IG, Change, Distributional, Rho, at_output
from robattr.formula.change import Measured
from robattr.train.distributed import Rand, World
from robattr.train.run import Objective, Run
from robattr.train.state import State


@dataclass(frozen=True)
class Report:
    """Means over the global batch, before the update."""

    loss: float
    penalty: float
    value: float
    cost: float
    accuracy: float
    ig: float  # ‖IG(x, x*)‖ alone, where ρ holds it and it was measured
    grad_norm: float
    stopping: bool  # whether any process was asked to stop


def descend(
    state: State,
    run: Run,
    x: Tensor,
    y: Tensor,
    *,
    batch: int,
    world: World,
    measure: bool = False,
    stopping: bool = False,
) -> Report:
    """θ ← θ − η_t · direction(∇_θ of the sum or mean of ρ over the global batch); γ ascends.

    x, y are this process's slice of the `batch` examples. `measure` asks for the accuracy and the size of IG, a few
    more passes. Everything that processes must agree on (gradient, figures, whether to stop) travels in one
    `all_reduce`, so they take every decision alike.
    """
    hits = correct(state.model, x, y) if measure else torch.zeros(())
    world.seed_layers(seed=run.seed, step=state.step)  # after a measurement, which may draw and must change nothing
    state.optimizer.zero_grad()
    rho = backward(state, x, y, rand=world.rand(batch, seed=run.seed, step=state.step))

    parameters = [p for p in state.model.parameters() if p.requires_grad]
    cost = torch.zeros_like(rho.loss) if rho.cost is None else rho.cost
    ig = size_of_ig(state.objective, state.model, x, rho.worst, y) if measure else torch.zeros(())
    figures = [
        rho.loss.sum(), rho.penalty.sum(), rho.value.sum(), cost.sum(), hits, ig.sum(), torch.tensor(float(stopping)),
    ]  # fmt: skip
    sums = torch.stack([figure.detach().to(rho.loss) for figure in figures])
    flat = world.total(torch.cat([*(_gradient(p) for p in parameters), sums.to(parameters[0])]))
    gradient, sums = flat[: -len(figures)], flat[-len(figures) :]
    if run.reduction == "mean":
        gradient /= batch

    norm = torch.linalg.vector_norm(gradient)
    loss, penalty, value, spent, right, attributed, stops = (sums / batch).tolist()
    report = Report(loss, penalty, value, spent, right, attributed, float(norm), stops > 0)
    if not (isfinite(report.value) and isfinite(report.grad_norm)):
        raise Diverged(f"step {state.step + 1} has loss {loss:.4g}, penalty {penalty:.4g} and gradient norm {norm:.4g}")
    if run.clip is not None:
        gradient *= (run.clip / norm.clamp_min(1e-12)).clamp_max(1.0)
    for parameter, part in zip(parameters, gradient.split([p.numel() for p in parameters]), strict=True):
        parameter.grad = _laid_out_like(parameter, part)
    for group in state.optimizer.param_groups:
        group["lr"] = run.rate(state.step)
    state.optimizer.step()
    if isinstance(state.objective, Distributional):
        state.objective.ascend(report.cost)
    state.step += 1
    state.average(run.average)
    return report


def backward(state: State, x: Tensor, y: Tensor, *, rand: Rand) -> Rho:
    """Σ ρ over the batch, its gradient added to every `parameter.grad`."""
    objective = state.objective
    if not isinstance(objective, Distributional):
        return state.engine(objective, x, y, rand=rand)
    rho = state.engine(objective.lagrangian, x, y, rand=rand)
    with precision(state.engine.arithmetic, x.device.type):
        return objective.dual(rho, state.model, x, y)


@torch.no_grad()
def correct(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """How many of the batch the model, in evaluation mode, classifies correctly."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    hits: Tensor = (model(x).argmax(1) == y).sum()
    for module, mode in modes.items():
        module.training = mode
    return hits


def has_ig(objective: Objective) -> bool:
    """Whether ρ holds the size of an attribution that is integrated (not the trivial ℓ(x') − ℓ(x))."""
    return bool(_sizes(objective))


@torch.no_grad()
def size_of_ig(objective: Objective, model: nn.Module, x: Tensor, worst: Tensor, y: Tensor) -> Tensor:
    """s(IG(x, x*)) of each example, without λ, β and what stands beside it in ρ: what the paper found to stay large."""
    return Change(tuple((1.0, size) for size in _sizes(objective)))(model, x, worst, y)


def _sizes(objective: Objective) -> list[Measured]:
    terms = [term for _, term in objective.change.terms]
    return [
        term
        for term in terms
        if isinstance(term, Measured) and isinstance(term.attribution, IG) and term.attribution.at != at_output
    ]


def _gradient(parameter: Tensor) -> Tensor:
    """A parameter's gradient as a vector; zero where ρ does not depend on it."""
    return (torch.zeros_like(parameter) if parameter.grad is None else parameter.grad).reshape(-1)


def _laid_out_like(parameter: Tensor, values: Tensor) -> Tensor:
    """`values`, a vector in the order of `reshape(-1)`, in the parameter's shape and memory layout.

    Fused optimisers ask for gradients that lie in memory as their parameters do.
    """
    gradient = values.view_as(parameter)
    return gradient if gradient.stride() == parameter.stride() else torch.empty_like(parameter).copy_(gradient)
