"""IFIA: change the attribution map, keep the prediction (Ghorbani et al. 2019, as the paper's evaluation uses it).

Rows: all R restarts of B examples run in one batch; restart r of example b is row r·B + b.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from math import ceil, inf, nan

import torch
from torch import Tensor, nn

from robattr.attacks import passes, per_example_rng
from robattr.attacks.losses import GRADIENT_FREE, check_kind, loss_reference
from robattr.attacks.maps import AttributionMap, constant_along_ray, integrated_gradients, orderable
from robattr.attacks.pgd import check_attack
from robattr.attacks.result import AttackResult, Iterate, Measure, joined, padded, walk, where
from robattr.engine import precision
from robattr.engine.batch_size import rows_that_fit
from robattr.errors import InvalidInput
from robattr.formula.ascent import APGD, PGD, Ascent, GradAndValue, RandomSearch, RandomSigns
from robattr.formula.change import Change
from robattr.formula.neighbourhoods import LinfBall
from robattr.formula.network import bind, second_order
from robattr.metrics import kendall
from robattr.models.smooth import smooth

LEAST = 3  # rows of compiled passes, and their divisor: attacks with the restarts of `paper` and without share them


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

    beta              several: an ascent of `steps` iterations on each twin in turn, the second and later ones from the
                      best point so far by the measure `aim` (default: the first one)
    restarts, start   "step": restart 0 starts at x, the others one random sign step away, on the same lattice x + αℤ;
                      "ball": every restart starts at a uniform random point of the ball
    adaptive          APGD (momentum and step halving, from 2ε, or ε/4 at the best point so far) instead of PGD;
                      kind "score" is a random search without gradients, "random" draws random signs
    keep              weight of the term −keep·relu(margin), which turns the ascent back where the prediction flips
    every             score every so many iterates, and the last one of each ascent
    window            above 1, if the map has a coarse version: that one gives the direction, and of so many successive
                      iterates only the one with its lowest first measure is scored; `every` does not count then
    directions        precision of the products that give the direction (tf32, bf16); None: the precision in use,
                      which scores always have
    source            the net that gives the gradients instead of `model` (a transfer attack)
    measures          scores of (clean, perturbed) maps, 1 = equal; the first one selects the iterate
    frames            how many of the scored iterates, evenly spread, `AttackResult.walk` holds
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
    beta: float | tuple[float, ...] = 1.0
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

    def __call__(
        self, x: Tensor, y: Tensor, *, ids: Sequence[int] | None = None, clean: Tensor | None = None
    ) -> AttackResult:
        """Attack the examples; `clean` are the maps at x where they are known already."""
        check_attack(self, x, y, ids)
        check_kind(self.kind)
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
                    parts.append(attack._attack(x[whole], y[whole], names[whole].tolist(), known))
                    order.append(part)
        return joined(parts, order)

    def rows(self, x: Tensor) -> int:
        """How many restarts of examples run together: all restarts of at least one."""
        least = LEAST if self.batch else 1
        fits = rows_that_fit(self.model, x, passes=max(self.map.together, self._guide.nodes), least=least)
        return self.restarts * max(1, min(fits // self.restarts, self.batch or fits))

    @property
    def betas(self) -> tuple[float, ...]:
        return self.beta if isinstance(self.beta, tuple) else (self.beta,)

    @property
    def scored(self) -> int:
        """How many iterates of a restart are scored."""
        return len(self.betas) * ceil(self.steps / (self.window if self._screen else self.every))

    @property
    def places(self) -> list[int]:
        """The scored iterates of the frames, the last one included; some twice where fewer are scored."""
        return [-(-(i + 1) * self.scored // self.frames) - 1 for i in range(self.frames)]

    @property
    def cost(self) -> int:
        """Forward or backward passes of a network at one point that the attack makes for one example.

        A map of n nodes takes n forward and n backward passes, its gradient as many again, the label one.
        """
        gradient = 0 if self.kind in GRADIENT_FREE else 4 * self._guide.nodes + 2 * (self.keep > 0)
        screen = (self.steps + 1) * (2 * self._screen.nodes + 1) if self._screen else 0  # the clean map too
        scored = self.scored + (self.kind == "score")  # a search scores its start
        climb = len(self.betas) * (self.steps * gradient + screen)
        return self.restarts * (climb + scored * (2 * self.map.nodes + 1))

    def can_shorten(self, x: Tensor) -> Tensor:
        """(B,) bool: whether the cheaper map of `shortened` is provably the same in the whole ball around x."""
        nets = (self.model, self.source or self.model)
        return torch.stack([constant_along_ray(self.map, net, x, eps=self.eps) for net in nets]).all(dim=0)

    def shortened(self) -> IFIA:
        """The same attack on the map's shortcut, if it has one."""
        return replace(self, map=self.map.along_ray or self.map)

    @torch.no_grad()  # the decorator, unlike a `with`, does not leak into the caller between two yields
    def iterates(
        self, x: Tensor, y: Tensor, clean: Tensor, label: Tensor, *, start: Tensor, rows: Sequence[per_example_rng.Row]
    ) -> Iterator[Iterate]:
        """The scored points of each ascent, the first from `start`; `clean`, `label`: maps and predictions at x."""
        within, rand = LinfBall(self.eps, self.bounds), per_example_rng.rand_like(rows, self.seed, 1)
        score = partial(self._scored, y=y, clean=clean, label=label)
        best, lowest = start, torch.full_like(y, inf, dtype=torch.float64)
        for stage, beta in enumerate(self.betas):
            last: list[Iterate] = []  # a search scores its trial itself
            still: list[Tensor] = []
            grad = self._moving(self._grad(x, y, clean, label, beta, last), rows, still)
            ascent = self._ascent(warm=stage > 0)
            walk = ascent.iterates(grad, x, within, start=best, rand=rand)
            for t, z, flips in self._shortlist(walk, x, y, label):
                found = last[0] if last and last[0].x is z else score(z)
                value = found.scores[self.aim or next(iter(found.scores))]
                better = found.kept & (value < lowest)
                best, lowest = where(better, z, best), torch.where(better, value.double(), lowest)
                shared, unmoved = found.flips if flips is None else flips, still[0] if still else found.still
                yield replace(found, t=stage * self.steps + t, flips=shared, still=unmoved)

    def _moving(self, grad: GradAndValue, rows: Sequence[per_example_rng.Row], still: list[Tensor]) -> GradAndValue:
        """`grad`, of which the first call has random signs where it is exactly 0; `still` then holds these rows."""

        def moving(z: Tensor) -> tuple[Tensor, Tensor]:
            found, value = grad(z)
            if not still:
                still.append((found == 0).flatten(1).all(dim=1))
                if still[0].any() and self.kind not in GRADIENT_FREE:
                    signs = (per_example_rng.uniform(z, rows, self.seed, 2) - 0.5).sign()
                    found = where(still[0], signs, found)
            return found, value

        return moving

    def _shortlist(
        self, walk: Iterator[Tensor], x: Tensor, y: Tensor, label: Tensor
    ) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        """(t, iterate to score, share of flips in its window; None where only the scored predictions are known)."""
        if not self._screen:
            for t, z in enumerate(walk, start=1):
                if t % self.every == 0 or t == self.steps:
                    yield torch.full_like(y, t), z, None
            return
        quick, measure = self._map_pass(self._screen), next(iter(self.measures.values()))
        clean, done, each = quick(x, y)[0], 0, torch.arange(len(y), device=y.device)
        while window := list(islice(walk, self.window)):
            maps, logits = zip(*(quick(z, y) for z in window), strict=True)
            flipped = torch.stack([answer.argmax(dim=1) != label for answer in logits])
            scores = torch.stack([measure(clean, map) for map in maps]).masked_fill(flipped, inf).nan_to_num(inf)
            lowest = scores.argmin(dim=0)
            yield done + 1 + lowest, torch.stack(window)[lowest, each], flipped.double().mean(dim=0)
            done += len(window)

    def _grad(
        self, x: Tensor, y: Tensor, clean: Tensor, label: Tensor, beta: float, last: list[Iterate]
    ) -> GradAndValue:
        """z ↦ (∇J, J) on the twin of sharpness β; for a search, J from the scores of `last`."""
        if self.kind == "random":
            return lambda z: (torch.zeros_like(z), z.new_zeros(len(z)))
        if self.kind == "score":

            def value(z: Tensor) -> tuple[Tensor, Tensor]:
                last[:] = [self._scored(z, y=y, clean=clean, label=label)]
                climbed = torch.stack([s.double() for s in list(last[0].scores.values())[:2]]).mean(dim=0)
                return z, torch.where(last[0].kept, -climbed, -inf).nan_to_num(-inf)

            return value
        r = x
        if isinstance(self.kind, str):
            r = loss_reference(self.kind, clean, partial(self._twin_map, x, y, beta), k=self.k, target=self.target)
        inside = nullcontext if self.directions is None else partial(precision, self.directions, x.device.type)
        with inside():
            gradient = self._gradient_pass(beta)

        def directed(z: Tensor) -> tuple[Tensor, Tensor]:
            with inside():
                return gradient(z, y, r, label)

        return directed

    @torch.no_grad()
    def direction(self, x: Tensor, y: Tensor) -> Tensor:
        """∇J one random step away from x: what the ascent follows there."""
        clean, label = self.map_and_label(x, y)
        start = self.starts(x, [(i, 1) for i in range(len(x))])
        return self._grad(x, y, clean, label, self.betas[0], [])(start)[0]

    def _scored(self, z: Tensor, *, y: Tensor, clean: Tensor, label: Tensor) -> Iterate:
        map, logits = self._map_pass(self.map)(z, y)
        scores = {name: measure(clean, map) for name, measure in self.measures.items()}
        kept = logits.argmax(dim=1) == label
        return Iterate(torch.zeros_like(y), z, map, kept, scores, flips=(~kept).double(), still=torch.zeros_like(kept))

    @torch.no_grad()
    def map_and_label(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The true net's maps and predicted classes at x."""
        clean, logits = self._map_pass(self.map)(x, y)
        return clean, logits.argmax(dim=1)

    @torch.no_grad()
    def _label(self, x: Tensor) -> Tensor:
        return bind(self.model).detach()(x).argmax(dim=1)

    def starts(self, x: Tensor, rows: Sequence[per_example_rng.Row]) -> Tensor:
        """The first point of each row (id, restart)."""
        within = LinfBall(self.eps, self.bounds)
        if self.start == "ball":
            return within.project(within.start(x, per_example_rng.rand_like(rows, self.seed, 0)), x)
        if self.start != "step":
            raise InvalidInput(f"start must be 'step' or 'ball', got {self.start!r}")
        signs = (per_example_rng.uniform(x, rows, self.seed, 0) - 0.5).sign()
        first = torch.tensor([row[-1] == 0 for row in rows], device=x.device).view(-1, *(1,) * (x.dim() - 1))
        return torch.where(first, x, within.project(x + self.alpha * signs, x))

    @property
    def _guide(self) -> AttributionMap:
        return self.map.guide or self._screen or self.map

    def _ascent(self, *, warm: bool) -> Ascent:
        if self.kind == "random":
            return RandomSigns(self.steps, self.alpha)
        if self.kind == "score":
            return RandomSearch(self.steps, self.eps)
        if self.adaptive:
            return APGD(self.steps, self.eps / 4 if warm else 2 * self.eps)
        return PGD(self.steps, self.alpha)

    @property
    def _screen(self) -> AttributionMap | None:
        return self.map.coarse if self.window > 1 else None

    def _gradient_pass(self, beta: float) -> passes.AttackGradient:
        """∇J on the twin of sharpness β."""
        build = passes.attack_gradient if self.batch is None else passes.compiled_gradient
        source = self.source or self.model
        return build(source, self._guide, kind=self.kind, beta=beta, keep=self.keep, relative=self.relative)

    def _map_pass(self, map: AttributionMap) -> passes.MapAndLogits:
        """A map of the true net with the logits."""
        return (passes.map_and_logits if self.batch is None else passes.compiled_map)(self.model, map)

    def _twin_map(self, x: Tensor, y: Tensor, beta: float) -> Tensor:
        source = self.source or self.model
        twin = source if beta == inf else smooth(source, beta, relative=self.relative)
        return self._guide(bind(twin).detach(), x, y)

    def _attack(self, x: Tensor, y: Tensor, ids: Sequence[int], clean: Tensor | None) -> AttackResult:
        R, B = self.restarts, len(x)
        rows = [(i, r) for r in range(R) for i in ids]
        xs, ys = x.repeat(R, *(1,) * (x.dim() - 1)), y.repeat(R)
        if clean is None:
            clean, label = self.map_and_label(xs, ys)
        else:
            clean, label = clean.repeat(R, *(1,) * (clean.dim() - 1)), self._label(x).repeat(R)
        start = self.starts(xs, rows)
        first = next(iter(self.measures))
        worst = {name: torch.ones(R * B, dtype=torch.float64, device=x.device) for name in self.measures}
        history: dict[str, list[Tensor]] = {name: [] for name in self.measures}
        point, map, iterate = xs, clean, torch.zeros_like(ys)
        kept = vanished = torch.zeros_like(ys).bool()
        flips, places, frames = torch.zeros_like(ys).double(), self.places, dict[int, Iterate]()
        for at, step in enumerate(self.iterates(xs, ys, clean, label, start=start, rows=rows)):
            kept, flips = kept | step.kept, flips + step.flips
            if at in places:
                frames[at] = step
            if at == 0:
                vanished = step.still
            for name, score in step.scores.items():
                better = step.kept & (score < worst[name])  # a NaN score is never an improvement
                worst[name] = torch.where(better, score.double(), worst[name])
                history[name].append(worst[name].view(R, B).amin(dim=0))
                if name == first:
                    point, map = where(better, step.x, point), where(better, step.map, map)
                    iterate = torch.where(better, step.t, iterate)
        unordered = ~orderable(clean[:B]).repeat(R)
        kept = kept & ~unordered
        worst = {name: values.masked_fill(unordered, nan) for name, values in worst.items()}
        score, restart = worst[first].view(R, B).min(dim=0)
        chosen = restart * B + torch.arange(B, device=x.device)
        return AttackResult(
            perturbed=point[chosen],
            map=map[chosen],
            kept=kept.view(R, B).any(dim=0),
            score=score,
            iterate=iterate[chosen],
            restart=restart,
            flips=flips.view(R, B).sum(dim=0) / (R * self.scored),
            vanished=vanished.view(R, B).double().mean(dim=0),
            worst={name: values.view(R, B).amin(dim=0) for name, values in worst.items()},
            history={name: torch.stack(values, dim=1) for name, values in history.items()},
            walk=walk([frames[at] for at in places], chosen),
        )
