"""What an evaluation attacks and how: examples in batches that fit, compiled where it pays, with an estimate.

The examples are cut into fixed batches, and the records of a batch depend on nothing else: any number of processes,
resumed any number of times, writes the same records.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from torch import nn

from robattr._progress import Watch, expect, silent
from robattr.attacks.ifia import IFIA, LEAST
from robattr.attacks.maps import constant_along_ray
from robattr.engine.batch_size import rows_that_fit
from robattr.evaluation import gallery
from robattr.evaluation.cost import SECOND_ORDER, attack_passes, compilation_pays, compiled_seconds, pace, shared_passes
from robattr.evaluation.evaluate_batch import Batch, evaluate_batch
from robattr.evaluation.example_set import ExampleSet
from robattr.evaluation.paper_results import PaperResults
from robattr.evaluation.protocol import Protocol
from robattr.evaluation.records import Record
from robattr.evaluation.suite import attribution_attacks

BATCH = (8, 512)  # fewest and most examples attacked together
GROUPS = 3  # of a batch under `strict` on a GPU, at most; each has as many examples as fit


@dataclass(frozen=True)
class Job(ExampleSet):
    """Everything that the records depend on."""

    protocol: Protocol
    source: nn.Module | None = None
    compiled: bool | None = None
    directions: str | None = None
    watch: Watch = silent
    title: str = ""
    shared: PaperResults | None = None
    paces: list[float] = field(default_factory=list)
    """Seconds per pass of each batch that was attacked."""

    @cached_property
    def short(self) -> bool:
        """Whether the one-pass shortcut applies to most examples; the attack splits the others itself."""
        return bool(constant_along_ray(self.map, self.model, self.x, eps=self.protocol.eps).double().mean() > 0.5)

    @cached_property
    def size(self) -> int:
        """How many examples are attacked together: as many as fit, for any number of processes."""
        return min(BATCH[1], -(-BATCH[0] // self.fits) * self.fits)

    @property
    def batches(self) -> list[range]:
        """The positions of each batch of one process: under `strict` on a GPU, of several times as many as fit.

        Later rounds attack the examples that have not converged, and a compiled attack pads what is not a whole group.
        """
        groups = min(GROUPS, BATCH[1] // self.fits) if self.protocol.strict and self.device.type == "cuda" else 0
        return self.cut(max(self.size, groups * self.fits))

    @cached_property
    def fits(self) -> int:
        """How many examples fit in memory together, each at as many points as an attack needs."""
        passes = 1 if self.short else self.map.together
        return rows_that_fit(self.model, self.x[:1].to(self.device), passes=passes, least=LEAST)

    def batch(self, at: Sequence[int], *, walks: bool = False) -> Batch:
        """The records of some examples, with the walks of those that a gallery of all may show.

        In parts where the memory of the device is too small.
        """
        began = time.perf_counter()
        found = self.parts(lambda part: self._batch(at[part], walks=walks), len(at))
        galleries = [part.gallery for part in found if part.gallery is not None]
        shown = gallery.joined(galleries, [i for each in galleries for i in each.id.tolist()])
        records = [record for part in found for record in part.records]
        attacked = [r for r in records if r["kept"] is not None]
        if passes := sum(r["passes"] - self.spared if "passes" in r else self.passes for r in attacked):
            self.paces.append((time.perf_counter() - began) / passes)
        return Batch(records, shown)

    def _batch(self, at: Sequence[int], *, walks: bool) -> Batch:
        x, y, ids = self.take(at)
        early = len(set(ids) & set(sorted(self.ids)[: gallery.FIRST]))
        return evaluate_batch(
            self.model, x, y, ids=ids, protocol=self.protocol, map=self.map, source=self.source,
            batch=self.compiled_for, directions=self.directions, first=early if walks else None, shared=self.shared,
        )  # fmt: skip

    @property
    def compiled_for(self) -> int | None:
        """The number of examples for which attacks are compiled; None where they run eagerly."""
        return -(-min(self.size, len(self.x)) // self.parts.count) if self.compiles else None

    @cached_property
    def compiles(self) -> bool:
        """Whether attacks are compiled: `compiled` if it is given, else where it saves time."""
        if self.compiled is not None:
            return self.compiled
        possible = self.device.type == "cuda" and self.map.guide is None
        return possible and compilation_pays(self.model, self._uncompiled(self.passes * len(self.x)))

    def begin(self, done: int, total: int) -> None:
        """Say how many examples were done before, and how long the others take."""
        self.watch(self.title, done, total)
        if left := total - done:
            expect(self.watch, self.title, lambda: self.seconds(self.passes * left), f"{left:,} examples")

    @cached_property
    def passes(self) -> int:
        """Passes of the attacks on one example that are still to be made."""
        return attack_passes(self.protocol, self._costed, images=self.x.dim() == 4) - self.spared

    @cached_property
    def spared(self) -> int:
        """Passes on one example that an evaluation under `paper` has made before."""
        return shared_passes(self._costed[0]) if self.protocol.strict and self.shared else 0

    @property
    def _costed(self) -> list[IFIA]:
        return [attack.shortened() if self.short else attack for attack in self.attacks()]

    def seconds(self, passes: float) -> float:
        """How long so many passes take: as in the fastest batch so far, before the first as in a few gradients."""
        if self.paces:
            return passes * min(self.paces)
        seconds = self._uncompiled(passes)
        return compiled_seconds(self.model, seconds) if self.compiles and self.device.type == "cuda" else seconds

    def _uncompiled(self, passes: float) -> float:
        return passes * self.per_pass / SECOND_ORDER

    @cached_property
    def per_pass(self) -> float:
        """Seconds of a second-order pass of one example."""
        return pace(self._costed[0], self.x[:1].to(self.device), self.y[:1].to(self.device))

    def measured(self) -> list[Record]:
        """The records of all examples, in order of id."""
        records: list[Record] = []
        self.begin(0, len(self.x))
        for positions in self.batches:
            records += self.batch(positions).records
            self.watch(self.title, len(records), len(self.x))
        return sorted(records, key=lambda r: int(r["id"]))

    def attacks(self, *, batch: int | None = None) -> list[IFIA]:
        images = self.x.dim() == 4
        return attribution_attacks(
            self.protocol, self.model, self.map,
            images=images, source=self.source, batch=batch, directions=self.directions,
        )  # fmt: skip
