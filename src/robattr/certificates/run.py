"""Certificates of many examples: batches, records that survive a kill, processes that share the work."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from numbers import Real
from pathlib import Path
from typing import Any

from robattr._progress import Counter
from robattr.certificates.attack import KINDS
from robattr.certificates.certificate import Bounds, Certificate, bounds_from
from robattr.certificates.challenge import Challenge
from robattr.certificates.examples import Examples
from robattr.certificates.record import tally_of
from robattr.certificates.smoothing import Smoothing, tally
from robattr.certificates.summary import at_radius, challenged, per_example
from robattr.engine import precision as arithmetic
from robattr.engine.files import read_object, write_atomically
from robattr.errors import CheckpointError, InvalidInput
from robattr.evaluation.output_dir import OutputDir, provenance
from robattr.evaluation.records import Record, append, begin, merge, read, recorded, seconds_spent
from robattr.evaluation.resume_checks import check_same
from robattr.evaluation.summary import edited, sealed
from robattr.metrics import intervals

Progress = Callable[[int, int], None]
Make = Callable[[Sequence[int], Callable[[int], None]], list[Record]]
ENOUGH = 0.5  # seconds to time


@dataclass(frozen=True)
class Certificates:
    """The counts of every example, one record each in order of id, and what they prove.

    at(radius)   the certificates of all examples at a radius; any radius costs nothing
    summary      the certificates at the given radii, as means over the examples
    """

    records: list[Record]
    smoothing: Smoothing
    summary: dict[str, Any]

    @cached_property
    def bounds(self) -> Bounds:
        """The bounds at each x, which all certificates follow from."""
        return bounds_from(tally_of(self.records, self.smoothing), self.smoothing)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a map, whose pixels the certificates have in one row."""
        return tuple(self.records[0]["shape"])

    def at(self, radius: float) -> Certificate:
        return self.bounds.at(radius)


def certify(
    examples: Examples,
    radii: Sequence[float],
    *,
    out: OutputDir | None = None,
    metadata: Mapping[str, Any] | None = None,
    progress: Progress = lambda done, total: None,
) -> Certificates:
    """Count on noisy copies of the examples, and summarise what is certified at the radii.

    out        write records and summary there, and continue from the records that exist
    metadata   entries added to the summary (run, command, ...)
    progress   called with the numbers of copies seen and of all copies, at first with those of existing records
    """
    check_radii(radii)

    def summary(records: list[Record], seconds: float) -> dict[str, Any]:
        bounds, s = bounds_from(tally_of(records, examples.smoothing), examples.smoothing), examples.smoothing
        return {
            **(metadata or {}),
            "map": examples.map.name,
            "settings": examples.settings(),
            "examples": len(records),
            "k": bounds.k,
            "shape": list(examples.x.shape[1:]),
            "bounds": list(examples.bounds),
            "columns": {
                "nat_acc": intervals.proportion(r["correct"] for r in records).plain(),
                "noisy_acc": intervals.mean(r["answers"] / s.samples for r in records).plain(),
            },
            "radii": [at_radius(bounds, radius) for radius in radii],
            "per_example": per_example(records, bounds, radii),
            **provenance(examples.device, seconds),
        }

    records, made = _recorded(
        examples, examples.map.name, examples.settings(), examples.counted, summary, out, progress,
        together=examples.smoothing.samples,
    )  # fmt: skip
    return Certificates(records, examples.smoothing, made)


def check_radii(radii: Sequence[float]) -> None:
    """Refuse radii within which there is nothing to certify."""
    for radius in radii:
        if not (isinstance(radius, Real) and 0 < radius < float("inf")):
            raise InvalidInput(f"expected radii above 0, got {radius!r}")


def attack_certificates(
    examples: Examples,
    certificates: Certificates,
    claim: float,
    how: Challenge,
    *,
    out: OutputDir | None = None,
    metadata: Mapping[str, Any] | None = None,
    progress: Progress = lambda done, total: None,
) -> dict[str, Any]:
    """Challenge the certificates at the radius `claim` by attacks within `how.radius`; returns the summary."""
    settings = {**examples.settings(), "claim": claim, **asdict(how)}

    def summary(records: list[Record], seconds: float) -> dict[str, Any]:
        return {
            **(metadata or {}),
            "map": examples.map.name,
            "settings": settings,
            **challenged(records),
            **provenance(examples.device, seconds),
        }

    make = partial(examples.attacked, known=certificates.records, claim=claim, how=how)
    name = attack_name(examples, claim, how)
    return _recorded(examples, name, settings, make, summary, out, progress, together=how.draws, copies=1 + len(KINDS))[
        1
    ]


def attack_name(examples: Examples, claim: float, how: Challenge) -> str:
    """The name of the records of an attack."""
    beyond = "" if how.radius == claim else f"-within-{how.radius:g}"
    return f"{examples.map.name}-attack-{claim:g}{beyond}"


def unrecorded(examples: Examples, name: str, out: OutputDir | None) -> int:
    """How many examples have no record called `name` yet."""
    done = set() if out is None or out.fresh else recorded(Path(out.folder) / f"{name}.jsonl")
    return len(set(examples.ids) - done)


def seconds_per_copy(examples: Examples) -> float:
    """Seconds for one noisy copy, from ten of them, or where these are quick from two hundred."""
    x, y, ids = examples.take([0])
    with arithmetic("fp32", examples.device.type):
        for samples in (10, 200):
            few, began = replace(examples.smoothing, samples=samples), time.perf_counter()
            examples.parts.whole(partial(tally, examples.model, examples.map, x, y, ids=ids, smoothing=few))
            seconds = time.perf_counter() - began
            if seconds > ENOUGH:
                break
    return seconds / few.copies


def _recorded(
    examples: Examples,
    name: str,
    settings: Mapping[str, Any],
    make: Make,
    summary: Callable[[list[Record], float], dict[str, Any]],
    out: OutputDir | None,
    progress: Progress,
    *,
    together: int,
    copies: int = 1,
) -> tuple[list[Record], dict[str, Any]]:
    """The records that `make` gives for every batch, through the disk if there is a folder, and their summary.

    A batch has the examples that fit with `together` copies each; `copies` times are all copies of an example drawn.
    The summary is given the seconds of all commands that made the records, of the first process.
    """
    began = time.monotonic()
    each = copies * examples.smoothing.copies
    with arithmetic("fp32", examples.device.type):
        examples.check(differentiated=copies > 1)
        batches = examples.batches(together)
        if out is None:
            watch = Counter(progress, each * len(examples.x))
            watch(0)
            records = [r for at in batches for r in _batch(examples, at, make, watch)]
            records.sort(key=lambda r: int(r["id"]))
            return records, summary(records, time.monotonic() - began)
        path = Path(out.folder) / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with out.locked(path) as lock:
            done = begin(path, settings)
            before = seconds_spent(path)
            _check_unedited(path, done)
            check_same(path, done, examples)
            out.wait()  # all have counted before one writes
            mine = batches[out.rank :: out.world]
            watch = Counter(progress, each * sum(map(len, mine)))
            left = [some for at in mine if (some := [i for i in at if examples.ids[i] not in done])]
            watch(watch.total - each * sum(map(len, left)))
            for at in left:
                append(path, _batch(examples, at, make, watch))
                if out.rank == 0:
                    seconds_spent(path, before + time.monotonic() - began)
            out.wait()
            if out.rank == 0:
                merge(path, examples.ids)
                wanted = read(path, examples.ids)
                spent = seconds_spent(path, before + (time.monotonic() - began) * bool(left))
                text = json.dumps(sealed(summary(wanted, spent), wanted), indent=1, allow_nan=False)
                write_atomically(path.with_suffix(".json"), f"{text}\n".encode())
            lock.check()
    out.wait()
    return read(path, examples.ids), json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))


def _batch(examples: Examples, at: Sequence[int], make: Make, watch: Counter) -> list[Record]:
    """The records of a batch, in parts where the memory of the device is too small."""
    before = watch.done

    def work(part: slice) -> list[Record]:
        if part.start == 0:  # also again, in more parts
            watch.done = before
        return make(at[part], watch)

    return [record for found in examples.parts(work, len(at)) for record in found]


def _check_unedited(path: Path, done: set[int]) -> None:
    """Reject records that differ from those the summary was made of; a damaged summary is made again."""
    file = path.with_suffix(".json")
    try:
        made = read_object(file, {"per_example": {"id": [int]}}) if done and file.is_file() else None
    except CheckpointError:
        return
    if made is None:
        return
    if odd := edited(made, read(path, made["per_example"]["id"])):
        raise CheckpointError(
            f"{file} does not agree with its records ({odd}): delete it, and the same command makes it from them; "
            "if they were edited, use --fresh"
        )
