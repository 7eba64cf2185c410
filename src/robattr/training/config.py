"""`TrainConfig`: everything that decides what a training run does, as one flat, frozen, JSON-able value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch

from robattr import objectives
from robattr.errors import InvalidInput, nearest
from robattr.formula import PGD, Distributional, Everywhere, L2Ball, LinfBall, LpBall, Robust, displacement, l2, power
from robattr.formula.quadrature import Rules, gauss_legendre, left, midpoint, right
from robattr.training import schedules

Method = Literal[
    "natural", "madry", "ig-norm", "ig-sum-norm", "input-gradient", "loss-output", "sinha", "distributional-ig"
]  # fmt: skip

Objective = Robust | Distributional


@dataclass(frozen=True)
class TrainConfig:
    """One training run: min over θ of E[ρ(x, y; θ)] + decay·½Σw², by stochastic gradient steps.

    A recipe is a function that returns a `TrainConfig`; `dataclasses.replace`, a TOML file or `--set key=value`
    change it.
    """

    # what is trained
    recipe: str = "custom"  # the name of the recipe it came from, "mnist/ig-norm"
    dataset: str = "fashion-mini"  # a dataset's name, or a folder of images
    full: bool = False  # train on the validation split as well: for the last run, once every choice is made
    mirror: bool = False  # half of the images, freshly chosen at every visit, are flipped left to right
    model: str = ""  # a built-in network, "package.module:function", or "" for the dataset's own
    method: Method = "natural"

    # ρ = ℓ + λ·max over N(x, ε) of s(IG)
    weight: float = 1.0  # λ of IG-NORM; β of IG-SUM-NORM
    eps: float = 0.3  # radius of the neighbourhood, in the units of the pixels
    norm: Literal["linf", "l2"] = "linf"
    attack_steps: int = 40  # input-gradient regularisation needs one step alone, and takes it
    step_size: float = 0.01
    m: int = 50  # points of the path in the update
    m_attack: int = 10  # points of the path in each attack step
    rule: Literal["left", "right", "midpoint", "gauss-legendre"] = "midpoint"
    chunk: int | None = None  # points of the path held in memory at once; none: all
    power: float = 1.0  # q of input-gradient regularisation ‖∇ℓ‖_q^q
    gamma: float = 1.0  # γ of the Wasserstein form, and where dual ascent starts
    budget: float = 0.0  # ρ, the transport budget that dual ascent holds E[c] to
    gamma_rate: float = 0.1  # step of the dual ascent

    # the optimiser
    optimizer: Literal["adam", "momentum"] = "adam"
    lr: float = 1e-4
    schedule: Literal["constant", "piecewise", "linear", "cosine", "one-cycle"] = "constant"
    boundaries: tuple[int, ...] = ()  # piecewise: the last step of each piece but the final one
    rates: tuple[float, ...] = ()  # piecewise: one rate per piece (lr is not used)
    warmup: int = 0  # steps over which linear, cosine and one-cycle rise
    momentum: float = 0.9
    decay: float = 0.0  # on ½Σw² over kernels and weight matrices, never biases
    reduction: Literal["sum", "mean"] = "mean"  # of ρ over the batch
    clip: float | None = None  # largest norm of the batch gradient
    average: float = 0.0  # decay of the moving average of the weights, which is validated and kept; 0: the weights
    steps: int = 1000
    batch: int = 50  # the global batch, whatever the number of processes
    weight_ramp: tuple[int, ...] = ()  # (start, end): λ is 0 before start, full from end on
    eps_ramp: tuple[int, ...] = ()  # likewise for ε (and the step size with it)
    warm_start: str = ""  # a run directory, weights file or zoo name to start from, or a fast recipe to train first
    seed: int = 0
    precision: Literal["fp32", "tf32", "bf16", "fp64"] = "fp32"

    # bookkeeping: changes nothing in the weights (compiling, no more than rounding)
    deterministic: bool = False  # on a GPU: the same bits every time, slower
    compile: Literal["auto", "always", "never"] = "auto"  # the gradients; auto: on a GPU, if the run is long enough
    log_every: int = 100
    validate_every: int = 1000  # 0: only at the end
    checkpoint_every: int = 500
    keep: int = 2  # checkpoints kept
    tensorboard: bool = False

    def __post_init__(self) -> None:
        for name in CHOICES:
            check_choice(name, getattr(self, name))
        for name, least in LEAST.items():
            value = getattr(self, name)
            if value is not None and not value >= least:
                raise InvalidInput(f"{name} must be at least {least}, got {value}")
        for name in POSITIVE:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InvalidInput(f"{name} must be positive, got {value}")
        if not self.seed < 2**63:
            raise InvalidInput(f"seed must be below 2**63, which is all that torch takes, got {self.seed}")
        if self.schedule == "piecewise" and len(self.rates) != len(self.boundaries) + 1:
            raise InvalidInput(
                f"a piecewise schedule needs one rate more than boundaries, got rates={self.rates} and "
                f"boundaries={self.boundaries}"
            )
        if not all(rate > 0 for rate in self.rates):
            raise InvalidInput(f"rates must be positive, got {self.rates}")
        if self.method == "distributional-ig" and not self.gamma > 0:
            raise InvalidInput(f"gamma must be positive: dual ascent multiplies it, got {self.gamma}")
        if not self.momentum < 1:
            raise InvalidInput(f"momentum must be below 1, for example 0.9, got {self.momentum}")
        if not 0 <= self.average < 1:
            raise InvalidInput(f"average must be in [0, 1), for example 0.999, got {self.average}")
        for name in ("weight_ramp", "eps_ramp"):
            bounds = getattr(self, name)
            if bounds and not (len(bounds) == 2 and 0 <= bounds[0] < bounds[1]):
                raise InvalidInput(f"{name} must be two increasing steps (start, end), got {bounds}")

    def at(self, step: int) -> TrainConfig:
        """The run with λ and ε as their ramps have them at `step`; the step size shrinks with ε.

        Input-gradient regularisation does not depend on ε, which must not be zero there: it has no ramp of ε.
        """
        if not (self.weight_ramp or self.eps_ramp):
            return self
        share = 1.0 if self.method == "input-gradient" else schedules.ramp(step, self.eps_ramp)
        return replace(
            self,
            weight=self.weight * schedules.ramp(step, self.weight_ramp),
            eps=self.eps * share,
            step_size=self.step_size * share,
        )

    def objective(self, bounds: tuple[float, float] = (0.0, 1.0)) -> Objective:
        """ρ for inputs within `bounds`. The cost of the Wasserstein forms is c(x, x') = ‖x' − x‖₂²."""
        ball = LinfBall(self.eps, bounds) if self.norm == "linf" else L2Ball(self.eps, bounds)
        by = PGD(self.attack_steps, self.step_size)
        rule = RULES[self.rule]
        cost = power(l2, 2) @ displacement
        match self.method:
            case "natural":
                return objectives.natural()
            case "madry":
                return objectives.madry(ball, by)
            case "ig-norm":
                return objectives.ig_norm(self.weight, ball, by, self.m, self.m_attack, rule=rule, chunk=self.chunk)
            case "ig-sum-norm":
                return objectives.ig_sum_norm(self.weight, ball, by, self.m, self.m_attack, rule=rule, chunk=self.chunk)
            case "input-gradient":
                return objectives.input_gradient(self.weight, self.power, self._dual_ball(), PGD(1, FAR * self.eps))
            case "loss-output":
                return objectives.loss_output(ball, by)
            case "sinha":
                return objectives.wasserstein(objectives.shift(), self.gamma, cost, by, within=Everywhere(bounds))
            case "distributional-ig":
                spread = objectives.spread(self.m, rule=rule, chunk=self.chunk)
                found = objectives.distributional(
                    spread, self.budget, cost, by, self.weight, within=Everywhere(bounds), rate=self.gamma_rate
                )
                return replace(found, gamma=torch.tensor(self.gamma, dtype=torch.float64))

    def _dual_ball(self) -> LinfBall | LpBall:
        """The ball of p, 1/p + 1/q = 1, without bounds: its x' only measures ∇ℓ(x), no network sees it.

        One step far beyond the ball, brought back to it, is the maximum ‖∇ℓ(x)‖_q: many short ones stay below it.
        """
        return LinfBall(self.eps, None) if self.power == 1 else LpBall(self.eps, self.power / (self.power - 1), None)

    def unreached(self) -> list[str]:
        """What the run ends before it is reached, in words: a recipe made shorter keeps its ramps."""
        ramps = {
            "weight": self.weight_ramp if self.method in WEIGHTED else (),
            "eps": self.eps_ramp if self.method in IN_A_BALL else (),
        }
        found = [
            f"{name} stays below {getattr(self, name):g}: {name}_ramp ends at step {ramp[1]}, the run at {self.steps}"
            for name, ramp in ramps.items()
            if ramp and ramp[1] > self.steps
        ]
        if self.schedule in WARMED and self.warmup > self.steps:
            found.append(f"lr stays below {self.lr:g}: warmup ends at step {self.warmup}, the run at {self.steps}")
        return found

    def rate(self, step: int) -> float:
        """The learning rate η_t."""
        return SCHEDULES[self.schedule](self)(step)

    def compiles(self, device: str) -> bool:
        """Whether the gradients are compiled on this kind of device: about a minute, which short runs do not win back.

        A step without second-order gradients is too cheap for it; on a CPU compiled code is hardly faster.
        """
        long = device == "cuda" and self.second_order > 0 and self.steps >= 2000
        return self.compile == "always" or (self.compile == "auto" and long)

    @property
    def second_order(self) -> int:
        """Gradients that must be differentiated again, per example and update: the cost that counts.

        Attack steps × points of the path in the attack, plus points of the path in the update.
        """
        match self.method:
            case "ig-norm" | "ig-sum-norm":
                return self.attack_steps * self.m_attack + self.m
            case "distributional-ig":
                return self.attack_steps * self.m + self.m
            case "input-gradient":
                return 2
            case _:
                return 0

    def as_dict(self) -> dict[str, Any]:
        """JSON's view of the run: what `config.json` and every checkpoint hold."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    def decisive(self) -> dict[str, Any]:
        """The keys that decide the weights of a step: two runs that agree on them may continue each other.

        `steps` is one only if the learning rate depends on it: a run at a constant rate can be extended.
        """
        idle = set(BOOKKEEPING) | ({"steps"} if self.schedule in ("constant", "piecewise") else set())
        return {key: value for key, value in self.as_dict().items() if key not in idle}


def check_choice(name: str, value: object) -> None:
    """Refuse a word that is none of those the field `name` has: any other would be taken for one of them."""
    if value not in CHOICES[name]:
        raise InvalidInput(f"{name} cannot be {value!r}; {nearest(str(value), CHOICES[name])}")


KINDS: dict[str, Any] = get_type_hints(TrainConfig)
CHOICES: dict[str, tuple[str, ...]] = {
    name: get_args(kind) for name, kind in KINDS.items() if get_origin(kind) is Literal
}
RULES: dict[str, Rules] = {"left": left, "right": right, "midpoint": midpoint, "gauss-legendre": gauss_legendre}
SCHEDULES: dict[str, Callable[[TrainConfig], schedules.Schedule]] = {
    "constant": lambda run: schedules.constant(run.lr),
    "piecewise": lambda run: schedules.piecewise(run.boundaries, run.rates),
    "linear": lambda run: schedules.linear(run.lr, steps=run.steps, warmup=run.warmup),
    "cosine": lambda run: schedules.cosine(run.lr, steps=run.steps, warmup=run.warmup),
    "one-cycle": lambda run: schedules.one_cycle(run.lr, steps=run.steps, warmup=run.warmup),
}
BOOKKEEPING = (
    "recipe",
    "deterministic",
    "compile",
    "log_every",
    "validate_every",
    "checkpoint_every",
    "keep",
    "tensorboard",
)
FAR = 1e4  # radii of the ball: what is left of the random start is a share of 1e-4
WEIGHTED = ("ig-norm", "ig-sum-norm", "input-gradient", "distributional-ig")  # methods that heed weight
IN_A_BALL = ("madry", "ig-norm", "ig-sum-norm", "loss-output")  # methods that depend on eps
WARMED = ("linear", "cosine", "one-cycle")  # schedules that heed warmup
POSITIVE = ("lr", "clip")
LEAST = {
    "weight": 0, "eps": 0, "step_size": 0, "gamma": 0, "budget": 0, "gamma_rate": 0, "decay": 0, "momentum": 0,
    "warmup": 0, "validate_every": 0, "seed": 0, "power": 1, "attack_steps": 1, "m": 1, "m_attack": 1, "chunk": 1,
    "steps": 1, "batch": 1, "log_every": 1, "checkpoint_every": 1, "keep": 2,
}  # fmt: skip
