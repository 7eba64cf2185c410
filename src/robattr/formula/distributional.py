"""The distributional form of the objective, with a budget whose multiplier γ is found by dual ascent."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from robattr.formula.ascent import Ascent
from robattr.formula.change import Change
from robattr.formula.checks import check_number
from robattr.formula.neighbourhoods import Everywhere, Neighbourhood, Rand
from robattr.formula.network import Model, bind, second_order
from robattr.formula.objective import Rho, Robust, check_parts
from robattr.formula.scalars import Scalar, cross_entropy


@dataclass
class Distributional:
    """E[ℓ] + λ · sup {E[d(Z, Z')] : E[c(Z, Z')] ≤ budget}, through its dual (the lemma of theorem 2):

        inf_{γ ≥ 0} E[ sup_{z'} d(z, z') − γ c(z, z') + γ · budget ].

    Call it like `Robust`, then `ascend(rho.cost.mean())`: the derivative of the dual in γ is budget − E[c], so γ rises
    while the adversary spends more than its budget, and the infimum is where it spends exactly that. γ is the only
    state.
    """

    change: Change
    cost: Change
    budget: float
    by: Ascent
    weight: float = 1.0
    within: Neighbourhood = field(default_factory=Everywhere)
    loss: Scalar = cross_entropy
    rate: float = 0.1
    gamma: Tensor = field(default_factory=lambda: torch.tensor(1.0, dtype=torch.float64))

    def __post_init__(self) -> None:
        check_number("expected a finite budget", self.budget, positive=True)
        check_number("expected a finite rate of dual ascent", self.rate)
        check_number("expected a finite γ", float(self.gamma), positive=True)
        check_parts(self.weight, self.within, self.by, self.loss, change=self.change, cost=self.cost)

    @property
    def lagrangian(self) -> Robust:
        """The objective at the current γ."""
        return Robust(
            change=self.change - float(self.gamma) * self.cost,
            within=self.within,
            by=self.by,
            weight=self.weight,
            loss=self.loss,
        )

    def __call__(
        self, model: Model, x: Tensor, y: Tensor, *, start: Tensor | None = None, rand: Rand = torch.rand_like
    ) -> Rho:
        return self.dual(self.lagrangian(model, x, y, start=start, rand=rand), model, x, y)

    def dual(self, rho: Rho, model: Model, x: Tensor, y: Tensor) -> Rho:
        """The dual value and c(x, x*), from the `rho` of the Lagrangian."""
        with torch.no_grad(), second_order(model):
            spent = self.cost(bind(model), x, rho.worst, y)
        return replace(rho, penalty=rho.penalty + float(self.gamma) * self.budget, cost=spent)

    def ascend(self, mean_cost: Tensor | float) -> None:
        """One step of dual ascent, with `mean_cost` the mean of c over the whole batch:

            γ ← γ · exp(rate · (E[c] − ρ)/(E[c] + ρ)).

        In log γ, so that γ stays positive, and with a residual in (−1, 1), so that one rate serves every unit of cost.
        """
        spent = float(mean_cost)
        self.gamma = self.gamma * math.exp(self.rate * (spent - self.budget) / (spent + self.budget))
