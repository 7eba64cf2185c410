"""Protocols: all settings of an evaluation as one frozen value.

`paper` follows the reference's evaluation exactly, so that scores compare with published ones. `strict` attacks with
everything of `paper` and more, in an order, until the scores have converged, and takes the worst case of each score and
example. `exhaustive` runs every attack on every example: what each of them adds is measured by it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from math import inf
from numbers import Real
from typing import TYPE_CHECKING, Any

from robattr._form import check_fields
from robattr.errors import InvalidInput, nearest

if TYPE_CHECKING:
    from robattr.data import Dataset


STRICT_VERSION = 3


@dataclass(frozen=True)
class Attack:
    """One attack of the strict protocol: a loss of `attacks.losses`, climbed on relative twins.

    aim     the measure that selects the iterate of a window
    betas   the sharpness: of one twin, climbed by APGD, or the first and the last one of a twin that sharpens; inf is
            the true net. Empty for attacks without gradients
    share   iterations, as a share of the protocol's P
    round   later rounds repeat attacks of the first one, 0, from other starts
    """

    kind: str
    aim: str = "kendall"
    betas: tuple[float, ...] = ()
    share: float = 0.5
    round: int = 0

    @property
    def sharpens(self) -> bool:
        """Whether it climbs a twin that sharpens."""
        return len(self.betas) > 1

    @property
    def name(self) -> str:
        twins = "-".join("true" if beta == inf else f"{beta:g}" for beta in self.betas)
        return " ".join(part for part in (self.kind, twins, f"#{self.round + 1}" if self.round else "") if part)


@dataclass(frozen=True)
class Protocol:
    """Settings of one evaluation, in the units of x.

    eps, alpha, steps, k  the attribution attack: radius, step, iterations P, size of the top-k mask it attacks
    eval_k                k of the reported top-k intersection
    N                     points of the IG map
    repeats               restarts of the attack, the lowest Kendall counts: the first from x, the others one random
                          step away
    window                where the map has a coarse version: that one gives the directions, and of so many iterates the
                          one with the lowest coarse score is scored by the map itself; 1: the reference's attack
    pgd_alpha, pgd_steps  the prediction attack behind Adv Acc
    keep                  strict only: weight of the term that keeps the prediction
    attacks               strict only: the attacks after the paper's, in order of rounds
    budget                strict only: an attack is left out where the passes would exceed so many times the paper's
    tolerance             strict only: an example leaves when a round lowers neither score by more than this
    version               of the strict protocol; records without one are of version 1
    """

    name: str
    dataset: str
    eps: float
    alpha: float
    steps: int
    k: int
    eval_k: int
    pgd_alpha: float
    pgd_steps: int
    bounds: tuple[float, float]
    N: int = 100
    repeats: int = 3
    keep: float = 0.0
    attacks: tuple[Attack, ...] = ()
    budget: float = inf
    tolerance: float = 0.0
    version: int = 1
    seed: int = 0
    window: int = 10

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def strict(self) -> bool:
        """Whether each score takes its own worst case, and failed attacks have no score instead of 1."""
        return bool(self.attacks)

    def with_eps(self, eps: float) -> Protocol:
        """The same evaluation at another radius, with step sizes in proportion."""
        check_radius(eps, self.bounds)
        scale = eps / self.eps
        return replace(
            self,
            name=f"{self.name}@{eps:g}",
            eps=eps,
            alpha=self.alpha * scale,
            pgd_alpha=self.pgd_alpha * scale,
        )

    def with_steps(self, steps: int) -> Protocol:
        """The same evaluation with another number of iterations of the attribution attack."""
        if not 1 <= steps <= MOST_STEPS:
            raise InvalidInput(f"expected 1 to {MOST_STEPS:,} iterations, got {steps}")
        return replace(self, name=f"{self.name}@{steps}steps", steps=steps)

    def settings(self) -> dict[str, Any]:
        """The settings as JSON values, of the paper's protocol with the keys of version 1: its records stay comparable.

        Without `window`, which changes the cost of the attack and not what it is.
        """
        plain = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}
        del plain["window"]
        if not self.strict:
            for key in ("attacks", "budget", "tolerance", "version"):
                del plain[key]
            return {**plain, "sweep": [], "relative": False}
        plain["attacks"] = [attack.name for attack in self.attacks]
        plain["budget"] = None if self.budget == inf else self.budget
        return plain


UNIT, BYTE = (0.0, 1.0), (0.0, 255.0)
MOST_STEPS = 10**5
PROTOCOLS = ("paper", "strict", "exhaustive")

_PAPER = {
    p.dataset: p
    for p in (
        Protocol("paper", "mnist", 0.3, 0.01, 100, 200, 100, 0.01, 100, UNIT),
        Protocol("paper", "fashion-mnist", 0.1, 0.01, 100, 100, 100, 0.01, 100, UNIT),
        Protocol("paper", "gtsrb", 8.0, 1.0, 50, 100, 100, 2.0, 40, BYTE),
        Protocol("paper", "flower", 8.0, 1.0, 100, 1000, 1000, 2.0, 40, BYTE),
        Protocol("paper", "fashion-mini", 0.1, 0.02, 15, 100, 100, 0.02, 20, UNIT, N=10),
    )
}


def paper(dataset: str) -> Protocol:
    """The reference's settings for one of its datasets (reference sections 4 and 5), or ours for `fashion-mini`."""
    if dataset not in _PAPER:
        raise InvalidInput(f"no protocol for dataset {dataset!r}: {nearest(dataset, _PAPER)}; `scaled` makes one")
    return _PAPER[dataset]


def for_dataset(data: Dataset, eps: float | None = None) -> Protocol:
    """`paper` of a dataset of the paper; for other data or ranges, `scaled` to their size and range (and to `eps`)."""
    if is_paper_dataset(data):
        return _PAPER[data.name]
    _, height, width = data.shape
    return scaled(data.name, pixels=height * width, bounds=data.bounds, eps=eps)


def is_paper_dataset(data: Dataset) -> bool:
    """Whether the data are one of the paper's datasets, in the pixel range of its protocol."""
    return data.name in _PAPER and tuple(data.bounds) == _PAPER[data.name].bounds


SHARPENING = (10.0, 1000.0)

FIRST = (  # each wins for some score: results/ablation.py
    Attack("random"),
    Attack("soft_topk", "topk", SHARPENING, share=1.0),
    Attack("rank", "kendall", SHARPENING, share=1.0),
    Attack("score"),
    Attack("mass_center", "mass_center", (30.0,)),
    Attack("cosine", "cosine", (30.0,)),
)
AGAIN = tuple(attack for attack in FIRST if attack.sharpens)
ROUNDS = 5  # at most

LOSSES = {  # and their aims
    "topk": "topk",
    "soft_topk": "topk",
    "rank": "kendall",
    "kendall": "kendall",
    "cosine": "cosine",
    "mass_center": "mass_center",
    "frame": "mass_center",
    "corners": "mass_center",
}


def strict(base: str | Protocol) -> Protocol:
    """`paper` plus attacks by other losses, along sharpening twins and without gradients, until the scores converge.

    First those of FIRST, then those of AGAIN from other random starts, until they lower the scores no more. No
    example takes more than three times the passes of `paper`.
    """
    settings = paper(base) if isinstance(base, str) else base
    again = tuple(replace(attack, round=n) for n in range(1, ROUNDS) for attack in AGAIN)
    return replace(
        settings,
        name=settings.name.replace("paper", "strict"),
        attacks=FIRST + again,
        keep=0.1,
        budget=3.0,
        tolerance=0.01,
        version=STRICT_VERSION,
    )


def exhaustive(base: str | Protocol) -> Protocol:
    """Every loss along the sharpening twin and on the true net, and what `strict` has, on every example."""
    settings = strict(base)
    known = {attack.name for attack in settings.attacks}
    every = (Attack(kind, aim, betas, 1.0) for kind, aim in LOSSES.items() for betas in (SHARPENING, (inf,)))
    added = tuple(attack for attack in every if attack.name not in known)
    return replace(
        settings,
        name=settings.name.replace("strict", "exhaustive"),
        attacks=tuple(sorted((*settings.attacks, *added), key=lambda attack: attack.round)),
        budget=inf,
        tolerance=-1.0,
    )


def named(name: str, base: Protocol) -> Protocol:
    """The protocol of that name with the settings of `base`, the paper's protocol of a dataset."""
    if name not in PROTOCOLS:
        raise InvalidInput(f"unknown protocol {name!r}: {nearest(name, PROTOCOLS)}")
    return base if name == "paper" else strict(base) if name == "strict" else exhaustive(base)


def scaled(dataset: str, *, pixels: int, bounds: tuple[float, float], eps: float | None = None) -> Protocol:
    """The paper's protocol for other data: ε = 8/255 of the range (or `eps`), α = ε/8, P = 50, k = pixels/10."""
    radius = 8 / 255 * (bounds[1] - bounds[0]) if eps is None else eps
    check_radius(radius, bounds)
    k = max(1, pixels // 10)
    return Protocol("paper", dataset, radius, radius / 8, 50, k, k, radius / 4, 40, bounds)


def check_radius(eps: float, bounds: tuple[float, float]) -> None:
    """Reject a radius that was most likely meant for another range of the data: 8 in [0, 1], 8/255 in [0, 255]."""
    low, high = bounds
    if not (isinstance(eps, Real) and eps > 0):
        raise InvalidInput(f"eps must be a number above 0, got {eps!r}")
    span = high - low
    if span == 255 and eps < 0.1:
        raise InvalidInput(
            f"expected an eps in the units of the data, {low:g} to {high:g}, got {eps:g}, less than a tenth of a grey "
            f"level: {255 * eps:g}?"
        )
    if eps > span:
        meant = f"{eps:g}/255?" if span == 1 else f"{eps:g}/255 of the range, {eps / 255 * span:.4g}?"
        remedy = meant if span < 255 else "choose a smaller one"
        raise InvalidInput(
            f"expected an eps within the range of the data, {low:g} to {high:g}, in its units, got {eps:g}: {remedy}"
        )
