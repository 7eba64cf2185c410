"""IFIA: change the attribution map, keep the prediction (Ghorbani et al. 2019, as the paper's evaluation uses it).

Here are the settings of an attack, and its cost; `walk` has the ascent, `result` what is kept of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf
from typing import NamedTuple

import torch
from torch import Tensor, nn

from robattr._form import check_fields
from robattr.attacks import passes, per_example_rng
from robattr.attacks.losses import GRADIENT_FREE, check_kind
from robattr.attacks.maps import AttributionMap, constant_along_ray, integrated_gradients
from robattr.attacks.pgd import check_attack
from robattr.attacks.result import AttackResult, Iterate, Measure, Rows, collect, joined, padded, repeated, where
from robattr.attacks.walk import Walk
from robattr.engine import exactly
from robattr.engine.batch_size import rows_that_fit
from robattr.errors import InvalidInput, brief
from robattr.formula.ascent import APGD, PGD, Annealed, Ascent, RandomSearch, RandomSigns, geometric
from robattr.formula.change import Change
from robattr.formula.neighbourhoods import LinfBall
from robattr.formula.network import bind, second_order
from robattr.metrics import kendall

LEAST = 3  # rows of compiled passes, and their divisor: attacks with the restarts of `paper` and without share them


class Costs(NamedTuple):
    """Passes of an attack on one example: of its gradients and of coarse scores, which lead it, and of scores."""

    gradients: int
    screens: int
    scores: int


@dataclass(frozen=True)
class IFIA:
    """The attack on explanations: change the map of x within ε, and keep the prediction.

        IFIA(model, eps, alpha, steps, kind="topk", k=100)(x, y) -> AttackResult
        x_{t+1} = Π(x_t + α·sign ∇_x J(S̃(x_t))),   Π onto the L∞ ball of radius ε and the pixel range

    S̃ is the map of the softplus twin (`beta`; with `relative`, of the relative twin; inf is the true net, whose maps
    are constant almost everywhere) and J the loss of `kind`: a name of `losses`, or a change d(x, z) of the formula,
    such as a defence's own regulariser. Where the first gradient is exactly 0, the first step has random signs: at x,
    where the top k pixels carry the whole attribution, J is at its maximum, and rounding would choose the signs.
    Iterates are scored on the true net. Those that change the prediction are not eligible, but the ascent continues
    from them; among the others the strictly lowest first measure wins.

    beta              a pair: the twin sharpens from the first to the second in equal ratios, one for each iteration,
                      and the step shrinks as much, from ε (`Annealed`)
    restarts, start   "step": restart 0 starts at x, the others one random sign step away, on the same lattice x + αℤ;
                      "ball": every restart starts at a uniform random point of the ball
    adaptive          APGD (momentum and step halving, from 2ε) instead of PGD, on one twin; kind "score" is a random
                      search without gradients, "random" draws random signs
    keep              weight of the term −keep·relu(margin), which turns the ascent back where the prediction flips
    every             score every so many iterates, and the last one
    window            above 1, if the map has a coarse version: that one gives the direction, and of so many successive
                      iterates only the one that it scores lowest (by `aim`) is scored; `every` does not count then
    directions        precision of the products that lead the attack, its direction and the coarse scores (tf32, bf16);
                      None: the precision in use, which scores always have
    source            the net that gives the gradients instead of `model` (a transfer attack)
    measures          scores of (clean, perturbed) maps, 1 = equal; the first one selects the iterate
    frames            how many of the scored iterates, evenly spread, `AttackResult.walk` has
    batch             compile the passes for batches of that many examples, and pad shorter ones; None runs eagerly

    `ids` name the examples: random starts depend on the id, the seed and the restart alone, so that results do not
    depend on batches or processes.
    """

    model: nn.Module
    eps: float
    alpha: float
    steps: int
    kind: str | Change = "topk"
    k: int = 100
    restarts: int = 1
    map: AttributionMap = field(default_factory=integrated_gradients)
    beta: float | tuple[float, float] = 1.0
    relative: bool = False
    bounds: tuple[float, float] = (0.0, 1.0)
    start: str = "step"
    adaptive: bool = False
    keep: float = 0.0
    every: int = 1
    window: int = 1
    aim: str | None = None
    target: Tensor | None = None
    source: nn.Module | None = None
    measures: dict[str, Measure] = field(default_factory=lambda: {"kendall": kendall})
    seed: int = 0
    frames: int = 0
    batch: int | None = None
    directions: str | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        for name, kind in (("model", nn.Module), ("source", nn.Module), ("map", AttributionMap)):
            value = getattr(self, name)
            if not isinstance(value, kind) and (name != "source" or value is not None):
                raise InvalidInput(f"expected {name} to be a {kind.__name__}, got {brief(value)}")

    @passes.compiled_once()
    def __call__(
        self, x: Tensor, y: Tensor, *, ids: Sequence[int] | None = None, clean: Tensor | None = None
    ) -> AttackResult:
        """Attack the examples; `clean` are the maps at x where they are known already."""
        check_attack(self, x, y, ids)
        check_kind(self.kind)
        if self.start not in ("step", "ball"):
            raise InvalidInput(f"start must be 'step' or 'ball', got {self.start!r}")
        if isinstance(self.beta, tuple) and not (len(self.beta) == 2 and 0 < self.beta[0] < self.beta[1] < inf):
            raise InvalidInput(f"expected beta, or two growing ones such as (10.0, 1000.0), got {self.beta}")
        x, y = x.detach(), y.long()  # steps are counted in tensors like y
        names = torch.arange(len(x)) if ids is None else torch.as_tensor(ids)
        short = self.can_shorten(x).cpu()
        parts, order = [], []
        with second_order(self.model), second_order(self.source or self.model):
            for attack, group in ((self.shortened(), short.nonzero()[:, 0]), (self, (~short).nonzero()[:, 0])):
                size = attack.rows(x) // self.restarts
                for part in group.split(size) if len(group) else ():
                    whole = part if self.batch is None else padded(part, size)
                    known = None if clean is None else clean[whole]
                    rows = attack._rows(x[whole], y[whole], names[whole].tolist(), known)
                    parts.append(collect(attack.iterates(rows), rows, restarts=self.restarts, places=attack.places))
                    order.append(part)
        return joined(parts, order)

    def iterates(self, rows: Rows) -> Iterator[Iterate]:
        """The scored points of each ascent."""
        return Walk(self, rows).iterates()

    def starts(self, x: Tensor, names: Sequence[per_example_rng.Row]) -> Tensor:
        """The first point of each row (id, restart)."""
        within = LinfBall(self.eps, self.bounds)
        if self.start == "ball":
            return within.project(within.start(x, per_example_rng.rand_like(names, self.seed, 0)), x)
        signs = (per_example_rng.uniform(x, names, self.seed, 0) - 0.5).sign()
        first = torch.tensor([restart == 0 for _, restart in names], device=x.device)
        return where(first, x, within.project(x + self.alpha * signs, x))

    @torch.no_grad()
    def direction(self, x: Tensor, y: Tensor) -> Tensor:
        """∇J one random step away from x: what the ascent follows there."""
        walk, start = self.begun(x, y)
        return walk.gradient()(start)[0]

    @torch.no_grad()
    def begun(self, x: Tensor, y: Tensor) -> tuple[Walk, Tensor]:
        """A walk around x, and its first points, one random step away."""
        rows = Rows(x, y, *self.map_and_label(x, y), names=[(i, 1) for i in range(len(x))])
        return Walk(self, rows), self.starts(x, rows.names)

    @torch.no_grad()
    def map_and_label(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The true net's maps and predicted classes at x."""
        return self.map_pass()(x, y), self.label_pass()(x)

    def label_pass(self) -> Callable[[Tensor], Tensor]:
        """x ↦ the classes that the true net predicts, in fp32."""
        logits = exactly(bind(self.model).detach())
        return lambda x: logits(x).argmax(dim=1)

    def map_pass(self) -> Callable[[Tensor, Tensor], Tensor]:
        """(x, y) ↦ the true net's maps."""
        return (passes.true_map if self.batch is None else passes.compiled_true_map)(self.model, self.map)

    def screen_pass(self) -> passes.MapAndLogits:
        """(x, y) ↦ the true net's maps that screen, and its logits."""
        assert self.screen is not None
        return (passes.map_and_logits if self.batch is None else passes.compiled_map)(self.model, self.screen)

    def ascent(self) -> Ascent:
        if self.kind == "random":
            return RandomSigns(self.steps, self.alpha)
        if self.kind == "score":
            return RandomSearch(self.steps, self.eps)
        if isinstance(self.beta, tuple):
            blunt, sharp = self.beta
            return Annealed(self.steps, self.eps, self.eps * blunt / sharp)
        return APGD(self.steps, 2 * self.eps) if self.adaptive else PGD(self.steps, self.alpha)

    @property
    def betas(self) -> list[float]:
        """The sharpness of the twin at each iteration."""
        blunt, sharp = self.beta if isinstance(self.beta, tuple) else (self.beta, self.beta)
        return geometric(blunt, sharp, self.steps) if blunt < sharp else [blunt] * self.steps

    @property
    def first(self) -> str:
        """The measure that selects the iterate."""
        return next(iter(self.measures))

    @property
    def guide(self) -> AttributionMap:
        """The map that gives the direction."""
        return self.map.guide or self.screen or self.map

    @property
    def screen(self) -> AttributionMap | None:
        """The map that selects the iterate of a window."""
        return self.map.coarse if self.window > 1 else None

    def shows_coarse(self, x: Tensor) -> bool:
        """Whether the gradient shows the map that screens: it is the guide, and the network its own twin."""
        climbs = isinstance(self.kind, str) and self.kind not in GRADIENT_FREE
        own = climbs and self.source is None and self.guide is self.screen
        return own and passes.is_own_twin(self.model, x)

    @property
    def scored(self) -> int:
        """How many iterates of a restart are scored."""
        return ceil(self.steps / (self.window if self.screen else self.every))

    @property
    def places(self) -> list[int]:
        """The scored iterates of the frames, the last one included; some twice where fewer are scored."""
        return [-(-(i + 1) * self.scored // self.frames) - 1 for i in range(self.frames)]

    @property
    def cost(self) -> int:
        """Forward or backward passes of a network at one point that the attack makes for one example.

        A map of n nodes takes n forward and n backward passes, its gradient as many again, the label one. A gradient
        that shows the coarse map saves the passes of the screen, which are counted here.
        """
        return sum(self.costs)

    @property
    def costs(self) -> Costs:
        """The cost in its three parts."""
        gradient = 0 if self.kind in GRADIENT_FREE else 4 * self.guide.nodes + 2 * (self.keep > 0)
        searched = self.kind == "score"  # a search looks at its start, too
        screen = (self.steps + 1 + searched) * (2 * self.screen.nodes + 1) if self.screen else 0  # and the clean map
        scored = self.scored + (searched and not self.screen)
        return Costs(*(self.restarts * n for n in (self.steps * gradient, screen, scored * (2 * self.map.nodes + 1))))

    def rows(self, x: Tensor) -> int:
        """How many restarts of examples run together: all restarts of at least one."""
        least = LEAST if self.batch else 1
        differentiated = 1 if self.kind in GRADIENT_FREE else self.guide.nodes
        fits = rows_that_fit(self.model, x, passes=max(self.map.together, differentiated), least=least)
        return self.restarts * max(1, min(fits // self.restarts, self.batch or fits))

    def can_shorten(self, x: Tensor) -> Tensor:
        """(B,) bool: whether the cheaper map of `shortened` is provably the same in the whole ball around x."""
        nets = (self.model, self.source or self.model)
        return torch.stack([constant_along_ray(self.map, net, x, eps=self.eps) for net in nets]).all(dim=0)

    def shortened(self) -> IFIA:
        """The same attack on the map's shortcut, if it has one."""
        return replace(self, map=self.map.along_ray or self.map)

    def _rows(self, x: Tensor, y: Tensor, ids: Sequence[int], clean: Tensor | None) -> Rows:
        """All restarts of the examples."""
        R = self.restarts
        names = [(i, r) for r in range(R) for i in ids]
        xs, ys = repeated(x, R), y.repeat(R)
        if clean is None:
            return Rows(xs, ys, *self.map_and_label(xs, ys), names=names)
        with torch.no_grad():
            label = self.label_pass()(x)
        return Rows(xs, ys, repeated(clean, R), label.repeat(R), names)
