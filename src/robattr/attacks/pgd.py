"""The prediction attack behind the Adv Acc column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from robattr._form import check_fields
from robattr.attacks import per_example_rng
from robattr.errors import InvalidInput, brief
from robattr.formula.ascent import APGD, PGD, Ascent, Best, grad_and_value, last_iterate
from robattr.formula.checks import check_batch, check_model
from robattr.formula.neighbourhoods import LinfBall, check_bounds
from robattr.formula.network import Model, bind, second_order
from robattr.formula.scalars import Scalar, cross_entropy, margin


@dataclass(frozen=True)
class PGDAttack:
    """x' ← Π(x' + α·sign ∇ℓ(x', y)), `steps` times, in the L∞ ball of radius ε and the pixel range.

    `PGDAttack(model, eps, alpha, steps)(x, y) -> x_adv`. As in the reference the last iterate is kept; with `best`, the
    one of the highest loss. Of several restarts, each example keeps its worst point: misclassified points first, then
    by loss. `adaptive` uses APGD. `ids` name the examples: random starts depend on the id and the seed alone.
    """

    model: nn.Module
    eps: float
    alpha: float
    steps: int
    restarts: int = 1
    loss: Scalar = cross_entropy
    bounds: tuple[float, float] = (0.0, 1.0)
    adaptive: bool = False
    best: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self)
        if not callable(self.loss) or isinstance(self.loss, nn.Module | type):
            raise InvalidInput(
                f"expected a loss (model, x, y) -> (B,), such as robattr.cross_entropy, got {brief(self.loss)}"
            )

    def __call__(self, x: Tensor, y: Tensor, *, ids: Sequence[int] | None = None) -> Tensor:
        check_attack(self, x, y, ids)
        x = x.detach()
        rows = [(i,) for i in (range(len(x)) if ids is None else ids)]
        wide = (-1, *(1,) * (x.dim() - 1))
        with second_order(self.model), torch.no_grad():
            net = bind(self.model).detach()
            worst, highest = x, torch.full_like(y, -torch.inf, dtype=x.dtype)
            for z in self._candidates(net, x, y, rows):
                rank = self._rank(net, z, y)
                higher = rank > highest
                worst = torch.where(higher.view(wide), z, worst)
                highest = torch.where(higher, rank, highest)
        return worst

    @property
    def cost(self) -> int:
        """Forward or backward passes of the network for one example."""
        return self.restarts * (2 * (self.steps + self.best) + (1 if self.loss is margin else 2))

    def _candidates(self, net: Model, x: Tensor, y: Tensor, rows: Sequence[per_example_rng.Row]) -> Iterator[Tensor]:
        within = LinfBall(self.eps, self.bounds)
        ascent: Ascent = APGD(self.steps, 2 * self.eps) if self.adaptive else PGD(self.steps, self.alpha)
        grad = grad_and_value(lambda z: self.loss(net, z, y))
        for restart in range(self.restarts):
            rand = per_example_rng.rand_like(rows, self.seed, restart)
            start = within.start(x, rand)
            yield last_iterate(Best(ascent) if self.best else ascent, grad, x, within, start=start, rand=rand)

    def _rank(self, net: Model, z: Tensor, y: Tensor) -> Tensor:
        """A number that is larger for misclassified points, and increases with the loss among equals."""
        loss = self.loss(net, z, y)
        if self.loss is margin:  # above 0 exactly where misclassified
            return loss
        wrong = net(z).argmax(dim=1) != y
        return torch.where(wrong, 1.0, -1.0) + loss.atan() / 2


LEAST = {"alpha": 0, "steps": 1, "restarts": 1, "seed": 0, "k": 1, "every": 1, "window": 1, "frames": 0}


def check_attack(attack: Any, x: Tensor, y: Tensor, ids: Sequence[int] | None) -> None:
    """Refuse examples that the model does not take, ids of another number, and settings that cannot attack."""
    check_model(attack.model)
    check_batch(attack.model, x, y, finite=False)  # an example with NaN has no score, and the others have theirs
    if y.is_floating_point():
        raise InvalidInput(f"expected integer class labels y, got {y.dtype}: use y.long()")
    if ids is not None and not (len(ids) == len(x) and all(isinstance(i, Integral) and i >= 0 for i in ids)):
        raise InvalidInput(f"expected {len(x)} ids, one per example, whole numbers of at least 0, got {brief(ids)}")
    for name, least in LEAST.items():
        if not (value := getattr(attack, name, least)) >= least:
            raise InvalidInput(f"expected {name} of at least {least}, got {value}")
    check_bounds(x, attack.bounds)
