"""Doors to the neighbours: our scores under Quantus' calling convention, per-example losses as MadryLab's robustness
writes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import nan
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from robattr.attacks.ifia import IFIA, Measure
from robattr.attacks.maps import AttributionMap, from_callable, gradient_input, integrated_gradients
from robattr.auditing.wrapped_model import wrap
from robattr.errors import InvalidInput, nearest
from robattr.evaluation.protocol import check_radius
from robattr.formula.network import Model, second_order
from robattr.formula.scalars import Scalar
from robattr.metrics import cosine, kendall, spearman, topk_intersection

Array = NDArray[Any]
Explain = Callable[..., Any]
CustomLoss = Callable[[Model, Tensor, Tensor], tuple[Tensor, Any]]


@dataclass(frozen=True)
class AttributionRobustness:
    """How much of an explanation survives the worst perturbation of radius ε, as a Quantus metric is called.

        AttributionRobustness(score="kendall", eps=8/255)(model=model, x_batch=x, y_batch=y) -> [0.31, 0.44, …]

    One float per example, 1 = unmoved; nan where the model's answer is not y: there is no right explanation to keep.
    With `explain_func(model, inputs, targets, **explain_func_kwargs)` its maps are scored, and the attack follows
    gradient × input; otherwise `map` is both.
    """

    score: str = "kendall"
    eps: float = 8 / 255
    alpha: float | None = None
    steps: int = 50
    k: int | None = None
    restarts: int = 1
    bounds: tuple[float, float] = (0.0, 1.0)
    map: AttributionMap | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        known = ("kendall", "spearman", "topk", "cosine")
        if self.score not in known:
            raise InvalidInput(f"unknown score {self.score!r}: {nearest(self.score, known)}")
        check_radius(self.eps, self.bounds)

    def __call__(
        self,
        *,
        model: nn.Module,
        x_batch: Array | Tensor,
        y_batch: Array | Tensor,
        a_batch: Array | None = None,
        explain_func: Explain | None = None,
        explain_func_kwargs: Mapping[str, Any] | None = None,
        device: torch.device | str | None = None,
        batch_size: int = 64,
    ) -> list[float]:
        """Scores of the batch. `a_batch` is accepted and not used: the maps of x are made as those of x' are."""
        del a_batch
        net, _ = wrap(model, device=device)
        place = next(net.parameters(), torch.zeros(0)).device
        x = torch.as_tensor(x_batch, dtype=torch.float32, device=place)
        y = torch.as_tensor(y_batch, device=place)
        if y.is_floating_point():
            raise InvalidInput(f"expected whole-number labels, got {y.dtype}: use astype(int)")
        y = y.long()
        map = self.map or integrated_gradients()
        if explain_func is not None:
            map = _explained(explain_func, dict(explain_func_kwargs or {}))
        pixels = int(x[0].numel() if x.dim() != 4 else x[0, 0].numel())
        k = self.k or max(1, pixels // 10)
        attack = IFIA(
            net,
            self.eps,
            self.eps / 8 if self.alpha is None else self.alpha,
            self.steps,
            k=k,
            restarts=self.restarts,
            map=map,
            bounds=self.bounds,
            measures={self.score: _measure(self.score, k)},
            seed=self.seed,
        )
        scores: list[float] = []
        with second_order(net):
            for start in range(0, len(x), batch_size):
                part = slice(start, start + batch_size)
                with torch.no_grad():
                    right = net(x[part]).argmax(dim=1) == y[part]
                found = torch.full(right.shape, nan, dtype=torch.float64, device=place)
                if right.any():
                    at = right.nonzero()[:, 0]
                    found[at] = attack(x[part][at], y[part][at], ids=(at + start).tolist()).score
                scores += found.tolist()
        return scores


def from_robustness(custom_loss: CustomLoss) -> Scalar:
    """MadryLab's `custom_loss(model, x, y) -> (losses (B,), …)` as the scalar of an objective: `madry(..., loss=…)`."""

    def scalar(model: Model, x: Tensor, y: Tensor) -> Tensor:
        losses = custom_loss(model, x, y)[0]
        if losses.shape != y.shape:
            raise InvalidInput(
                f"expected one loss per example, {tuple(y.shape)}, got {tuple(losses.shape)}: reduce none"
            )
        return losses

    return scalar


def to_robustness(of: Scalar) -> CustomLoss:
    """Any scalar of the formula, `cross_entropy` or `margin`, as MadryLab's `custom_loss`: (losses (B,), None)."""
    return lambda model, x, y: (of(model, x, y), None)


def _measure(name: str, k: int) -> Measure:
    return {
        "kendall": kendall,
        "spearman": spearman,
        "cosine": cosine,
        "topk": lambda a, b: topk_intersection(a, b, k),
    }[name]


def _explained(explain: Explain, settings: dict[str, Any]) -> AttributionMap:
    def attribute(model: Model, x: Tensor, y: Tensor) -> Tensor:
        found = explain(model, inputs=x.detach().cpu().numpy(), targets=y.cpu().numpy(), **settings)
        return torch.from_numpy(np.array(found, dtype=np.float32)).to(x)

    return from_callable(attribute, name="explain_func", guide=gradient_input())
