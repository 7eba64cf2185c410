"""`TrainConfig`: every setting of a training run, as one flat, frozen dataclass."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

from robattr._form import check_fields
from robattr._text import LARGEST
from robattr.errors import InvalidInput, nearest
from robattr.formula.quadrature import MOST_NODES
from robattr.training import custom as customs
from robattr.training import schedules
from robattr.training.custom import Custom
from robattr.training.custom import Objective as Objective
from robattr.training.methods import METHODS, Method, Parts


@dataclass(frozen=True)
class TrainConfig:
    """Settings of one run: min over θ of E[ρ(x, y; θ)] + decay·½Σw², by stochastic gradient descent.

    A recipe is a function that returns a `TrainConfig`. Change it with `dataclasses.replace`, a TOML file or
    `--set key=value`.
    """

    # what is trained
    recipe: str = "custom"  # name of the recipe, such as "mnist/ig-norm"
    dataset: str = "fashion-mini"  # a dataset name, or a folder of images
    full: bool = False  # also train on the validation split: for final runs, after every choice is made
    mirror: bool = False  # flip each image left to right with probability 1/2 at every visit
    model: str = ""  # a built-in network, "package.module:function", or "" for the dataset's default
    method: Literal[Method, "custom"] = "natural"  # custom: the objective is given as a value (`with_objective`)
    custom: str = ""  # its text, by which a resumed run knows it
    custom_source: str = ""  # the hash of its source
    own: Custom | None = field(default=None, repr=False)  # that objective; not a key, never in a file

    # ρ = ℓ + λ·max over N(x, ε) of s(IG)
    weight: float = 1.0  # λ of IG-NORM; β of IG-SUM-NORM and TRADES; s of SSR; λ_c of LGA
    eps: float = 0.3  # radius of the neighbourhood, in pixel units
    norm: Literal["linf", "l2"] = "linf"
    attack_steps: int = 40  # input-gradient regularisation always takes one
    step_size: float = 0.01
    m: int = 50  # path points in the update
    m_attack: int = 10  # path points in each attack step
    rule: Literal["left", "right", "midpoint", "gauss-legendre", "radau"] = "midpoint"
    chunk: int | None = None  # path points held in memory at once; None: all
    power: float = 1.0  # q of input-gradient regularisation ‖∇ℓ‖_q^q
    weight_l2: float = 0.01  # λ₂ of LGA
    smoothness: float = 0.0  # μ of R2ET
    worst_case: float = 0.0  # κ of interval-bound: share of the worst-case loss
    k: int = 100  # pixels that R2ET keeps on top
    gamma: float = 1.0  # γ of the Wasserstein form; initial value under dual ascent
    budget: float = 0.0  # transport budget: dual ascent keeps E[c] at most this
    gamma_rate: float = 0.1  # step size of dual ascent

    # the optimiser
    optimizer: Literal["adam", "momentum"] = "adam"
    lr: float = 1e-4
    schedule: Literal["constant", "piecewise", "linear", "cosine", "one-cycle"] = "constant"
    boundaries: tuple[int, ...] = ()  # piecewise: last step of each piece except the final one
    rates: tuple[float, ...] = ()  # piecewise: one rate per piece (lr is ignored)
    warmup: int = 0  # steps of the initial rise (linear, cosine, one-cycle)
    momentum: float = 0.9
    decay: float = 0.0  # coefficient of ½Σw² over kernels and weight matrices; biases are not decayed
    reduction: Literal["sum", "mean"] = "mean"  # of ρ over the batch
    clip: float | None = None  # maximum norm of the batch gradient
    average: float = 0.0  # decay of the weights' moving average, which is validated and saved; 0: none
    steps: int = 1000
    batch: int = 50  # global batch size, for any number of processes
    weight_ramp: tuple[int, ...] = ()  # (start, end): λ rises linearly from 0 at start to its value at end
    eps_ramp: tuple[int, ...] = ()  # likewise for ε and the step size
    warm_start: str = ""  # a run directory, weights file or zoo name to start from, or a tuned recipe to train first
    seed: int = 0
    precision: Literal["fp32", "tf32", "bf16", "fp64"] = "fp32"

    # bookkeeping: does not change the weights (compiling: only their rounding)
    deterministic: bool = False  # bitwise repeatable on a GPU, slower
    compile: Literal["auto", "always", "never"] = "auto"  # auto: on a GPU, for long runs
    log_every: int = 100
    validate_every: int = 1000  # 0: only at the end
    checkpoint_every: int = 500
    keep: int = 2  # number of checkpoints kept
    tensorboard: bool = False
    wandb: bool = False  # Weights & Biases

    def __post_init__(self) -> None:
        check_fields(self)
        for name in CHOICES:
            check_choice(name, getattr(self, name))
        for name, minimum in MINIMUM.items():
            value = getattr(self, name)
            if value is not None and not value >= minimum:
                raise InvalidInput(f"{name} must be at least {minimum}, got {value}")
        positive = {"lr": self.lr, "clip": self.clip, "rates": min(self.rates, default=None)}
        if self.method == "distributional-ig":
            positive["gamma"] = self.gamma  # dual ascent multiplies it
        for name, value in positive.items():
            if value is not None and not value > 0:
                raise InvalidInput(f"{name} must be positive, got {value}")
        for name in ("momentum", "average"):
            if not 0 <= getattr(self, name) < 1:
                raise InvalidInput(f"{name} must be in [0, 1), for example 0.9, got {getattr(self, name)}")
        for name, maximum in MAXIMUM.items():
            if getattr(self, name) > maximum:
                raise InvalidInput(f"{name} must be at most {maximum:,}, got {getattr(self, name):,}")
        if not self.seed < 2**63:
            raise InvalidInput(f"seed must be below 2**63, the limit of torch, got {self.seed}")
        for name, value in vars(self).items():
            if isinstance(value, float) and not abs(value) <= LARGEST:
                raise InvalidInput(f"{name} must be a number of at most {LARGEST:g}, got {value}")
        if self.schedule == "piecewise" and len(self.rates) != len(self.boundaries) + 1:
            raise InvalidInput(
                f"a piecewise schedule needs one more rate than boundaries, got rates={self.rates} and "
                f"boundaries={self.boundaries}"
            )
        for name in ("weight_ramp", "eps_ramp"):
            ramp = getattr(self, name)
            if ramp and not (len(ramp) == 2 and 0 <= ramp[0] < ramp[1]):
                raise InvalidInput(f"{name} must be two increasing steps (start, end), got {ramp}")

    def at(self, step: int) -> TrainConfig:
        """The configuration with λ, ε and the step size as their ramps set them at `step`."""
        if not (self.weight_ramp or self.eps_ramp):
            return self
        weight, eps = schedules.ramp(step, self.weight_ramp), schedules.ramp(step, self.eps_ramp)
        return replace(
            self,
            weight=self.weight * weight,
            eps=self.eps * eps,
            step_size=self.step_size * eps,
            own=self.own and replace(self.own, scales=(weight, eps)),
        )

    def rate(self, step: int) -> float:
        """The learning rate η_t."""
        match self.schedule:
            case "constant":
                return self.lr
            case "piecewise":
                return schedules.piecewise(step, self.boundaries, self.rates)
            case "linear":
                return schedules.linear(step, self.lr, steps=self.steps, warmup=self.warmup)
            case "cosine":
                return schedules.cosine(step, self.lr, steps=self.steps, warmup=self.warmup)
            case "one-cycle":
                return schedules.one_cycle(step, self.lr, steps=self.steps, warmup=self.warmup)

    def objective(self, bounds: tuple[float, float] = (0.0, 1.0)) -> Objective:
        """ρ for inputs within `bounds`."""
        if self.own is not None:
            return self.own.objective(self, bounds)
        if self.method == "custom":
            raise InvalidInput(
                f"the configuration names an objective of your own, {self.custom or 'without its text'}, which no file "
                "contains: give it again, with --objective package.module:function or objective=…"
            )
        return METHODS[self.method](self, Parts(self, bounds))

    def with_objective(self, objective: Objective | Custom) -> TrainConfig:
        """The configuration with a custom objective instead of the method, also in the name of the recipe."""
        own = objective if isinstance(objective, Custom) else customs.custom(objective)
        dataset, slash, _ = self.recipe.partition("/")
        recipe = f"{dataset}/{own.name}" if slash else self.recipe
        changed = replace(self, recipe=recipe, method="custom", custom=own.text, custom_source=own.source, own=own)
        changed.at(0).objective()  # a factory that fails, or a ramp without effect, is refused before the run begins
        return changed

    def uses(self, key: str) -> bool:
        """Whether the objective depends on a number such as `weight`, which Madry's does not."""
        if self.own is not None and not self.own.follows_config:
            return False
        value = getattr(self, key)
        large = isinstance(value, int) and value > 1000
        other: dict[str, Any] = {key: value - 1 if large else 2 * value + 1}
        return replace(self, **other).objective() != self.objective()

    def unreached(self) -> list[str]:
        """Notes on settings whose full value a shortened run never reaches (λ, ε, the learning rate)."""
        ends = []
        if self.weight_ramp and self.uses("weight"):
            ends.append(("weight", "weight_ramp", self.weight_ramp[1]))
        if self.eps_ramp and self.uses("eps"):
            ends.append(("eps", "eps_ramp", self.eps_ramp[1]))
        if self.schedule in USES_WARMUP:
            ends.append(("lr", "warmup", self.warmup))
        return [
            f"{name} stays below {getattr(self, name):g}: {cause} ends at step {end}, the run at {self.steps}"
            for name, cause, end in ends
            if end > self.steps
        ]

    def advice(self) -> str:
        """What to change after a divergence (the paper: training does not converge if λ is too large)."""
        lower = [f"rates (η, now {self.rates})" if self.schedule == "piecewise" else f"lr (η, now {self.lr:g})"]
        add = ["clip"]
        if self.uses("weight"):
            lower.insert(0, f"weight (λ, now {self.weight:g})")
            add.append("weight_ramp")
        if self.uses("eps"):
            lower.append(f"eps (ε, now {self.eps:g})")
            add.append("eps_ramp")
        return f"Lower {', '.join(lower)}; or set {' or '.join(add)}"

    def compiles(self, device: str) -> bool:
        """Whether to compile the gradients on this type of device.

        Compiling takes about a minute, so `auto` needs a GPU, second-order gradients and 2000 steps.
        """
        long = device == "cuda" and self.second_order > 0 and self.steps >= 2000
        return self.compile == "always" or (self.compile == "auto" and long)

    @property
    def second_order(self) -> int:
        """Second-order gradients per example and update, which dominate the cost of a step."""
        return customs.second_order(self.objective())

    def as_dict(self) -> dict[str, Any]:
        """The configuration as plain JSON values, as in `config.json` and every checkpoint."""
        found = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "own"}
        if self.own is not None and self.own.factory is not None:  # what it makes may depend on other modules
            made = self.own.objective(self, (0.0, 1.0))
            found["custom_source"] = customs.source_of(self.own.factory, customs.text_of(made), made)
        return {key: list(value) if isinstance(value, tuple) else value for key, value in found.items()}

    def decisive(self) -> dict[str, Any]:
        """The settings that determine the weights; runs that agree on them can continue each other.

        `steps` is one of them only if the learning rate depends on it: other runs can be extended.
        """
        ignored = BOOKKEEPING if self.schedule in USES_WARMUP else (*BOOKKEEPING, "steps")
        return {key: value for key, value in self.as_dict().items() if key not in ignored}


def check_choice(name: str, value: object) -> None:
    """Reject a value that is not one of the choices of the field `name`."""
    if value not in CHOICES[name]:
        raise InvalidInput(f"{name} cannot be {value!r}; {nearest(str(value), CHOICES[name])}")


KINDS: dict[str, Any] = {key: kind for key, kind in get_type_hints(TrainConfig).items() if key != "own"}
CHOICES: dict[str, tuple[str, ...]] = {
    name: get_args(kind) for name, kind in KINDS.items() if get_origin(kind) is Literal
}
BOOKKEEPING = (
    "recipe", "deterministic", "compile", "log_every", "validate_every", "checkpoint_every", "keep", "tensorboard",
    "wandb",
)  # fmt: skip
USES_WARMUP = ("linear", "cosine", "one-cycle")  # schedules: those that also depend on the number of steps
MAXIMUM = {
    "steps": 10**9 - 1,  # a checkpoint is named by nine digits
    "batch": 10**8, "m": MOST_NODES, "m_attack": MOST_NODES, "attack_steps": 10**5,
}  # fmt: skip
MINIMUM = {
    "weight_l2": 0, "smoothness": 0, "worst_case": 0, "k": 1,
    "weight": 0, "eps": 0, "step_size": 0, "gamma": 0, "budget": 0, "gamma_rate": 0, "decay": 0, "warmup": 0,
    "validate_every": 0, "seed": 0, "power": 1, "attack_steps": 1, "m": 1, "m_attack": 1, "chunk": 1, "steps": 1,
    "batch": 1, "log_every": 1, "checkpoint_every": 1, "keep": 2,
}  # fmt: skip
