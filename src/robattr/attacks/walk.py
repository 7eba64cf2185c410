"""The points that an attribution attack goes through on a batch, scored on the true net."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cached_property, partial
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from robattr.attacks import passes, per_example_rng
from robattr.attacks.losses import GRADIENT_FREE, loss_reference
from robattr.attacks.result import Iterate, Rows, where
from robattr.engine import precision
from robattr.formula.ascent import GradAndValue
from robattr.formula.neighbourhoods import LinfBall
from robattr.formula.network import bind
from robattr.models.smooth import smooth

if TYPE_CHECKING:
    from robattr.attacks.ifia import IFIA


class Walk:
    """The walk of an attack on one batch of rows: `Walk(attack, rows).iterates()`."""

    def __init__(self, attack: IFIA, rows: Rows) -> None:
        self.attack, self.rows = attack, rows
        self._map, self._label = attack.map_pass(), attack.label_pass()
        self._screen = None if attack.screen is None else _Screen(attack, rows)
        self._last: Iterate | None = None

    @torch.no_grad()  # the decorator, unlike a `with`, does not leak into the caller between two yields
    def iterates(self) -> Iterator[Iterate]:
        """The scored points."""
        a, x = self.attack, self.rows.x
        within, rand = LinfBall(a.eps, a.bounds), per_example_rng.rand_like(self.rows.names, a.seed, 1)
        grad = _FirstStep(self.gradient(), None if a.kind in GRADIENT_FREE else self._signs, self.rows)
        points = a.ascent().iterates(grad, x, within, start=a.starts(x, self.rows.names), rand=rand)
        for found in self._scored(points):
            yield replace(found, still=grad.still)

    def gradient(self) -> GradAndValue:
        """z ↦ (∇J, J), at each call on the next twin; a search takes J from its scores and needs no ∇J."""
        a, rows = self.attack, self.rows
        if a.kind == "random":
            return lambda z: (torch.zeros_like(z), z.new_zeros(len(z)))
        if a.kind == "score":
            return lambda z: (z, self._climbed(z))
        reference, betas = rows.x, iter(a.betas)
        if isinstance(a.kind, str):
            reference = loss_reference(
                a.kind, rows.clean, partial(self._twin_map, a.betas[0]), k=a.k, target=a.target
            )  # fmt: skip
        compiled = partial(passes.compiled_gradient, sharpens=isinstance(a.beta, tuple))
        build = passes.attack_gradient if a.batch is None else compiled
        shows = a.shows_coarse(rows.x)
        with reduced(a, rows):
            pulled = build(a.source or a.model, a.guide, kind=a.kind, keep=a.keep, relative=a.relative, shows=shows)

        def directed(z: Tensor) -> tuple[Tensor, ...]:
            with reduced(a, rows):
                return pulled(z, rows.y, reference, rows.label, next(betas, a.betas[-1]))

        def climbed(z: Tensor) -> tuple[Tensor, Tensor]:
            found, value, *_ = directed(z)
            return found, value

        return self._screen.shown_by(directed) if self._screen and shows else climbed

    def score(self, z: Tensor) -> Iterate:
        """The maps and scores at z. The last are remembered: a search scores its trial before the walk does."""
        if self._last is None or self._last.x is not z:
            map, kept = self._map(z, self.rows.y), self._label(z) == self.rows.label
            scores = {name: measure(self.rows.clean, map) for name, measure in self.attack.measures.items()}
            t, still = torch.zeros_like(self.rows.y), torch.zeros_like(kept)
            self._last = Iterate(t, z, map, kept, scores, flips=(~kept).double(), still=still)
        return self._last

    def _scored(self, points: Iterator[Tensor]) -> Iterator[Iterate]:
        """The points of one ascent that are scored: every so many, or of each window the lowest by the coarse map."""
        a, y, screen = self.attack, self.rows.y, self._screen
        if screen is None:
            for t, z in enumerate(points, start=1):
                if t % a.every == 0 or t == a.steps:
                    yield replace(self.score(z), t=torch.full_like(y, t))
            return
        done, each = 0, torch.arange(len(y), device=y.device)
        while window := list(islice(points, a.window)):
            found = [screen(z) for z in window]
            kept = torch.stack([point.kept for point in found])
            scores = torch.stack([point.scores[a.aim or a.first] for point in found])
            lowest = scores.masked_fill(~kept, inf).nan_to_num(inf).argmin(dim=0)
            best = self.score(torch.stack(window)[lowest, each])
            yield replace(best, t=done + 1 + lowest, flips=(~kept).double().mean(dim=0))
            done += len(window)
            screen.forget()

    def _climbed(self, z: Tensor) -> Tensor:
        """What a search climbs: minus the mean of the first two scores; −∞ where the prediction has changed."""
        found = self.score(z) if self._screen is None else self._screen(z)
        mean = torch.stack([score.double() for score in list(found.scores.values())[:2]]).mean(dim=0)
        return torch.where(found.kept, -mean, -inf).nan_to_num(-inf)

    def _signs(self, z: Tensor) -> Tensor:
        return (per_example_rng.uniform(z, self.rows.names, self.attack.seed, 2) - 0.5).sign()

    def _twin_map(self, beta: float) -> Tensor:
        a = self.attack
        source = a.source or a.model
        twin = source if beta == inf else smooth(source, beta, relative=a.relative)
        return a.guide(bind(twin).detach(), self.rows.x, self.rows.y)


def reduced(attack: IFIA, rows: Rows) -> AbstractContextManager[None]:
    """The precision of what leads the attack."""
    return nullcontext() if attack.directions is None else precision(attack.directions, rows.x.device.type)


class _Screened(NamedTuple):
    x: Tensor
    scores: dict[str, Tensor]
    kept: Tensor


class _Screen:
    """Scores of the coarse map at the points of a window: the one an attack aims at, or those that a search climbs.

    A gradient that shows the coarse map has screened a point by the time the ascent leaves it (`shown_by`).
    """

    def __init__(self, attack: IFIA, rows: Rows) -> None:
        names = list(attack.measures)[:2] if attack.kind == "score" else [attack.aim or attack.first]
        self._measures = {name: attack.measures[name] for name in names}
        self._attack, self._rows, self._pass = attack, rows, attack.screen_pass()
        self._look: Callable[[Tensor], tuple[Tensor, ...]] = self._map_and_logits
        self._known: dict[int, _Screened] = {}

    def __call__(self, z: Tensor) -> _Screened:
        if id(z) not in self._known:  # a search screens its trial before the walk does
            self._take(z, *self._look(z))
        return self._known[id(z)]

    def forget(self) -> None:
        """The window is over."""
        self._known.clear()

    def shown_by(self, pulled: Callable[[Tensor], tuple[Tensor, ...]]) -> GradAndValue:
        """The gradient of `pulled`, z ↦ (∇J, J, map, logits), which screens; at a window's end it is taken ahead."""
        ahead: list[tuple[Tensor, tuple[Tensor, ...]]] = []

        def look(z: Tensor) -> tuple[Tensor, ...]:
            ahead[:] = [(z, pulled(z))]
            return ahead[0][1][2:]

        def gradient(z: Tensor) -> tuple[Tensor, Tensor]:
            if ahead and ahead[0][0] is z:
                found, value, *_ = ahead.pop()[1]
            else:
                found, value, *shown = pulled(z)
                self._take(z, *shown)
            return found, value

        self._look = look
        return gradient

    @cached_property
    def _clean(self) -> Tensor:
        return self._look(self._rows.x)[0]

    def _take(self, z: Tensor, map: Tensor, logits: Tensor) -> None:
        scores = {name: measure(self._clean, map) for name, measure in self._measures.items()}
        self._known[id(z)] = _Screened(z, scores, logits.argmax(dim=1) == self._rows.label)

    def _map_and_logits(self, z: Tensor) -> tuple[Tensor, ...]:
        with reduced(self._attack, self._rows):
            return self._pass(z, self._rows.y)


class _FirstStep:
    """A gradient whose first call has random `signs` where it is exactly 0; `still` marks these rows."""

    def __init__(self, grad: GradAndValue, signs: Callable[[Tensor], Tensor] | None, rows: Rows) -> None:
        self._grad, self._signs, self._first = grad, signs, True
        self.still = torch.zeros_like(rows.y, dtype=torch.bool)

    def __call__(self, z: Tensor) -> tuple[Tensor, Tensor]:
        found, value = self._grad(z)
        if self._first:
            self._first, self.still = False, (found == 0).flatten(1).all(dim=1)
            if self._signs is not None and self.still.any():
                found = where(self.still, self._signs(z), found)
        return found, value
