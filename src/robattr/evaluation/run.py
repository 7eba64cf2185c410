"""A whole evaluation: batches of examples, records that survive a kill, processes that share the work.

The examples are cut into fixed batches, and the records of a batch depend on nothing else: any number of processes,
resumed any number of times, writes the same records.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from robattr._version import __version__
from robattr.attacks.ifia import IFIA, LEAST
from robattr.attacks.maps import AttributionMap, constant_along_ray
from robattr.engine import in_use
from robattr.engine import precision as arithmetic
from robattr.engine.batch_size import rows_that_fit
from robattr.engine.files import write_atomically
from robattr.engine.parts import Parts
from robattr.errors import CheckpointError
from robattr.evaluation import gallery
from robattr.evaluation.checks import check, check_kinds, check_source
from robattr.evaluation.cost import SECOND_ORDER, evaluation_seconds, seconds_per_pass
from robattr.evaluation.diagnostics import RADII, accuracies, score_against_eps, twin_cosine
from robattr.evaluation.evaluate_batch import Batch, Record, evaluate_batch
from robattr.evaluation.faithfulness import COMPARED, input_dependence
from robattr.evaluation.flags import alarms, flags
from robattr.evaluation.output_dir import OutputDir, provenance
from robattr.evaluation.protocol import Protocol
from robattr.evaluation.records import append, begin, merge, read
from robattr.evaluation.resume_checks import check_same_map, check_same_predictions, digest_of_weights
from robattr.evaluation.scores import PROBED
from robattr.evaluation.suite import attribution_attacks, prediction_attacks
from robattr.evaluation.summary import check as check_summary
from robattr.evaluation.summary import estimate, sealed, summarise
from robattr.evaluation.summary import read as read_summary

Progress = Callable[[int, int], None]
Expect = Callable[[float, str], None]
BATCH = (8, 512)  # fewest and most examples attacked together
PAYS = 120.0  # seconds of an attack from which compiling it pays: that takes 20 to 150 s, and halves what follows


@dataclass(frozen=True)
class Evaluation:
    """The records, one per example in order of id, and their summary."""

    records: list[Record]
    summary: dict[str, Any]


def evaluate(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    protocol: Protocol,
    map: AttributionMap,
    ids: Sequence[int] | None = None,
    source: nn.Module | None = None,
    out: OutputDir | None = None,
    metadata: Mapping[str, Any] | None = None,
    precision: str = "fp32",
    directions: str | None = None,
    compiled: bool | None = None,
    progress: Progress = lambda done, total: None,
    expect: Expect | None = None,
) -> Evaluation:
    """Attack `model` on the examples x, y under `protocol`, for one kind of map, and summarise the scores.

    out        write records, summary and gallery there, and continue from the records that exist
    metadata   entries added to the summary (run, command, ...)
    source     the net whose gradients the attacks use instead of `model`'s (a transfer attack)
    precision  of matrix products: fp32, tf32 or bf16
    directions  precision of the products that only lead the attack, where it is another one; scores have `precision`
    compiled   compile the attribution attack; None: on a GPU, where it would take minutes
    progress   called with the numbers of examples that are done and of all: at first with those recorded before
    expect     called with estimates in seconds, and what takes them: the other examples, then the curve over ε
    """
    began = time.monotonic()
    check_kinds(model, x, y, protocol, map)
    if map.complete:  # the settings record the points of this map, whatever the protocol's default
        protocol = replace(protocol, N=map.nodes)
    names = list(range(len(x))) if ids is None else [int(i) for i in ids]
    job = _Job(model, x, y, names, protocol, map, source, compiled, None if directions == precision else directions)
    with arithmetic(precision, job.device.type):
        check(model, x.to(job.device), y.to(job.device), job.ids, protocol, differentiated=source is None)
        if source is not None:
            check_source(source, model, x[:1].to(job.device))
        job = replace(job, y=y.long(), expect=expect)
        if out is None:
            records = job.measured(progress)
            return Evaluation(records, job.summary(records, metadata, began))
        path = Path(out.folder) / f"{protocol.name}-{map.name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with out.locked(path) as lock:
            records, earlier = job.recorded(path, out, progress)
            if out.rank == 0 and not (earlier == len(records) and job.finished(path)):
                job.write_gallery(path, records)
                made = job.summary(records, metadata, began, earlier=earlier)
                if any(r["id"] not in job.ids for r in read(path)[: len(records)]):  # not the first of the file
                    made["ids"] = job.ids
                text = json.dumps(sealed(made, records, path), indent=1, allow_nan=False)
                write_atomically(path.with_suffix(".json"), f"{text}\n".encode())
            lock.check()
    out.wait()
    return Evaluation(records, json.loads(path.with_suffix(".json").read_text(encoding="utf-8")))


@dataclass(frozen=True)
class _Job:
    """Everything that the records depend on."""

    model: nn.Module
    x: Tensor
    y: Tensor
    ids: list[int]
    protocol: Protocol
    map: AttributionMap
    source: nn.Module | None
    compiled: bool | None
    directions: str | None = None
    parts: Parts = field(default_factory=Parts)
    expect: Expect | None = None

    @property
    def device(self) -> torch.device:
        return next((p.device for p in self.model.parameters()), self.x.device)

    @cached_property
    def short(self) -> bool:
        """Whether the one-pass shortcut applies to most examples; the attack splits the others itself."""
        return bool(constant_along_ray(self.map, self.model, self.x, eps=self.protocol.eps).double().mean() > 0.5)

    @cached_property
    def size(self) -> int:
        """How many examples are attacked together: as many as fit, whatever the number of processes."""
        passes = 1 if self.short else self.map.together
        fits = rows_that_fit(self.model, self.x[:1].to(self.device), passes=passes, least=LEAST)
        return min(BATCH[1], -(-BATCH[0] // fits) * fits)

    def batches(self) -> list[range]:
        """Positions of the examples of each batch."""
        return [range(at, min(at + self.size, len(self.x))) for at in range(0, len(self.x), self.size)]

    def examples(self, at: Sequence[int]) -> tuple[Tensor, Tensor, list[int]]:
        index = torch.tensor(list(at), dtype=torch.long, device=self.x.device)
        return self.x[index].to(self.device), self.y[index].to(self.device), [self.ids[i] for i in at]

    def examples_of(self, records: Sequence[Mapping[str, Any]]) -> tuple[Tensor, Tensor, list[int]]:
        """The examples of some records, in the same order."""
        position = {i: at for at, i in enumerate(self.ids)}
        return self.examples([position[r["id"]] for r in records])

    def batch(self, at: Sequence[int], *, walks: bool = False) -> Batch:
        """The records of some examples, with the walks of those that a gallery of all may show.

        In parts where the memory of the device is too small.
        """
        found = self.parts(lambda part: self._batch(at[part], walks=walks), len(at))
        galleries = [part.gallery for part in found if part.gallery is not None]
        shown = gallery.joined(galleries, [i for each in galleries for i in each.id.tolist()])
        return Batch([record for part in found for record in part.records], shown)

    def _batch(self, at: Sequence[int], *, walks: bool) -> Batch:
        x, y, ids = self.examples(at)
        early = len(set(ids) & set(sorted(self.ids)[: gallery.FIRST]))
        return evaluate_batch(
            self.model, x, y, ids=ids, protocol=self.protocol, map=self.map, source=self.source,
            batch=self.compiled_for, directions=self.directions, first=early if walks else None,
        )  # fmt: skip

    @property
    def compiled_for(self) -> int | None:
        """The number of examples for which attacks are compiled; None where they run eagerly."""
        return -(-self.size // self.parts.count) if self.compiles else None

    @cached_property
    def compiles(self) -> bool:
        """Whether attacks are compiled: as asked, else where it pays."""
        if self.compiled is not None:
            return self.compiled
        return self.device.type == "cuda" and self.map.guide is None and self._seconds(len(self.x)) > PAYS

    def _announce(self, examples: int) -> None:
        """Say how long so many examples take, where it is asked for."""
        if self.expect is not None and examples:
            self.expect(self._seconds(examples), f"{examples:,} examples")

    def _seconds(self, examples: int) -> float:
        """How long so many examples take."""
        attacks = [attack.shortened() if self.short else attack for attack in self.attacks()]
        images = self.x.dim() == 4
        return evaluation_seconds(self.per_pass, self.protocol, attacks, examples=examples, images=images)

    @cached_property
    def per_pass(self) -> float:
        """Seconds of a second-order pass of one example."""
        return seconds_per_pass(self.source or self.model, self.x[:1].to(self.device), self.y[:1].to(self.device))

    def measured(self, progress: Progress) -> list[Record]:
        records: list[Record] = []
        progress(0, len(self.x))
        self._announce(len(self.x))
        for positions in self.batches():
            records += self.batch(positions).records
            progress(len(records), len(self.x))
        return sorted(records, key=lambda r: int(r["id"]))

    def recorded(self, path: Path, out: OutputDir, progress: Progress) -> tuple[list[Record], int]:
        """The records, through the disk, and how many of them an earlier command had written.

        Each process writes the records of its batches; the first one then merges all of them.
        """
        wanted, done = set(self.ids), begin(path, self.fingerprint())
        self._check_same(path, done)
        out.wait()  # all have counted before one writes
        mine = self.batches()[out.rank :: out.world]
        total = sum(map(len, mine))
        finished = sum(self.ids[at] in done for positions in mine for at in positions)
        progress(finished, total)
        self._announce(total - finished)
        for positions in mine:
            if missing := {self.ids[at] for at in positions} - done:  # batches of another size may cover a part
                batch = self.batch(positions, walks=True)
                if batch.gallery is not None:  # before the records, which say that the batch is done
                    write_atomically(gallery.part_for(path, self.ids[positions[0]]), batch.gallery.file)
                append(path, [r for r in batch.records if r["id"] in missing])
                finished += len(missing)
                progress(finished, total)
        out.wait()
        if out.rank == 0:
            merge(path, self.ids)
        out.wait()
        return [r for r in read(path) if r["id"] in wanted], len(wanted & done)

    def _check_same(self, path: Path, done: set[int]) -> None:
        """Refuse to continue records of other examples, of another model, or of another map."""
        known = [r for r in read(path) if r["id"] in set(self.ids)] if done else []
        check_same_predictions(path, known, self.model, self.examples_of)
        if with_map := [r for r in known if r.get("centre")][:PROBED]:
            self.parts(
                lambda part: check_same_map(path, with_map[part], self.model, self.map, self.examples_of),
                len(with_map[: self.size]),
            )

    def finished(self, path: Path) -> bool:
        """Whether the summary on disk is that of exactly these records, so that it need not be written again."""
        summary, records = path.with_suffix(".json"), read(path)
        if not summary.is_file() or {r["id"] for r in records} != set(self.ids):
            return False
        try:
            made = read_summary(summary)
            done = bool(made["examples"] == len(self.ids) and made["versions"]["robattr"] == __version__)
        except (CheckpointError, KeyError, TypeError):  # damaged: written again from the records
            return False
        if done:
            check_summary(made, records, source=summary)
        return done

    def fingerprint(self) -> dict[str, Any]:
        """The settings that records must share to be summarised together."""
        return {
            **self.protocol.settings(),
            "map": self.map.name,
            "weights": digest_of_weights(self.model),
            "source": None if self.source is None else digest_of_weights(self.source),
            "precision": in_use(self.device),
            **self._coarse,
        }

    @property
    def _coarse(self) -> dict[str, int | str]:
        """How the attack saves passes and time; empty for the reference's attack."""
        coarse, window = self.map.coarse, self.protocol.window
        saved: dict[str, int | str] = {} if self.directions is None else {"direction_precision": self.directions}
        return saved if coarse is None or window == 1 else {"direction_nodes": coarse.nodes, "window": window, **saved}

    def summary(
        self, records: list[Record], metadata: Mapping[str, Any] | None, began: float, *, earlier: int = 0
    ) -> dict[str, Any]:
        known = {"map": self.map.name, "precision": in_use(self.device), **self._coarse, **(metadata or {})}
        made = {**summarise(records, self.protocol), **known}
        x, y, ids = self.examples_of([r for r in records if r["correct"]][:PROBED])
        pgd = prediction_attacks(self.protocol, self.model)[0]
        made["diagnostics"]["accuracy_under"] = accuracies(pgd, x, y, ids=ids)
        if scored := [r for r in records if r["kept"] is not None]:
            compared = self.examples_of(scored[:COMPARED])[:2]
            made["same_class_cosine"] = estimate(
                self.parts.whole(lambda: input_dependence(self.map, self.model, *compared)).tolist()
            )
            x, y, ids = self.examples_of(scored[:PROBED])
            attack = self.attacks(batch=self.compiled_for)[0]
            attack = attack if attack.rows(x) <= len(x) else replace(attack, batch=None)  # most rows would be padding
            if self.expect is not None:
                once = replace(attack.shortened() if self.short else attack, restarts=1)
                self.expect(self.per_pass / SECOND_ORDER * len(RADII) * len(x) * once.cost, "the curve over ε")
            made["curves"]["score_vs_eps"] = self.parts.whole(lambda: score_against_eps(attack, x, y, ids=ids))
            if betas := [beta for a in self.protocol.attacks for beta in a.betas if beta < inf]:
                guide = self.map.guide or self.map
                near = self.parts.whole(lambda: twin_cosine(guide, self.model, x, y, beta=max(betas)))
                made["diagnostics"]["twin_cosine"] = float(near.median())
        made |= {"flags": flags(made), "alarms": alarms(made)}
        return {**made, **provenance(self.device, time.monotonic() - began), "earlier": earlier}

    def attacks(self, *, batch: int | None = None) -> list[IFIA]:
        images = self.x.dim() == 4
        return attribution_attacks(
            self.protocol, self.model, self.map,
            images=images, source=self.source, batch=batch, directions=self.directions,
        )  # fmt: skip

    def write_gallery(self, path: Path, records: list[Record]) -> None:
        """The gallery of all records, from those of the batches and of an earlier command."""
        file, parts, made = gallery.path_for(path), gallery.parts_of(path), []
        for each in (file, *parts):
            with suppress(CheckpointError):  # missing, or damaged: not shown
                made.append(gallery.read_gallery(each))
        if (shown := gallery.joined(made, [r["id"] for r in gallery.choose(records)])) is not None:
            write_atomically(file, shown.file)
        for part in parts:
            part.unlink()
