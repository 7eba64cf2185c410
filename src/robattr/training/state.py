"""The state of a run: what a step changes and a checkpoint holds."""

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
    """All that a step changes."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    objective: Objective
    engine: Step  # how gradients are computed; holds nothing that must be saved
    averaged: dict[str, Tensor] | None = None  # θ̄, where the run averages its weights
    step: int = 0  # updates done

    def __post_init__(self) -> None:
        self._infinite_on_purpose = self._infinite()  # as attention masks are

    def average(self, decay: float) -> None:
        """θ̄ ← d·θ̄ + (1 − d)·θ with d = min(decay, 1 − 1/t), t the updates done: at first the plain mean of all of them.

        Parameters alone; buffers, such as the statistics of batch norm, stay the last ones.
        """
        if self.averaged is not None:
            share = max(1 - decay, 1 / self.step)
            for name, parameter in self.model.named_parameters():
                self.averaged[name].lerp_(parameter.detach(), share)

    @contextmanager
    def at_average(self) -> Iterator[nn.Module]:
        """The model with the averaged weights, if the run has them; its own are back afterwards."""
        own = {name: p.detach().clone() for name, p in self.model.named_parameters()} if self.averaged else {}
        try:
            self.settle()
            yield self.model
        finally:
            self._put(own)

    def settle(self) -> None:
        """Let the averaged weights, if there are any, be the model's: how a run ends."""
        self._put(self.averaged or {})

    @torch.no_grad()
    def _put(self, values: Mapping[str, Tensor]) -> None:
        for name, parameter in self.model.named_parameters():
            if name in values:
                parameter.copy_(values[name])

    def follow(self, run: TrainConfig, bounds: tuple[float, float]) -> None:
        """Let the objective follow the ramps of λ and ε; γ is kept."""
        if run.weight_ramp or run.eps_ramp:
            gamma = self.gamma
            self.objective = run.at(self.step).objective(bounds)
            self.gamma = gamma

    @property
    def gamma(self) -> Tensor | None:
        """The multiplier of a distributional objective."""
        return self.objective.gamma if isinstance(self.objective, Distributional) else None

    @gamma.setter
    def gamma(self, value: Tensor | None) -> None:
        if isinstance(self.objective, Distributional) and value is not None:
            self.objective.gamma = value

    def check_finite(self) -> None:
        """Refuse weights that an update has made infinite: the loss would say so only at the next step."""
        wrong = [name for name in self._infinite() if name not in self._infinite_on_purpose]
        if wrong:
            raise Diverged(f"step {self.step} has made {wrong[0]!r} infinite or NaN")

    def _infinite(self) -> list[str]:
        return [name for name, value in self.model.state_dict().items() if not bool(torch.isfinite(value).all())]

    def snapshot(self) -> dict[str, Any]:
        """Everything, as tensors and plain values."""
        return {
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "gamma": self.gamma,
            "averaged": self.averaged,
        }

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Become what `snapshot` was taken of."""
        self.model.load_state_dict(snapshot["model"])
        self.optimizer.load_state_dict(snapshot["optimizer"])
        self.gamma = snapshot["gamma"]
        for name, value in (snapshot.get("averaged") or {}).items():
            if self.averaged is not None:
                self.averaged[name].copy_(value)
        self.step = snapshot["step"]


def make_optimizer(run: TrainConfig, model: nn.Module) -> torch.optim.Optimizer:
    """Adam, or heavy-ball momentum v ← μv + g, θ ← θ − ηv, on g = ∇(ρ + decay·½Σw²).

    The sum runs over convolution kernels and weight matrices; biases and normalisation are not decayed.
    """
    free = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in free if p.ndim >= 2], "weight_decay": run.decay},
        {"params": [p for p in free if p.ndim < 2], "weight_decay": 0.0},
    ]
    fused = free[0].is_cuda  # one kernel for all parameters
    if run.optimizer == "momentum":
        return torch.optim.SGD(groups, lr=run.rate(0), momentum=run.momentum, fused=fused)
    return torch.optim.Adam(groups, lr=run.rate(0), betas=(0.9, 0.999), eps=1e-8, fused=fused)
