"""One training step: the gradient of ρ over the global batch, and the update."""

from __future__ import annotations

from dataclasses import dataclass, replace
from inspect import signature
from math import isfinite

import torch
from torch import Tensor, nn

from robattr.data import Dataset
from robattr.engine import precision
from robattr.engine.processes import Rand, World
from robattr.errors import Diverged, InvalidInput
from robattr.formula import IG, Change, Distributional, Joint, Rho, Robust, at_output
from robattr.formula.change import Measured
from robattr.training.config import Objective, TrainConfig
from robattr.training.custom import as_rho
from robattr.training.state import TrainState

READ_EVERY = 20  # steps on a GPU between two looks at the metrics
CHUNK = 500  # validation examples classified together


@dataclass(frozen=True)
class StepMetrics:
    """Means over the global batch, before the update."""

    loss: float
    penalty: float  # before λ
    value: float  # ρ
    cost: float  # c(x, x*) of a distributional objective
    accuracy: float
    ig: float  # s(IG(x, x*)) without the other terms of ρ
    grad_norm: float
    stopping: bool  # whether any process was asked to stop

    def record(self, state: TrainState, run: TrainConfig) -> dict[str, float]:
        """A line of `metrics.jsonl`, after the update."""
        now, objective = run.at(state.step - 1), state.objective
        line = {
            "loss": self.loss, "penalty": self.penalty, "value": self.value, "accuracy": self.accuracy,
            "lr": run.rate(state.step - 1), "weight": now.weight, "eps": now.eps, "grad_norm": self.grad_norm,
        }  # fmt: skip
        if run.own is not None:  # the keys of the run may not be those of the objective
            own = {"weight": getattr(objective, "weight", None)}
            own["eps"] = getattr(getattr(objective, "within", None), "radius", None)
            line = {key: value for key, value in line.items() if key not in own}
            line |= {key: float(value) for key, value in own.items() if value is not None}
        if _ig_sizes(state.objective):
            line["ig"] = self.ig
        return line if state.gamma is None else {**line, "cost": self.cost, "gamma": float(state.gamma)}


def train_step(
    state: TrainState,
    run: TrainConfig,
    x: Tensor,
    y: Tensor,
    *,
    batch: int,
    world: World,
    measure: bool = False,
    read: bool = True,
    stopping: bool = False,
) -> StepMetrics | None:
    """θ ← θ − η_t · direction(∇_θ of the sum or mean of ρ over the global batch); γ ascends.

    x, y are this process's slice of the `batch` examples. `measure` asks for the accuracy and the size of IG, which
    cost a few more passes. One `all_reduce` carries the gradient, the metrics and the request to stop, so all
    processes take the same decisions. Reading the metrics waits for a GPU: one process there reads them, and notices
    divergence, only where `read` or `measure` asks for it and every `READ_EVERY` steps; otherwise returns None.
    """
    engine, hits = state.engine, y.new_zeros(())
    if measure:
        hits = torch.stack(engine.in_parts(lambda part: correct(state.model, x[part], y[part]), x)).sum()
    world.seed_layers(seed=run.seed, step=state.step)  # after measuring, which may draw random numbers
    state.optimizer.zero_grad()
    rho = backward(state, x, y, rand=world.rand(batch, seed=run.seed, step=state.step))

    parameters = [p for p in state.model.parameters() if p.requires_grad]
    cost = torch.zeros_like(rho.loss) if rho.cost is None else rho.cost
    ig = torch.zeros_like(rho.loss)
    if measure:
        ig = torch.cat(
            engine.in_parts(lambda part: size_of_ig(state.objective, state.model, x[part], rho.worst[part], y[part]), x)
        )
    parts = [
        rho.loss.sum(), rho.penalty.sum(), rho.value.sum(), cost.sum(), hits, ig.sum(), rho.loss.new_full((), stopping),
    ]  # fmt: skip
    sums = torch.stack([part.detach().to(rho.loss) for part in parts])
    flat = world.total(torch.cat([*(_flat_gradient(p) for p in parameters), sums.to(parameters[0])]))
    gradient, sums = flat[: -len(parts)], flat[-len(parts) :]
    if run.reduction == "mean":
        gradient /= batch

    norm = torch.linalg.vector_norm(gradient)
    dual = isinstance(state.objective, Distributional)
    at_once = not x.is_cuda or world.size > 1 or dual or (state.step + 1) % READ_EVERY == 0
    metrics = _read(sums / batch, norm, step=state.step + 1) if read or measure or at_once else None
    if run.clip is not None:
        gradient *= (run.clip / norm.clamp_min(1e-12)).clamp_max(1.0)
    for parameter, part in zip(parameters, gradient.split([p.numel() for p in parameters]), strict=True):
        parameter.grad = _laid_out_like(parameter, part)
    for group in state.optimizer.param_groups:
        group["lr"] = run.rate(state.step)
    state.optimizer.step()
    if isinstance(state.objective, Distributional):
        assert metrics is not None
        state.objective.ascend(metrics.cost)
    state.step += 1
    state.update_average(run.average)
    return metrics


def _read(means: Tensor, norm: Tensor, *, step: int) -> StepMetrics:
    """The metrics of a step on the host; raises where they are not finite."""
    loss, penalty, value, cost, accuracy, ig, stops = means.tolist()
    metrics = StepMetrics(loss, penalty, value, cost, accuracy, ig, float(norm), stops > 0)
    if not (isfinite(value) and isfinite(metrics.grad_norm)):
        raise Diverged(f"step {step} has loss {loss:.4g}, penalty {penalty:.4g} and gradient norm {float(norm):.4g}")
    return metrics


def backward(state: TrainState, x: Tensor, y: Tensor, *, rand: Rand) -> Rho:
    """Σ ρ over the batch; adds its gradient to every `parameter.grad`."""
    objective = state.objective
    if isinstance(objective, Robust | Joint):
        return state.engine(objective, x, y, rand=rand)
    if not isinstance(objective, Distributional):
        given = {"rand": rand} if "rand" in signature(objective).parameters else {}
        with precision(state.engine.arithmetic, x.device.type):
            rho = as_rho(objective(state.model, x, y, **given), x)
            rho.value.sum().backward()
        return replace(rho, loss=rho.loss.detach(), penalty=rho.penalty.detach())
    rho = state.engine(objective.lagrangian, x, y, rand=rand)
    with precision(state.engine.arithmetic, x.device.type):
        return objective.dual(rho, state.model, x, y)


@torch.no_grad()
def correct(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The number of examples that the model classifies correctly in eval mode."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    hits: Tensor = (model(x).argmax(1) == y).sum()
    for module, mode in modes.items():
        module.training = mode
    return hits


def validate(model: nn.Module, data: Dataset, *, world: World) -> float:
    """Accuracy on the validation split; the processes share its chunks."""
    split, dtype = data.validation, next(model.parameters()).dtype
    if not len(split):
        raise InvalidInput(
            f"{data.name} has no validation examples to compare runs on: bring ten or more of each class, or a folder "
            "validation/ beside train/"
        )
    counts = torch.zeros(2, device=world.device)
    for first in range(world.rank * CHUNK, len(split), world.size * CHUNK):
        x = data.pixels(split.images[first : first + CHUNK].to(world.device)).to(dtype)
        y = split.labels[first : first + CHUNK].to(world.device)
        counts += torch.stack([correct(model, x, y), torch.tensor(len(y), device=world.device)])
    hits, total = world.total(counts).tolist()
    return float(hits / total)


@torch.no_grad()
def size_of_ig(objective: Objective, model: nn.Module, x: Tensor, worst: Tensor, y: Tensor) -> Tensor:
    """s(IG(x, x*)) of each example, without λ, β and the other terms of ρ."""
    return Change(tuple((1.0, size) for size in _ig_sizes(objective)))(model, x, worst, y)


def _ig_sizes(objective: Objective) -> list[Measured]:
    """The sizes of integrated attributions in ρ; ℓ(x') − ℓ(x), an IG at the output, is not one."""
    if not isinstance(objective, Robust | Distributional):
        return []
    terms = [term for _, term in objective.change.terms]
    return [
        term
        for term in terms
        if isinstance(term, Measured) and isinstance(term.attribution, IG) and term.attribution.at != at_output
    ]


def _flat_gradient(parameter: Tensor) -> Tensor:
    """A parameter's gradient as a vector; zero if ρ does not depend on it."""
    return (torch.zeros_like(parameter) if parameter.grad is None else parameter.grad).reshape(-1)


def _laid_out_like(parameter: Tensor, values: Tensor) -> Tensor:
    """`values`, a vector in the order of `reshape(-1)`, with the parameter's shape and strides.

    Fused optimisers require gradients with the strides of their parameters.
    """
    gradient = values.view_as(parameter)
    return gradient if gradient.stride() == parameter.stride() else torch.empty_like(parameter).copy_(gradient)
