"""The methods that a configuration names: the objective of each, from the settings that it uses.

A new method is a name in `Method` (`method_names`) and an entry of `METHODS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from robattr import objectives
from robattr.formula import (
    PGD,
    BaselineIG,
    Everywhere,
    L2Ball,
    LinfBall,
    LpBall,
    cross_entropy,
    displacement,
    l2,
    power,
)  # fmt: skip
from robattr.formula.change import Change
from robattr.formula.distributional import Distributional
from robattr.formula.neighbourhoods import Bounds
from robattr.formula.quadrature import Rules, gauss_legendre, left, midpoint, radau, right
from robattr.training.custom import Objective
from robattr.training.method_names import Method as Method

if TYPE_CHECKING:
    from robattr.training.config import TrainConfig

RULES: dict[str, Rules] = {
    "left": left, "right": right, "midpoint": midpoint, "gauss-legendre": gauss_legendre, "radau": radau,
}  # fmt: skip
FAR = 1e4  # step of input-gradient regularisation, in radii: the random start keeps a share of 1e-4


@dataclass(frozen=True)
class Parts:
    """The parts of ρ that a configuration's settings make, for inputs within `bounds`."""

    run: TrainConfig
    bounds: Bounds

    @property
    def ball(self) -> LinfBall | LpBall:
        return (LinfBall if self.run.norm == "linf" else L2Ball)(self.run.eps, self.bounds)

    @property
    def by(self) -> PGD:
        return PGD(self.run.attack_steps, self.run.step_size)

    @property
    def rule(self) -> Rules:
        return RULES[self.run.rule]

    @property
    def map(self) -> BaselineIG:
        return objectives.baseline_ig(self.run.m, rule=self.rule, chunk=self.run.chunk)

    @property
    def cost(self) -> Change:
        """c(x, x') = ‖x' − x‖₂², of the Wasserstein forms."""
        return power(l2, 2) @ displacement

    @property
    def dual_ball(self) -> LinfBall | LpBall:
        """The unit ball of the dual exponent p, 1/p + 1/q = 1, without bounds: no network sees its points.

        The maximum of ⟨∇ℓ(x), x' − x⟩ over it is ‖∇ℓ(x)‖_q. One step far beyond the ball, projected back, reaches it.
        """
        q = self.run.power
        return LinfBall(1.0, None) if q == 1 else LpBall(1.0, q / (q - 1), None)


def _distributional(c: TrainConfig, p: Parts) -> Distributional:
    spread = objectives.spread(c.m, rule=p.rule, chunk=c.chunk)
    found = objectives.distributional(
        spread, c.budget, p.cost, p.by, c.weight, within=Everywhere(p.bounds), rate=c.gamma_rate
    )
    return replace(found, gamma=torch.tensor(c.gamma, dtype=torch.float64))


METHODS: dict[Method, Callable[[TrainConfig, Parts], Objective]] = {
    "natural": lambda c, p: objectives.natural(),
    "madry": lambda c, p: objectives.madry(p.ball, p.by),
    "ig-norm": lambda c, p: objectives.ig_norm(c.weight, p.ball, p.by, c.m, c.m_attack, rule=p.rule, chunk=c.chunk),
    "ig-sum-norm": lambda c, p: objectives.ig_sum_norm(
        c.weight, p.ball, p.by, c.m, c.m_attack, rule=p.rule, chunk=c.chunk
    ),
    "input-gradient": lambda c, p: objectives.input_gradient(c.weight, c.power, p.dual_ball, PGD(1, FAR)),
    "loss-output": lambda c, p: objectives.loss_output(p.ball, p.by),
    "sinha": lambda c, p: objectives.wasserstein(
        objectives.shift(), c.gamma, p.cost, p.by, within=Everywhere(p.bounds)
    ),
    "distributional-ig": _distributional,
    "trades": lambda c, p: objectives.trades(c.weight, p.ball, p.by),
    "igr": lambda c, p: objectives.igr(c.weight, p.ball, p.by, p.map),
    "aat": lambda c, p: objectives.aat(c.weight, p.ball, p.by, p.map),
    "adv-aat": lambda c, p: objectives.adv_aat(c.weight, p.ball, p.by, p.map),
    "art": lambda c, p: objectives.art(c.weight, p.ball, p.by),
    "sarkar": lambda c, p: objectives.sarkar(c.weight, p.ball, p.by, c.m, c.m_attack, rule=p.rule, chunk=c.chunk),
    "ssr": lambda c, p: objectives.ssr(scale=c.weight),
    "lga": lambda c, p: objectives.lga(c.weight_l2, c.weight, p.ball),
    "r2et": lambda c, p: objectives.r2et(c.weight, c.k, c.smoothness),
    "curvature": lambda c, p: objectives.curvature(c.weight, of=cross_entropy),  # a ReLU network's logit has none
    "interval-bound": lambda c, p: objectives.interval_bound(c.weight, p.ball, c.worst_case),
}
