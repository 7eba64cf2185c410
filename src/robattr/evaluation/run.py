"""A whole evaluation: records that survive a kill, processes that share the work, a summary and a gallery."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from robattr._progress import Counter, Watch, expect, silent
from robattr._version import __version__
from robattr.attacks.maps import AttributionMap
from robattr.attacks.passes import compiled_once
from robattr.engine import in_use
from robattr.engine import precision as arithmetic
from robattr.engine.files import as_path, write_atomically
from robattr.errors import CheckpointError, InvalidInput
from robattr.evaluation import gallery
from robattr.evaluation.checks import check, check_kinds, check_source
from robattr.evaluation.diagnostics import (
    QUERIES,
    accuracies,
    curve_passes,
    other_attacks,
    score_against_eps,
    twin_cosine,
)
from robattr.evaluation.faithfulness import SAME_CLASS, input_dependence
from robattr.evaluation.flags import alarms, flags
from robattr.evaluation.job import Job
from robattr.evaluation.output_dir import OutputDir, provenance
from robattr.evaluation.paper_results import PaperResults
from robattr.evaluation.protocol import Protocol
from robattr.evaluation.records import Record, append, begin, merge, read
from robattr.evaluation.resume_checks import check_same, digest_of_weights
from robattr.evaluation.scores import PROBED
from robattr.evaluation.suite import prediction_attacks
from robattr.evaluation.summary import check as check_summary
from robattr.evaluation.summary import read as read_summary
from robattr.evaluation.summary import sealed, summarise
from robattr.metrics import intervals


@dataclass(frozen=True)
class Evaluation:
    """The records, one per example in order of id, and their summary."""

    records: list[Record] = field(repr=False)
    summary: dict[str, Any]


@compiled_once()
def evaluate(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    protocol: Protocol,
    map: AttributionMap,
    ids: Sequence[int] | None = None,
    source: nn.Module | None = None,
    out: OutputDir | str | Path | None = None,
    metadata: Mapping[str, Any] | None = None,
    precision: str = "fp32",
    directions: str | None = None,
    compiled: bool | None = None,
    watch: Watch = silent,
    title: str | None = None,
    shared: PaperResults | None = None,
) -> Evaluation:
    """Attack `model` on the examples x, y under `protocol`, for one kind of map, and summarise the scores.

    out        write records, summary and gallery there, and continue from the records that exist
    metadata   entries added to the summary (run, command, ...)
    source     the net whose gradients the attacks use instead of `model`'s (a transfer attack)
    precision  of matrix products: fp32, tf32 or bf16
    directions  precision of the products that only lead the attack, where it is another one; scores have `precision`
    compiled   compile the attribution attack; None: on a GPU, where that saves time
    watch      called with a title, what is done, all that is to be done, and its unit: of the examples, at first with
               those recorded before, then of the passes for the diagnostics
    title      of the evaluation, for `watch` (default: protocol and map)
    shared     where `paper` leaves what its attack found, and `strict` on the same model, map and examples takes it
    """
    began = time.monotonic()
    out = out if isinstance(out, OutputDir | None) else OutputDir(as_path(out))
    check_kinds(model=model, x=x, y=y, protocol=protocol, map=map)
    if map.complete:  # the settings record the points of this map, whatever the protocol's default
        protocol = replace(protocol, N=map.nodes)
    names = list(range(len(x))) if ids is None else [int(i) for i in ids]
    directions, title = None if directions == precision else directions, title or f"{protocol.name} {map.name}"
    job = Job(model, map, x, y.long(), names, protocol, source, compiled, directions, watch, title, shared)
    if job.device.type == "mps":
        raise InvalidInput("expected a model on a CPU or a GPU, got one on mps, which has no float64: use --device cpu")
    with arithmetic(precision, job.device.type):
        check(model, x.to(job.device), y.to(job.device), job.ids, protocol, differentiated=source is None)
        if source is not None:
            check_source(source, model, x[:1].to(job.device))
        if out is None:
            records = job.measured()
            return Evaluation(records, _summary(job, records, metadata, began))
        path = Path(out.folder) / f"{protocol.name}-{map.name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with out.locked(path) as lock:
            records, earlier = _recorded(job, path, out)
            if out.rank == 0 and not (earlier == len(records) and _finished(job, path)):
                _write_gallery(path, records)
                made = _summary(job, records, metadata, began, earlier=earlier)
                if any(r["id"] not in job.ids for r in read(path)[: len(records)]):  # not the first of the file
                    made["ids"] = job.ids
                text = json.dumps(sealed(made, records, path), indent=1, allow_nan=False)
                write_atomically(path.with_suffix(".json"), f"{text}\n".encode())
            lock.check()
    out.wait()
    return Evaluation(records, json.loads(path.with_suffix(".json").read_text(encoding="utf-8")))


def _recorded(job: Job, path: Path, out: OutputDir) -> tuple[list[Record], int]:
    """The records, through the disk, and how many of them an earlier command had written.

    Each process writes the records of its batches; the first one then merges all of them.
    """
    wanted, done = set(job.ids), begin(path, _fingerprint(job))
    check_same(path, done, job)
    out.wait()  # all have counted before one writes
    mine = job.batches if out.world == 1 else job.cut(job.size)[out.rank :: out.world]
    total = sum(map(len, mine))
    finished = sum(job.ids[at] in done for positions in mine for at in positions)
    job.begin(finished, total)
    for positions in mine:
        if missing := {job.ids[at] for at in positions} - done:  # batches of another size may cover a part
            batch = job.batch(positions, walks=True)
            if batch.gallery is not None:  # before the records, which say that the batch is done
                write_atomically(gallery.part_for(path, job.ids[positions[0]]), batch.gallery.file)
            append(path, [r for r in batch.records if r["id"] in missing])
            finished += len(missing)
            job.watch(job.title, finished, total)
    out.wait()
    if out.rank == 0:
        merge(path, job.ids)
    out.wait()
    return read(path, job.ids), len(wanted & done)


def _finished(job: Job, path: Path) -> bool:
    """Whether the summary on disk was made of exactly these records, so that it need not be written again."""
    summary, records = path.with_suffix(".json"), read(path)
    if not summary.is_file() or {r["id"] for r in records} != set(job.ids):
        return False
    try:
        made = read_summary(summary)
        done = bool(made["examples"] == len(job.ids) and made["versions"]["robattr"] == __version__)
    except (CheckpointError, KeyError, TypeError):  # damaged: written again from the records
        return False
    if done:
        check_summary(made, records, source=summary)
    return done


def _fingerprint(job: Job) -> dict[str, Any]:
    """The settings that records must share to be summarised together."""
    return {
        **job.protocol.settings(),
        "map": job.map.name,
        "weights": digest_of_weights(job.model),
        "source": None if job.source is None else digest_of_weights(job.source),
        "precision": in_use(job.device),
        **_coarse(job),
    }


def _coarse(job: Job) -> dict[str, int | str]:
    """How the attack saves passes and time; empty for the reference's attack."""
    coarse, window = job.map.coarse, job.protocol.window
    saved: dict[str, int | str] = {} if job.directions is None else {"direction_precision": job.directions}
    return saved if coarse is None or window == 1 else {"direction_nodes": coarse.nodes, "window": window, **saved}


def _summary(
    job: Job, records: list[Record], metadata: Mapping[str, Any] | None, began: float, *, earlier: int = 0
) -> dict[str, Any]:
    known = {"map": job.map.name, "precision": in_use(job.device), **_coarse(job), **(metadata or {})}
    made = {**summarise(records, job.protocol), **known}
    _diagnose(job, records, made)
    made |= {"flags": flags(made), "alarms": alarms(made)}
    return {**made, **provenance(job.device, time.monotonic() - began), "earlier": earlier}


def _diagnose(job: Job, records: list[Record], made: dict[str, Any]) -> None:
    """Add to the summary `made` what the records do not tell, from a few examples; reports its progress in passes."""
    right = [r for r in records if r["correct"]][:PROBED]
    scored = [r for r in records if r["kept"] is not None]
    probed, compared = scored[:PROBED], scored[:SAME_CLASS]
    pgd, attack = prediction_attacks(job.protocol, job.model)[0], job.attacks(batch=job.compiled_for)[0]
    costed, guide = attack.shortened() if job.short else attack, job.map.guide or job.map
    sharpest = max((beta for a in job.protocol.attacks for beta in a.betas if beta < inf), default=None)
    passes = {
        "accuracies": len(right) * (sum(each.cost for each in other_attacks(pgd).values()) + QUERIES),
        "cosine": len(compared) * 2 * costed.map.nodes,
        "curve": len(probed) * curve_passes(costed),
        "twin": len(probed) * 4 * guide.nodes * (sharpest is not None),
    }
    title, total = f"{job.title}, diagnostics", sum(passes.values())
    passed = Counter(partial(job.watch, title, unit="passes"), total)
    passed(0)
    expect(job.watch, title, lambda: job.seconds(total), "the curve over ε and other diagnostics")
    x, y, ids = job.examples_of(right)
    made["diagnostics"]["accuracy_under"] = accuracies(pgd, x, y, ids=ids)
    passed(passes["accuracies"])
    if not scored:
        return
    x, y, _ = job.examples_of(compared)
    cosines = job.parts.whole(lambda: input_dependence(job.map, job.model, x, y))
    made["same_class_cosine"] = intervals.mean(cosines.tolist()).plain()
    passed(passes["cosine"])
    x, y = x[:PROBED], y[:PROBED]
    if attack.rows(x) > len(x):  # most rows would be padding
        attack = replace(attack, batch=None)
    made["curves"]["score_vs_eps"] = job.parts.whole(lambda: score_against_eps(attack, x, y, probed, passed=passed))
    if sharpest is not None:
        near = job.parts.whole(lambda: twin_cosine(guide, job.model, x, y, beta=sharpest))
        made["diagnostics"]["twin_cosine"] = float(near.median())
    passed(total - passed.done)


def _write_gallery(path: Path, records: list[Record]) -> None:
    """The gallery of all records, from those of the batches and of an earlier command."""
    file, parts, made = gallery.path_for(path), gallery.parts_of(path), []
    for each in (file, *parts):
        with suppress(CheckpointError):  # missing, or damaged: not shown
            made.append(gallery.read_gallery(each))
    if (shown := gallery.joined(made, [r["id"] for r in gallery.choose(records)])) is not None:
        write_atomically(file, shown.file)
    for part in parts:
        part.unlink()
