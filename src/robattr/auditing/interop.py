"""Interfaces to other libraries: Captum's methods as maps, a Quantus metric, losses of MadryLab's robustness."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import nan
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from robattr._extras import need
from robattr.attacks.ifia import IFIA
from robattr.attacks.maps import AttributionMap, from_callable, gradient_input, integrated_gradients, simple_gradient
from robattr.attacks.result import Measure
from robattr.auditing.wrapped_model import wrap
from robattr.errors import InvalidInput, UnsupportedModel, nearest
from robattr.evaluation.protocol import check_radius
from robattr.formula.network import Model, second_order
from robattr.formula.scalars import Scalar
from robattr.metrics import cosine, kendall, spearman, topk_intersection

Array = NDArray[Any]
Explain = Callable[..., Any]
CustomLoss = Callable[[Model, Tensor, Tensor], tuple[Tensor, Any]]

# Maps that an attack differentiates instead of a Captum method, whose results have no usable derivative.
GUIDES: dict[str, Callable[[], AttributionMap]] = {
    "Saliency": simple_gradient,
    "InputXGradient": gradient_input,
    "IntegratedGradients": integrated_gradients,
}

# Scores of AttributionRobustness; the top-k intersection needs its k.
SCORES: dict[str, Measure | None] = {"kendall": kendall, "spearman": spearman, "cosine": cosine, "topk": None}


def captum_map(method: str, *, guide: AttributionMap | None = None) -> AttributionMap:
    """The map of `captum.attr.<method>`, for the methods that need nothing but a model, inputs and a target.

    The attack follows `guide` (default: robattr's nearest map) on the softplus twin and is scored on Captum's map, so
    that the score is an upper bound on its robustness.
    """
    attr = need("captum.attr", extra="interop")
    usable = [name for name in attr.__all__ if _takes_inputs_and_target(getattr(attr, name))]
    if method not in usable:
        raise InvalidInput(
            f"captum:{method} cannot be used by name (it is unknown, or needs arguments): {nearest(method, usable)}; "
            "make a map of any other method with robattr.attacks.from_callable"
        )
    make = getattr(attr, method)

    def attribute(model: Model, x: Tensor, y: Tensor) -> Tensor:
        inputs = x.detach().clone().requires_grad_()
        with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
            torch.manual_seed(0)  # the noise of a method that samples must not count as fragility
            try:
                found: Tensor = make(model).attribute(inputs, target=y)
            except (RuntimeError, AssertionError, AttributeError, TypeError, ValueError, ImportError) as cause:
                raise UnsupportedModel(
                    f"captum:{method} fails on this model: {cause}. Methods with hooks refuse in-place and reused "
                    "activations; captum:Saliency and captum:IntegratedGradients need no hooks"
                ) from cause
        return found.detach()

    near = GUIDES.get(method, gradient_input)()
    return from_callable(attribute, name=f"captum-{method}", guide=guide or near, slope=near.slope)


def for_captum(attributions: Tensor) -> NDArray[Any]:
    """Attributions (B, C, H, W), or maps (B, H, W), as the arrays (B, H, W, C) that Captum's visualisation takes.

    `captum.attr.visualization.visualize_image_attr(for_captum(a)[0], for_captum(x)[0], method="blended_heat_map")`
    """
    if attributions.dim() not in (3, 4):
        raise InvalidInput(f"expected attributions (B, C, H, W) or maps (B, H, W), got {tuple(attributions.shape)}")
    wide = attributions[:, None] if attributions.dim() == 3 else attributions
    array: NDArray[Any] = np.ascontiguousarray(wide.detach().cpu().numpy().transpose(0, 2, 3, 1))
    return array


@dataclass(frozen=True)
class AttributionRobustness:
    """Similarity of an explanation before and after the worst perturbation of radius ε, called like a Quantus metric.

        AttributionRobustness(score="kendall", eps=8/255)(model=model, x_batch=x, y_batch=y) -> [0.31, 0.44, …]

    One float per example, 1 = unchanged; nan where the prediction is not y, or no attack step kept it. With
    `explain_func(model, inputs, targets, **explain_func_kwargs)` its maps are scored and the attack follows
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
        if self.score not in SCORES:
            raise InvalidInput(f"unknown score {self.score!r}: {nearest(self.score, SCORES)}")
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
        """Score the batch. `a_batch` is ignored: the maps of x are computed in the same way as those of x'."""
        del a_batch
        net, _ = wrap(model, device=device)
        place = next(net.parameters(), torch.zeros(0)).device
        x = torch.as_tensor(x_batch, dtype=torch.float32, device=place)
        y = torch.as_tensor(y_batch, device=place)
        if y.is_floating_point():
            raise InvalidInput(f"expected whole-number labels, got {y.dtype}: use astype(int)")
        y, map = y.long(), self.map or integrated_gradients()
        if explain_func is not None:
            map = _explained(explain_func, dict(explain_func_kwargs or {}))
        k = self.k or max(1, (x[0, 0] if x.dim() == 4 else x[0]).numel() // 10)
        alpha = self.eps / 8 if self.alpha is None else self.alpha
        attack = IFIA(
            net, self.eps, alpha, self.steps, k=k, restarts=self.restarts, map=map, bounds=self.bounds, seed=self.seed,
            measures={self.score: SCORES[self.score] or partial(topk_intersection, k=k)},
        )  # fmt: skip
        scores: list[float] = []
        with second_order(net):
            for start in range(0, len(x), batch_size):
                part = slice(start, start + batch_size)
                with torch.no_grad():
                    right = net(x[part]).argmax(dim=1) == y[part]
                found = torch.full(right.shape, nan, dtype=torch.float64, device=place)
                if right.any():
                    at = right.nonzero()[:, 0]
                    got = attack(x[part][at], y[part][at], ids=(at + start).tolist())
                    found[at] = got.score.masked_fill(~got.kept, nan)
                scores += found.tolist()
        return scores


def from_robustness(custom_loss: CustomLoss) -> Scalar:
    """MadryLab's `custom_loss(model, x, y) -> (losses (B,), …)` as the scalar of an objective: `madry(..., loss=…)`."""

    def scalar(model: Model, x: Tensor, y: Tensor) -> Tensor:
        losses = custom_loss(model, x, y)[0]
        if losses.shape != y.shape:
            raise InvalidInput(
                f"expected one loss per example, {tuple(y.shape)}, got {tuple(losses.shape)}: use reduction='none'"
            )
        return losses

    return scalar


def to_robustness(of: Scalar) -> CustomLoss:
    """Any scalar of the formula, `cross_entropy` or `margin`, as MadryLab's `custom_loss`: (losses (B,), None)."""
    return lambda model, x, y: (of(model, x, y), None)


def _explained(explain: Explain, settings: dict[str, Any]) -> AttributionMap:
    def attribute(model: Model, x: Tensor, y: Tensor) -> Tensor:
        found = explain(model, inputs=x.detach().cpu().numpy(), targets=y.cpu().numpy(), **settings)
        return torch.from_numpy(np.array(found, dtype=np.float32)).to(x)

    return from_callable(attribute, name="explain_func", guide=gradient_input())


def _takes_inputs_and_target(method: Any) -> bool:
    """Whether Method(model).attribute(inputs, target=…) is a complete call."""
    if not (inspect.isclass(method) and hasattr(method, "attribute")):
        return False

    def required(function: Any) -> set[str]:
        parameters = inspect.signature(function).parameters.values()
        variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        return {p.name for p in parameters if p.default is p.empty and p.kind not in variable} - {"self"}

    return (
        "target" in inspect.signature(method.attribute).parameters
        and required(method.__init__) <= {"model", "forward_func"}
        and required(method.attribute) <= {"inputs"}
    )
