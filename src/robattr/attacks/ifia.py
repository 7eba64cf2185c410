"""IFIA: change the attribution map, keep the prediction (Ghorbani et al. 2019, as the paper's evaluation uses it).

Rows: all R restarts of B examples run in one batch; restart r of example b is row r·B + b.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from math import inf, nan
from typing import Any

import torch
from torch import Tensor, nn

from robattr.attacks import passes, per_example_rng
from robattr.attacks.maps import AttributionMap, constant_along_ray, integrated_gradients, orderable
from robattr.attacks.pgd import check_attack
from robattr.engine.batch_size import rows_that_fit
from robattr.errors import InvalidInput
from robattr.formula.ascent import APGD, PGD, Ascent, RandomSigns
from robattr.formula.neighbourhoods import LinfBall
from robattr.formula.network import bind, second_order
from robattr.metrics import kendall
from robattr.models.smooth import smooth

Measure = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Iterate:
    """One step of the attack on all rows: the points, the true net's maps there, whether the predictions are kept."""

    x: Tensor
    map: Tensor
    kept: Tensor


@dataclass(frozen=True)
class AttackResult:
    """The result of an attack, per example (B,).

    kept      some iterate kept the prediction (else the attack failed, however fragile the example)
    score     the lowest first measure over prediction-keeping iterates; perturbed, map, iterate, restart belong to it
    worst     for every measure its own lowest value over all prediction-keeping iterates
    history   (B, steps) of every measure: its lowest value so far
    flips     share of iterates that changed the prediction
    vanished  share of restarts whose first gradient was zero, so that the first step did not move

    Where no iterate lowered the score: `perturbed` is x, score 1, iterate 0. Where the clean map is constant or not
    finite, so that its pixels have no order: all scores are NaN and `kept` is False.
    """

    perturbed: Tensor
    map: Tensor
    kept: Tensor
    score: Tensor
    iterate: Tensor
    restart: Tensor
    flips: Tensor
    vanished: Tensor
    worst: dict[str, Tensor]
    history: dict[str, Tensor]


@dataclass(frozen=True)
class IFIA:
    """`IFIA(model, eps, alpha, steps, kind="topk", k=100)(x, y) -> AttackResult`.

        x_{t+1} = Π(x_t + α·sign ∇_x J(S̃(x_t))),   Π onto the L∞ ball of radius ε and the pixel range

    S̃ is the map of the softplus twin (`beta`; with `relative`, of the relative twin; inf is the true net, whose maps
    are constant almost everywhere) and J the loss of `kind` (see `passes`). Every iterate is scored on the true
    net. Iterates that change the prediction are not eligible, but the ascent continues from them; among the others the
    strictly lowest Kendall correlation with the clean map wins.

    restarts, start   "step": restart 0 starts at x, the others one random sign step away, on the same lattice x + αℤ;
                      "ball": every restart starts at a uniform random point of the ball
    adaptive          APGD (momentum and step halving) instead of PGD
    keep              weight of the term −keep·relu(margin), which turns the ascent back where the prediction flips
    source            the net that gives the gradients instead of `model` (a transfer attack)
    measures          scores of (clean, perturbed) maps, 1 = equal; the first one selects the iterate
    batch             compile the passes for batches of that many examples, and pad shorter ones; None runs eagerly

    `ids` name the examples: random starts depend on the id, the seed and the restart alone, so that results do not
    depend on batches or processes.
    """

    model: nn.Module
    eps: float
    alpha: float
    steps: int
    kind: str = "topk"
    k: int = 100
    restarts: int = 1
    map: AttributionMap = field(default_factory=integrated_gradients)
    beta: float = 1.0
    relative: bool = False
    bounds: tuple[float, float] = (0.0, 1.0)
    start: str = "step"
    adaptive: bool = False
    keep: float = 0.0
    target: Tensor | None = None
    source: nn.Module | None = None
    measures: dict[str, Measure] = field(default_factory=lambda: {"kendall": kendall})
    seed: int = 0
    batch: int | None = None

    def __call__(self, x: Tensor, y: Tensor, *, ids: Sequence[int] | None = None) -> AttackResult:
        check_attack(self, x, y, ids)
        x, y = x.detach(), y.long()  # steps are counted in tensors like y
        names = torch.arange(len(x)) if ids is None else torch.as_tensor(ids)
        short = self.can_shorten(x).cpu()
        parts, order = [], []
        with second_order(self.model), second_order(self.source or self.model):
            for attack, group in ((self.shortened(), short.nonzero()[:, 0]), (self, (~short).nonzero()[:, 0])):
                fits = rows_that_fit(self.model, x, passes=max(attack.map.nodes, attack._guide.nodes))
                size = max(1, min(fits // self.restarts, self.batch or fits))
                for part in group.split(size) if len(group) else ():
                    whole = part if self.batch is None else _padded(part, size)
                    parts.append(attack._attack(x[whole], y[whole], names[whole].tolist()))
                    order.append(part)
        return _joined(parts, order)

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
        """The points after each step from `start`; `clean` and `label` are the maps and predictions at x."""
        attack_gradient, map_and_logits = self._passes(x)
        r = passes.loss_reference(self.kind, clean, partial(self._twin_map, x, y), k=self.k, target=self.target)
        within, rand = LinfBall(self.eps, self.bounds), per_example_rng.rand_like(rows, self.seed, 1)
        for z in self._ascent().iterates(lambda z: attack_gradient(z, y, r, label), x, within, start=start, rand=rand):
            map, logits = map_and_logits(z, y)
            yield Iterate(z, map, logits.argmax(dim=1) == label)

    @torch.no_grad()
    def map_and_label(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The true net's maps and predicted classes at x."""
        clean, logits = self._passes(x)[1](x, y)
        return clean, logits.argmax(dim=1)

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
        return self.map.guide or self.map

    def _ascent(self) -> Ascent:
        if self.kind == "random":
            return RandomSigns(self.steps, self.alpha)
        return APGD(self.steps, 2 * self.eps) if self.adaptive else PGD(self.steps, self.alpha)

    def _passes(self, x: Tensor) -> tuple[passes.AttackGradient, passes.MapAndLogits]:
        source = self.source or self.model
        gradient = partial(
            passes.attack_gradient, source, self._guide,
            kind=self.kind, beta=self.beta, keep=self.keep, relative=self.relative,
        )  # fmt: skip
        score = partial(passes.map_and_logits, self.model, self.map)
        if self.batch is None:
            return gradient(), score()
        size = (self.batch, self.restarts)
        key = (self._guide, self.kind, self.beta, self.relative, self.keep, *size)
        return passes.compiled(source, key, gradient), passes.compiled(self.model, (self.map, *size), score)

    def _twin_map(self, x: Tensor, y: Tensor) -> Tensor:
        source = self.source or self.model
        twin = source if self.beta == inf else smooth(source, self.beta, relative=self.relative)
        return self._guide(bind(twin).detach(), x, y)

    def _attack(self, x: Tensor, y: Tensor, ids: Sequence[int]) -> AttackResult:
        R, B = self.restarts, len(x)
        rows = [(i, r) for r in range(R) for i in ids]
        xs, ys = x.repeat(R, *(1,) * (x.dim() - 1)), y.repeat(R)
        clean, label = self.map_and_label(xs, ys)
        start = self.starts(xs, rows)
        first = next(iter(self.measures))
        worst = {name: torch.ones(R * B, dtype=torch.float64, device=x.device) for name in self.measures}
        history: dict[str, list[Tensor]] = {name: [] for name in self.measures}
        point, map, iterate = xs, clean, torch.zeros_like(ys)
        kept, vanished, flips = torch.zeros_like(ys).bool(), torch.zeros_like(ys).bool(), torch.zeros_like(ys)
        for t, step in enumerate(self.iterates(xs, ys, clean, label, start=start, rows=rows), start=1):
            kept, flips = kept | step.kept, flips + ~step.kept
            if t == 1:
                vanished = (step.x == start).flatten(1).all(dim=1)
            for name, measure in self.measures.items():
                score = measure(clean, step.map)
                better = step.kept & (score < worst[name])  # a NaN score is never an improvement
                worst[name] = torch.where(better, score.double(), worst[name])
                history[name].append(worst[name].view(R, B).amin(dim=0))
                if name == first:
                    point, map = _where(better, step.x, point), _where(better, step.map, map)
                    iterate = torch.where(better, t, iterate)
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
            flips=flips.view(R, B).sum(dim=0) / (R * self.steps),
            vanished=vanished.view(R, B).double().mean(dim=0),
            worst={name: values.view(R, B).amin(dim=0) for name, values in worst.items()},
            history={name: torch.stack(values, dim=1) for name, values in history.items()},
        )


def _where(mask: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch.where(mask.view(-1, *(1,) * (a.dim() - 1)), a, b)


def _padded(part: Tensor, size: int) -> Tensor:
    """`part` with its last entry repeated up to `size`: compiled passes have one shape."""
    return torch.cat([part, part[-1:].expand(size - len(part))])


def _joined(parts: Sequence[AttackResult], order: Sequence[Tensor]) -> AttackResult:
    """The results of groups of examples, without their padding, in the order of the examples."""
    back = torch.cat(list(order)).argsort().to(parts[0].score.device)

    def join(values: Sequence[Any]) -> Any:
        if isinstance(values[0], dict):
            return {name: join([value[name] for value in values]) for name in values[0]}
        return torch.cat([value[: len(at)] for value, at in zip(values, order, strict=True)])[back]

    return AttackResult(**{f.name: join([getattr(part, f.name) for part in parts]) for f in fields(AttackResult)})
