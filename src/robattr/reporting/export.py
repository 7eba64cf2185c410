"""From evaluated run directories to records: what is worth keeping, in small files that say nothing of a machine."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from robattr.engine.files import write_atomically
from robattr.errors import CheckpointError, InvalidInput
from robattr.evaluation import gallery
from robattr.reporting.gallery import read_gallery, small
from robattr.reporting.record import Columns, Record, read_record, slug
from robattr.reporting.runs import Evaluation, RunResults
from robattr.reporting.training import curve

SCORES = ("id", "label", "predicted", "correct", "adv_correct", "kept", "topk", "kendall", "iterate")
DIGITS = 4
SHOWN, GALLERY_BYTES = 8, 150_000
UNSAID = ("platform",)  # of the environment: the kernel of one machine, which no reader needs

_ROOT = r"(?:file://)?(?:~|[A-Za-z]:)?[/\\](?!/)"
# In quotes a path may hold anything; a text that is nothing but a path, too.
_QUOTED = re.compile(rf"(['\"])([\w-]+=)?({_ROOT}[^'\"]+)\1")
_WHOLE = re.compile(rf"{_ROOT}(?:(?! -)[^'\"\n])+")
# Elsewhere: an absolute path, also after an option (-o/x, --out=/x) or a colon, but not an address (https://…) or a
# fraction. It ends at a mark that no further part of it follows.
_PATH = re.compile(
    rf"(?:(?<![\w./\\)\]-])|(?<=\s-\w))(?!//){_ROOT}"
    r"(?:[^\s'\"=,;:()\[\]<>]|[=,;()\[\]](?![/\\~'\"\s])(?=[^\s'\"]*[/\\]))+"
)


def record(run: RunResults, evaluation: Evaluation, *, name: str | None = None) -> Record:
    """The record of one evaluation of a run; `name` replaces what its configuration calls the variant."""
    examples, recorded = evaluation.summary.get("examples"), len(evaluation.records)
    if examples != recorded:
        raise CheckpointError(
            f"{evaluation.source} sums up {examples} examples, but {recorded} are recorded beside it: evaluate again, "
            f"with --examples {recorded or examples}"
        )
    return Record(
        variant=slug(name) if name else run.variant,
        config=portable(run.config),
        environment=portable(_said(run.environment)),
        weights=evaluation.weights,
        training=asdict(run.training),
        curve=curve(run.metrics),
        summary=portable(evaluation.summary),
        examples=_columns(evaluation.records),
    )


def _said(environment: Mapping[str, Any]) -> dict[str, Any]:
    """The environment of a run, and of each time it was resumed, without what is UNSAID."""
    said = {key: value for key, value in environment.items() if key not in UNSAID}
    return {**said, "resumed": [_said(again) for again in said["resumed"]]} if "resumed" in said else said


def write_records(
    runs: Iterable[RunResults], folder: str | Path, *, name: str | None = None, force: bool = False
) -> list[tuple[Path, bool]]:
    """Write a record and a small gallery for every evaluation of the runs: (file, whether it was written).

    What is there already stays untouched if it is the same, and is replaced with `force` alone if it is not. Nothing is
    written before everything has been checked.
    """
    if name is not None and not slug(name):
        raise InvalidInput(f"expected a --name with letters or digits, got {name!r}: ig-norm-wide, for example")
    target = Path(folder)
    made: dict[Path, tuple[Record, Evaluation]] = {}
    for run in runs:
        if not run.evaluations:
            raise CheckpointError(f"{run.path} holds no evaluation: run `robattr evaluate {run.path}` first")
        for evaluation in run.evaluations:
            kept = record(run, evaluation, name=name)
            path = target / f"{kept.stem}.json"
            there = made[path][0] if path in made else read_record(path) if path.is_file() else None
            if there and there.text != kept.text and (path in made or not force):
                raise CheckpointError(_collision(path, there, kept, given=path in made))
            made[path] = kept, evaluation
    target.mkdir(parents=True, exist_ok=True)
    return [written for path, (kept, evaluation) in made.items() for written in _write(path, kept, evaluation)]


def portable(value: Any) -> Any:
    """The same without absolute paths (what is left begins at `runs`, else is the last part) and without NaN."""
    if isinstance(value, str):
        if _WHOLE.fullmatch(value):
            return _tail(value)
        quoted = _QUOTED.sub(lambda found: f"{found[1]}{found[2] or ''}{_tail(found[3])}{found[1]}", value)
        return _PATH.sub(lambda found: _tail(found.group()), quoted)
    if isinstance(value, Mapping):
        return {key: portable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [portable(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _tail(path: str) -> str:
    parts = [part for part in re.split(r"[/\\]+", path) if part]
    start = max((at for at, part in enumerate(parts) if part == "runs"), default=len(parts) - 1)
    return "/".join(parts[start:])


def _columns(records: Sequence[Mapping[str, Any]]) -> Columns:
    present = [key for key in SCORES if any(key in row for row in records)]
    return {key: [_short(row.get(key)) for row in records] for key in present}


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, DIGITS) if math.isfinite(value) else None
    return int(value) if isinstance(value, bool) else value


def _write(path: Path, kept: Record, evaluation: Evaluation) -> Iterator[tuple[Path, bool]]:
    files, beside = {path: kept.text.encode()}, gallery.path_for(path)
    if evaluation.gallery is None:
        beside.unlink(missing_ok=True)  # of what was there before
    else:
        files[beside] = small(read_gallery(evaluation.gallery), most=SHOWN, budget=GALLERY_BYTES)
    for file, content in files.items():
        new = not file.is_file() or file.read_bytes() != content
        if new:
            write_atomically(file, content)
        yield file, new


def _collision(path: Path, there: Record, kept: Record, *, given: bool) -> str:
    old, new = (dict(_leaves(asdict(replace(r, examples={}, curve={})))) for r in (there, kept))
    odd = [key for key in dict.fromkeys([*new, *old]) if new.get(key) != old.get(key)]
    said = ", ".join(f"{key} {old.get(key)!r} → {new.get(key)!r}" for key in odd[:3]) or "the scores of examples"
    more = f" and {len(odd) - 3} more" if len(odd) > 3 else ""
    if given:
        return f"two of the runs would be {path} ({said}{more}): record one of them under another --name"
    return f"{path} is the record of something else ({said}{more}): --force replaces it, another --name keeps both"


def _leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _leaves(inner, f"{key}.{name}" if key else str(name))
    else:
        yield key, value
