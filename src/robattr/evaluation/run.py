"""An evaluation from end to end: blocks of examples, records that survive a kill, processes that share the work.

The examples are cut into fixed blocks. What a block yields depends on nothing else, so that any number of processes,
resumed any number of times, writes the same records.
"""

from __future__ import annotations

import hashlib
import json
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn

from robattr._version import __version__
from robattr.attacks.maps import AttributionMap, constant_along_ray
from robattr.engine import in_use, precision
from robattr.engine.batch_size import rows_that_fit
from robattr.errors import InvalidInput
from robattr.evaluation import gallery
from robattr.evaluation.checks import check, check_kinds, check_source
from robattr.evaluation.diagnostics import accuracies, alarms, score_against_eps
from robattr.evaluation.evaluate_batch import Record, evaluate_batch
from robattr.evaluation.protocol import Protocol
from robattr.evaluation.protocol_attacks import attribution_attacks, prediction_attacks
from robattr.evaluation.records import Records, merge, read
from robattr.evaluation.resume_checks import check_answers, check_map
from robattr.evaluation.summary import summarise

Progress = Callable[[int, int], None]
PROBED = 16  # correctly classified examples on which the slower diagnostics run
BLOCK = (8, 256)  # fewest and most examples attacked together


@dataclass(frozen=True)
class Evaluation:
    """The records, one per example by rising id, and their summary."""

    records: list[Record]
    summary: dict[str, Any]


@dataclass(frozen=True)
class OutputDir:
    """Where an evaluation is written, and which share of the work is this process's.

    With `fresh`, what an earlier one of the same name left there is discarded, once everything has been checked.
    """

    folder: Path
    rank: int = 0
    world: int = 1
    fresh: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.folder, Path):
            raise InvalidInput(f"expected a pathlib.Path as the folder, got {self.folder!r}")


def evaluate(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    protocol: Protocol,
    map: AttributionMap,
    ids: Sequence[int] | None = None,
    source: nn.Module | None = None,
    place: OutputDir | None = None,
    about: dict[str, Any] | None = None,
    arithmetic: str = "fp32",
    compiled: bool = False,
    progress: Progress = lambda done, total: None,
) -> Evaluation:
    """Attack and measure `model` on the examples x, y under `protocol`, for one kind of map.

    With a `place`, records, summary and gallery are written there, and work done before is not done again. `about` is
    added to the summary (run, command, ...). With a `source` the attacks follow that net's gradients: a transfer
    attack. `arithmetic` is the precision of products, fp32, tf32 or bf16. `compiled` compiles the attribution attack
    (worth it on a GPU).
    """
    began = time.monotonic()
    check_kinds(model, x, y, protocol, map)
    if map.complete:  # the settings tell the points of this very map, whatever the protocol's default
        protocol = replace(protocol, N=map.nodes)
    names = list(range(len(x))) if ids is None else [int(i) for i in ids]
    job = _Job(model, x, y, names, protocol, map, source, compiled)
    with precision(arithmetic, job.device.type):
        check(model, x.to(job.device), y.to(job.device), job.ids, protocol, differentiated=source is None)
        if source is not None:
            check_source(source, model, x[:1].to(job.device), y[:1].to(job.device))
        job = replace(job, y=y.long())
        if place is None:
            records = job.measured(progress)
            return Evaluation(records, job.summary(records, about, began))
        path = place.folder / f"{protocol.name}-{map.name}.jsonl"
        if place.fresh and place.rank == 0:
            discard(place.folder, protocol, map)
        _wait_for_all(place)
        records, earlier = job.recorded(path, place, progress)
        if place.rank == 0 and not job.finished(path):
            job.write_gallery(path, records)
            _write(path.with_suffix(".json"), job.summary(records, about, began, earlier=earlier))
    _wait_for_all(place)
    return Evaluation(records, json.loads(path.with_suffix(".json").read_text(encoding="utf-8")))


@dataclass(frozen=True)
class _Job:
    """What is evaluated on what: everything the records depend on."""

    model: nn.Module
    x: Tensor
    y: Tensor
    ids: list[int]
    protocol: Protocol
    map: AttributionMap
    source: nn.Module | None
    compiled: bool

    @property
    def device(self) -> torch.device:
        return next((p.device for p in self.model.parameters()), self.x.device)

    @cached_property
    def size(self) -> int:
        """How many examples are attacked together: as many as fit, whatever the number of processes.

        Where one pass replaces the map's N on most examples, as many as fit then; the attack cuts the others by itself.
        """
        short = constant_along_ray(self.map, self.model, self.x, eps=self.protocol.eps).double().mean() > 0.5
        fits = rows_that_fit(self.model, self.x[:1].to(self.device), passes=1 if short else self.map.nodes)
        return min(BLOCK[1], max(BLOCK[0], fits // self.protocol.repeats))

    def blocks(self) -> list[list[int]]:
        """Positions of the examples, block by block."""
        size = self.size
        return [list(range(at, min(at + size, len(self.x)))) for at in range(0, len(self.x), size)]

    def examples(self, at: Sequence[int]) -> tuple[Tensor, Tensor, list[int]]:
        index = torch.tensor(list(at), dtype=torch.long, device=self.x.device)
        return self.x[index].to(self.device), self.y[index].to(self.device), [self.ids[i] for i in at]

    def of(self, records: Sequence[Mapping[str, Any]]) -> tuple[Tensor, Tensor, list[int]]:
        """The examples the records are about, in their order."""
        place = {i: at for at, i in enumerate(self.ids)}
        return self.examples([place[r["id"]] for r in records])

    def block(self, at: Sequence[int]) -> list[Record]:
        x, y, ids = self.examples(at)
        batch = self.size if self.compiled else None
        return evaluate_batch(
            self.model, x, y, ids=ids, protocol=self.protocol, map=self.map, source=self.source, batch=batch
        )

    def measured(self, progress: Progress) -> list[Record]:
        records: list[Record] = []
        for block in self.blocks():
            records += self.block(block)
            progress(len(records), len(self.x))
        return sorted(records, key=lambda r: int(r["id"]))

    def recorded(self, path: Path, place: OutputDir, progress: Progress) -> tuple[list[Record], int]:
        """As `measured`, through the disk: this process's blocks are appended to its shard, then all are merged.

        And how many of the records an earlier command had left.
        """
        wanted = set(self.ids)
        with Records(path, self.fingerprint(), rank=place.rank, world=place.world) as records:
            self._check_same(path, records.done)
            earlier = len(wanted & records.done)
            _wait_for_all(place)  # counted before anyone adds to them
            mine = self.blocks()[place.rank :: place.world]
            total = sum(len(block) for block in mine)
            done = 0
            for block in mine:
                missing = {self.ids[at] for at in block} - records.done
                if missing:  # a kill may have cut a block short: it is done again, and only what is missing is added
                    records.append([r for r in self.block(block) if r["id"] in missing])
                done += len(block)
                progress(done, total)
        _wait_for_all(place)
        if place.rank == 0:
            merge(path, self.ids)
        _wait_for_all(place)
        return [r for r in read(path) if r["id"] in wanted], earlier

    def _check_same(self, path: Path, done: set[int]) -> None:
        """Refuse to go on with records of other examples, of a model that answers otherwise, or of another map."""
        known = [r for r in read(path) if r["id"] in set(self.ids)] if done else []
        check_answers(path, known, self.model, self.of)
        if traced := [r for r in known if r.get("centre")][:PROBED]:
            check_map(path, traced[: self.size], self.model, self.map, self.of)

    def finished(self, path: Path) -> bool:
        """Whether the summary in place is of these very records: then it says who made them, how, and how long it took.

        It is written last, of the examples asked for; others of the same number would be among the records as well.
        """
        summary = path.with_suffix(".json")
        if not summary.is_file() or {r["id"] for r in read(path)} != set(self.ids):
            return False
        try:
            made = json.loads(summary.read_text(encoding="utf-8"))
            return bool(made["examples"] == len(self.ids) and made["versions"]["robattr"] == __version__)
        except (ValueError, KeyError, TypeError):  # damaged: the records are there, and it is written again
            return False

    def fingerprint(self) -> dict[str, Any]:
        """What records must share to be counted together."""
        return {
            **self.protocol.settings(),
            "map": self.map.name,
            "weights": digest_of_weights(self.model),
            "source": None if self.source is None else digest_of_weights(self.source),
            "precision": in_use(self.device),
        }

    def summary(
        self, records: list[Record], about: dict[str, Any] | None, began: float, *, earlier: int = 0
    ) -> dict[str, Any]:
        known = {"map": self.map.name, "precision": in_use(self.device), **(about or {})}
        made = {**summarise(records, self.protocol), **known}
        x, y, ids = self.of([r for r in records if r["correct"]][:PROBED])
        pgd = prediction_attacks(self.protocol, self.model)[0]
        made["diagnostics"]["accuracy_under"] = accuracies(pgd, x, y, ids=ids)
        scored = [r for r in records if r["kept"] is not None][:PROBED]
        if scored:
            x, y, ids = self.of(scored)
            batch = PROBED if self.compiled else None
            attacks = attribution_attacks(
                self.protocol, self.model, self.map, images=x.dim() == 4, source=self.source, batch=batch
            )
            made["curves"]["score_vs_eps"] = score_against_eps(attacks[0], x, y, ids=ids)
        made["alarms"] = alarms(made)
        versions = {"robattr": __version__, "torch": torch.__version__, "python": platform.python_version()}
        cuda = self.device.type == "cuda"
        device = torch.cuda.get_device_name(self.device) if cuda else str(self.device)
        when, seconds = datetime.now(UTC).isoformat(timespec="seconds"), round(time.monotonic() - began, 1)
        took = {"finished": when, "seconds": seconds, "earlier": earlier}
        return {**made, "versions": versions, "device": device, **took}

    def write_gallery(self, path: Path, records: list[Record]) -> None:
        shown = gallery.choose(records)
        if shown and self.x.dim() == 4:
            x, y, _ = self.of(shown)
            attacks = attribution_attacks(self.protocol, self.model, self.map, images=True, source=self.source)
            arrays = gallery.walk(attacks, x, y, shown, protocol=self.protocol)
            gallery.save(gallery.beside(path), arrays)


def digest_of_weights(model: nn.Module) -> str:
    """A short name of a model's weights and buffers: records of others are never mixed with its own.

    A module's extra state may be anything, and is passed over.
    """
    weights = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        if not isinstance(tensor, Tensor):
            continue
        weights.update(name.encode())
        weights.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return weights.hexdigest()[:16]


def discard(folder: Path, protocol: Protocol, map: AttributionMap) -> None:
    """Remove everything an earlier evaluation of that name left."""
    stem = f"{protocol.name}-{map.name}"
    for file in folder.glob(f"{stem}*"):
        if file.name.removeprefix(stem)[:1] in {".", "-"}:
            file.unlink()


def _write(path: Path, content: dict[str, Any]) -> None:
    draft = path.with_suffix(".json.tmp")
    draft.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    draft.replace(path)


def _wait_for_all(place: OutputDir) -> None:
    if place.world > 1:
        distributed.barrier()
