"""The objective of the paper (section 3.1, the uncertainty set model):

ρ(x, y; θ) = ℓ(x, y; θ) + λ · max_{x' ∈ N(x, ε)} d(x, x'),    d = s(IG_h^{ℓ_y}(x, x'; r))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor

from robattr.errors import InvalidInput, brief
from robattr.formula.answers import check_answers
from robattr.formula.ascent import PGD, Ascent, maximise
from robattr.formula.change import Change
from robattr.formula.checks import check_batch, check_callable, check_model, check_number, check_part, check_whole
from robattr.formula.neighbourhoods import Everywhere, Neighbourhood, Rand, check_bounds
from robattr.formula.network import Bound, Model, bind, per_example, second_order
from robattr.formula.scalars import Scalar, cross_entropy


@dataclass(frozen=True)
class Rho:
    """ρ and its parts, one number per example.

    loss     ℓ(x, y), with its graph          penalty  max_{x'} d(x, x'), with its graph
    weight   λ                                worst    x*, where the adversary found that maximum
    cost     c(x, x*) of the distributional form, else None
    """

    loss: Tensor
    penalty: Tensor
    worst: Tensor
    weight: float | Tensor = 1.0
    cost: Tensor | None = None

    @property
    def value(self) -> Tensor:
        """ρ = ℓ + λ · penalty, (B,): `value.mean().backward()` is the gradient step."""
        return self.loss + self.weight * self.penalty


class _Objective:
    """What `Robust` and `Joint` share: the checked call, and sums."""

    terms: Any
    unchecked: Callable[..., Rho]

    def __call__(
        self, model: Model, x: Tensor, y: Tensor, *, start: Tensor | None = None, rand: Rand = torch.rand_like
    ) -> Rho:
        """ρ at a batch. `start` replaces the random start of the adversary, `rand` its random numbers."""
        self.check(model, x, y, start=start)
        return self.unchecked(model, x, y, start=start, rand=rand)

    def check(self, model: Model, x: Tensor, y: Tensor, *, start: Tensor | None = None) -> None:
        """Refuse wrong arguments, and a model whose outputs make ρ meaningless; the outputs are checked once."""
        starts = () if start is None else start if isinstance(self, Joint) else (start,)
        check_model(model)
        check_batch(model, x, y, *starts)
        for term in self.terms:
            check_bounds(x, term.within.bounds)
        climbs = any(term.change.terms for term in self.terms)
        check_answers(model, x, logits=self.terms[0].loss is cross_entropy, differentiated=climbs)

    def __add__(self, other: _Objective) -> Joint:
        if not isinstance(other, _Objective):
            raise InvalidInput(
                f"`+` of an objective expects another one, such as madry(...) + igr(...), got {brief(other)}"
            )
        return Joint(self.terms + other.terms)

    def __radd__(self, other: Any) -> Joint:
        return Joint(self.terms) if other == 0 else self + other  # sum() begins with 0

    def __mul__(self, factor: float) -> NoReturn:
        raise InvalidInput(
            f"an objective is not scaled, got `*` with {brief(factor)}: scale its penalty, as in Robust(…, weight=2), "
            "or its value, as in 2 * rho(model, x, y).value.mean()"
        )

    __rmul__ = __mul__


@dataclass(frozen=True)
class Robust(_Objective):
    """ρ(x, y; θ) = ℓ(x, y; θ) + λ · max_{x' ∈ N(x, ε)} d(x, x').

    change    d, what the maximum is taken of        within    N(x, ε)
    by        the adversary                          weight    λ
    attacked  V, the change that the adversary climbs (a smaller m, the prediction loss, …); `change` itself when None
    loss      ℓ, the clean loss

    Other bases are changes as well: ℓ(x) + (ℓ(x*) − ℓ(x)) is the loss at x* (`objectives.shift`), and
    `beta * (kl @ logits)` TRADES' divergence. With `PGD(0, 0.0)` x* is the random start itself, so that d is a random
    draw; in `LinfBall(0.0, bounds=None)` x* is x. `rho + rho` has one clean loss and several adversaries (`Joint`).

    The adversary sees constant parameters, and x* is a constant of the gradient step, as in the paper's section 4.
    Inside the max and along the path the network is in eval mode (see `robattr.formula.network`); the clean loss sees
    the module as it is.

    ρ consists of three pure functions, which every way to run it calls, eager, compiled or distributed: the clean loss
    `clean`, the value `climbed` by the adversary, and the `penalty` at x*. λ, the coefficients of a change, ε and the
    step size may be tensors: that is how the engine changes them without compiling again.
    """

    change: Change = field(default_factory=Change)
    within: Neighbourhood = field(default_factory=Everywhere)
    by: Ascent = field(default_factory=lambda: PGD(steps=0, step_size=0.0))
    weight: float | Tensor = 1.0
    attacked: Change | None = None
    loss: Scalar = cross_entropy

    def __post_init__(self) -> None:
        changes = {"change": self.change} | ({} if self.attacked is None else {"attacked": self.attacked})
        check_parts(self.weight, self.within, self.by, self.loss, **changes)

    @property
    def terms(self) -> tuple[Robust]:
        """This objective alone: what a `Joint` has several of."""
        return (self,)

    def start(self, x: Tensor, rand: Rand = torch.rand_like) -> Tensor:
        """A random start of the adversary, (B, ...)."""
        return self.within.start(x, rand)

    def unchecked(
        self, model: Model, x: Tensor, y: Tensor, *, start: Tensor | None = None, rand: Rand = torch.rand_like
    ) -> Rho:
        """ρ at a batch that has been checked; a check waits for the device."""
        loss = self.clean(model, x, y)  # first: in train mode it moves the buffers that are bound next
        net = bind(model)
        with second_order(model):
            worst = self.attack(net.detach(), x, y, start=start, rand=rand)
            penalty = self.penalty(net, x, worst, y)
        return Rho(loss, penalty, worst, self.weight)

    def clean(self, model: Model, x: Tensor, y: Tensor) -> Tensor:
        """ℓ(x, y), (B,)."""
        return per_example(self.loss(model, x, y), x, self.loss)

    def climbed(self, net: Bound, x: Tensor, z: Tensor, y: Tensor) -> Tensor:
        """d(x, z) that the adversary climbs, (B,)."""
        return (self.attacked or self.change).over(self.within)(net, x, z, y)

    def penalty(self, net: Bound, x: Tensor, z: Tensor, y: Tensor) -> Tensor:
        """d(x, z) of the gradient step, (B,)."""
        return self.change.over(self.within)(net, x, z, y)

    def attack(
        self, net: Bound, x: Tensor, y: Tensor, *, start: Tensor | None = None, rand: Rand = torch.rand_like
    ) -> Tensor:
        """x*, the attack step alone, on an already bound network."""
        if not self.change.terms:
            return x.detach()
        return maximise(self.by, lambda z: self.climbed(net, x, z, y), x.detach(), self.within, start=start, rand=rand)


@dataclass(frozen=True)
class Joint(_Objective):
    """ρ = ℓ(x) + Σ_j λ_j · max_{x' ∈ N_j} d_j(x, x'): several penalties, each with its own adversary.

    `rho1 + rho2` and `sum([rho1, rho2, ...])` make one. The terms share one clean loss, which counts once. Of the
    result, `penalty` is Σ_j λ_j d_j (weight 1) and `worst` is x* of the first term. `start` has one start per term,
    (n, B, ...).
    """

    terms: tuple[Robust, ...]
    weight: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        if not self.terms or not all(isinstance(t, Robust) for t in self.terms):
            raise InvalidInput(f"Joint expects objectives such as madry(...), got {brief(self.terms)}")
        if any(t.loss != self.loss for t in self.terms):
            raise InvalidInput("a sum of objectives expects one clean loss in all of them, got several: give them one")

    @property
    def loss(self) -> Scalar:
        """ℓ, the clean loss of all terms."""
        return self.terms[0].loss

    @property
    def change(self) -> Change:
        """All d_j. Its value at one x' has no meaning, because each d_j has its own x'."""
        return Change(tuple(term for t in self.terms for term in t.change.terms))

    def start(self, x: Tensor, rand: Rand = torch.rand_like) -> Tensor:
        """A random start per term, (n, B, ...)."""
        return torch.stack([term.start(x, rand) for term in self.terms])

    def unchecked(
        self, model: Model, x: Tensor, y: Tensor, *, start: Tensor | None = None, rand: Rand = torch.rand_like
    ) -> Rho:
        """ρ at a batch that has been checked."""
        if start is not None and start.shape != (len(self.terms), *x.shape):
            raise InvalidInput(f"expected one start per term, {(len(self.terms), *x.shape)}, got {tuple(start.shape)}")
        loss = self.terms[0].clean(model, x, y)  # first: in train mode it moves the buffers that are bound next
        starts = self.start(x, rand) if start is None else start
        net = bind(model)
        with second_order(model):
            worst = [
                term.attack(net.detach(), x, y, start=z, rand=rand) for term, z in zip(self.terms, starts, strict=True)
            ]
            penalty = self.penalty(net, x, worst, y)
        return Rho(loss, penalty, worst[0])

    def penalty(self, net: Bound, x: Tensor, worst: Sequence[Tensor], y: Tensor) -> Tensor:
        """Σ_j λ_j d_j(x, x*_j), (B,)."""
        value = torch.zeros(len(x), dtype=x.dtype, device=x.device)
        for term, z in zip(self.terms, worst, strict=True):
            value = value + term.weight * term.penalty(net, x, z, y)
        return value


def averaged(rho: Robust, draws: int) -> Joint:
    """ℓ(x) + λ · mean of d(x, x') over `draws` of x', each from a start of its own.

    With `by=PGD(0, 0.0)` the starts are the draws: a mean over random points of N(x, ε) instead of a max.
    """
    check_whole("averaged expects a whole number of draws", draws, least=1)
    return Joint((replace(rho, weight=rho.weight / draws),) * draws)


def check_parts(weight: float | Tensor, within: Neighbourhood, by: Ascent, loss: Scalar, **changes: Change) -> None:
    for name, change in changes.items():
        if not isinstance(change, Change):
            raise InvalidInput(f"expected a change such as l1 @ IG() as `{name}`, got {brief(change)}")
    if not isinstance(weight, Tensor):
        check_number("expected a finite weight λ", weight)
    check_part(within, "within", Neighbourhood, example="LinfBall(0.3)")
    check_part(by, "by", Ascent, example="PGD(steps=40, step_size=0.01)")
    check_callable("expected a loss such as cross_entropy", loss)
