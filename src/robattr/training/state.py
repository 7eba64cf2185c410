"""The training state: what a step changes and a checkpoint stores; its optimiser."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from robattr.engine import Step
from robattr.errors import Diverged
from robattr.formula import Distributional
from robattr.training.config import Objective, TrainConfig


@dataclass
class TrainState:
    """Everything that a training step changes; a checkpoint stores its `snapshot`."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    objective: Objective
    engine: Step  # computes the gradients; has no state to save
    data: str  # digest of the dataset
    averaged: dict[str, Tensor] | None = None  # θ̄, if the run averages its weights
    layout: torch.memory_format = torch.contiguous_format  # of images and kernels
    step: int = 0  # updates done

    def __post_init__(self) -> None:
        self._initially_infinite = self._infinite()  # such as attention masks

    @property
    def gamma(self) -> Tensor | None:
        """The multiplier γ of a distributional objective."""
        return self.objective.gamma if isinstance(self.objective, Distributional) else None

    @gamma.setter
    def gamma(self, value: Tensor | None) -> None:
        if isinstance(self.objective, Distributional) and value is not None:
            self.objective.gamma = value

    def apply_ramps(self, run: TrainConfig, bounds: tuple[float, float]) -> None:
        """Rebuild the objective with λ and ε at this step of their ramps; γ is kept."""
        if run.weight_ramp or run.eps_ramp:
            gamma = self.gamma
            self.objective = run.at(self.step).objective(bounds)
            self.gamma = gamma

    def update_average(self, decay: float) -> None:
        """θ̄ ← d·θ̄ + (1 − d)·θ with d = min(decay, 1 − 1/t) after t updates: at first the plain mean.

        Only parameters are averaged. Buffers, such as batch-norm statistics, keep their latest values.
        """
        if self.averaged is not None:
            share = max(1 - decay, 1 / self.step)
            for name, parameter in self.model.named_parameters():
                self.averaged[name].lerp_(parameter.detach(), share)

    @torch.no_grad()
    def use_average(self) -> None:
        """Copy the averaged weights, if there are any, into the model."""
        for name, parameter in self.model.named_parameters():
            if self.averaged is not None:
                parameter.copy_(self.averaged[name])

    @contextmanager
    def averaged_weights(self) -> Iterator[nn.Module]:
        """The model with the averaged weights, if there are any; restores its own on exit."""
        if self.averaged is None:
            yield self.model
            return
        own = [p.detach().clone() for p in self.model.parameters()]
        self.use_average()
        try:
            yield self.model
        finally:
            with torch.no_grad():
                for parameter, value in zip(self.model.parameters(), own, strict=True):
                    parameter.copy_(value)

    def check_finite(self) -> None:
        """Raise `Diverged` if an update made a weight infinite or NaN, which the loss shows one step later."""
        wrong = [name for name in self._infinite() if name not in self._initially_infinite]
        if wrong:
            raise Diverged(f"step {self.step} made {wrong[0]!r} infinite or NaN")

    def _infinite(self) -> list[str]:
        return [name for name, value in self.model.state_dict().items() if not bool(torch.isfinite(value).all())]

    def snapshot(self) -> dict[str, Any]:
        """The state as tensors and plain values."""
        return {
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "gamma": self.gamma,
            "averaged": self.averaged,
            "data": self.data,
        }

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Load a `snapshot`."""
        self.model.load_state_dict(snapshot["model"])
        self.optimizer.load_state_dict(snapshot["optimizer"])
        self.gamma = snapshot["gamma"]
        if self.averaged is not None:
            for name, value in (snapshot.get("averaged") or {}).items():
                self.averaged[name].copy_(value)
        self.step = snapshot["step"]


def make_optimizer(run: TrainConfig, model: nn.Module) -> torch.optim.Optimizer:
    """Adam, or heavy-ball momentum v ← μv + g, θ ← θ − ηv, with g = ∇(ρ + decay·½Σw²).

    The sum is over convolution kernels and weight matrices; biases and normalisation layers are not decayed.
    """
    trainable = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trainable if p.ndim >= 2], "weight_decay": run.decay},
        {"params": [p for p in trainable if p.ndim < 2], "weight_decay": 0.0},
    ]
    fused = trainable[0].is_cuda  # one kernel for all parameters
    if run.optimizer == "momentum":
        return torch.optim.SGD(groups, lr=run.rate(0), momentum=run.momentum, fused=fused)
    return torch.optim.Adam(groups, lr=run.rate(0), betas=(0.9, 0.999), eps=1e-8, fused=fused)
