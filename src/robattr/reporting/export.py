"""Export evaluated runs as records: small files to commit, without the paths of the machine."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from reprlib import repr as short
from typing import Any

from robattr.engine.files import write_atomically
from robattr.errors import CheckpointError, InvalidInput
from robattr.evaluation import gallery
from robattr.evaluation.gallery import read_gallery, thinned_file
from robattr.reporting.record import (
    DIGITS,
    SCHEMA,
    Columns,
    Record,
    file_name,
    read_record,
    sealed,
    slug,
    text,
    unsealed,
)
from robattr.reporting.run_results import EvaluationResults, RunResults
from robattr.reporting.training_log import curve

SCORES = (
    "id", "label", "predicted", "correct", "adv_correct", "kept", "topk", "kendall", "iterate",
    "insertion", "insertion_attacked", "insertion_over_random", "insertion_over_edges", "insertion_over_constant",
    "infidelity", "attacks", "passes", "converged",
)  # fmt: skip
SEALS = ("records", "file", "digest", "ids")  # of a summary: they refer to the files of the run
NAMED = ("config", "environment", "training", "search", "summary")  # parts of a record whose differences an error names
GALLERY_EXAMPLES, GALLERY_BYTES = 8, 150_000
OMITTED = ("platform",)  # of the environment: the kernel of one machine

_ROOT = r"(?:file://)?(?:~|[A-Za-z]:)?[/\\](?!/)"
# In quotes, or where the text is nothing else, a path may contain spaces and punctuation.
_QUOTED = re.compile(rf"(['\"])([\w-]+=)?({_ROOT}[^'\"]+)\1")
_WHOLE = re.compile(rf"{_ROOT}(?:(?! -)[^'\"\n])+")
# Elsewhere: an absolute path, also after an option (-o/x, --out=/x) or a colon, but not a URL or a fraction. It ends at
# whitespace, or at punctuation after its last separator.
_PATH = re.compile(
    rf"(?:(?<![\w./\\)\]-])|(?<=\s-\w))(?!//){_ROOT}"
    r"(?:[^\s'\"=,;:()\[\]<>]|[=,;()\[\]](?![/\\~'\"\s])(?=[^\s'\"]*[/\\]))+"
)


def record(run: RunResults, evaluation: EvaluationResults, *, name: str | None = None) -> Record:
    """The record of one evaluation of a run; `name` replaces its variant."""
    summary = {key: value for key, value in evaluation.summary.items() if key not in SEALS}
    return sealed(
        {
            "schema": SCHEMA,
            "variant": slug(name) if name else run.variant,
            "config": portable(run.config),
            "environment": portable(_public(run.environment)),
            "weights": evaluation.weights,
            "training": asdict(run.training),
            "curve": curve(run.metrics),
            **({"search": portable(run.search)} if run.search else {}),
            "summary": portable(summary),
            "examples": _columns(evaluation.records),
        }
    )


def _public(environment: Mapping[str, Any]) -> dict[str, Any]:
    """The environment of a run, and of each resumption, without the OMITTED keys."""
    kept = {key: value for key, value in environment.items() if key not in OMITTED}
    return {**kept, "resumed": [_public(again) for again in kept["resumed"]]} if "resumed" in kept else kept


def write_records(
    runs: Iterable[RunResults], folder: str | Path, *, name: str | None = None, force: bool = False
) -> list[tuple[Path, bool]]:
    """Write a record and a small gallery for every evaluation of the runs; return (file, whether it changed).

    A record that exists and differs is replaced only with `force`. Nothing is written before everything is checked.
    """
    if name is not None and not slug(name):
        raise InvalidInput(f"expected a --name with letters or digits, got {name!r}: ig-norm-wide, for example")
    target = Path(folder)
    made: dict[Path, tuple[Record, EvaluationResults]] = {}
    for run in runs:
        if not run.evaluations:
            raise CheckpointError(f"{run.path} has no evaluation: run `robattr evaluate {run.path}` first")
        for evaluation in run.evaluations:
            kept = record(run, evaluation, name=name)
            path = target / file_name(kept)
            there = made[path][0] if path in made else read_record(path) if path.is_file() else None
            if there and text(unsealed(there)) != text(unsealed(kept)) and (path in made or not force):
                raise CheckpointError(_collision(path, there, kept, given=path in made))
            made[path] = kept, evaluation
    target.mkdir(parents=True, exist_ok=True)
    return [written for path, (kept, evaluation) in made.items() for written in _write(path, kept, evaluation)]


def portable(value: Any) -> Any:
    """The value without NaN and with absolute paths cut: to what begins at `runs`, else to the last part."""
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


def _write(path: Path, kept: Record, evaluation: EvaluationResults) -> Iterator[tuple[Path, bool]]:
    files, beside = {path: text(kept).encode()}, gallery.path_for(path)
    if evaluation.gallery is None:
        beside.unlink(missing_ok=True)  # the gallery of a record that is replaced
    else:
        files[beside] = thinned_file(read_gallery(evaluation.gallery), most=GALLERY_EXAMPLES, budget=GALLERY_BYTES)
    for file, content in files.items():
        new = not file.is_file() or file.read_bytes() != content
        if new:
            write_atomically(file, content)
        yield file, new


def _collision(path: Path, there: Record, kept: Record, *, given: bool) -> str:
    old, new = (
        {"weights": r["weights"], **{f"{part}.{key}": v for part in NAMED for key, v in r.get(part, {}).items()}}
        for r in (there, kept)
    )
    odd = [key for key in {**new, **old} if new.get(key) != old.get(key)]
    said = (
        ", ".join(f"{key} {short(old.get(key))} → {short(new.get(key))}" for key in odd[:3]) or "the scores of examples"
    )
    more = f" and {len(odd) - 3} more" if len(odd) > 3 else ""
    if given:
        return f"two of the runs would be written to {path} ({said}{more}): record one of them under another --name"
    return f"{path} exists and differs ({said}{more}): --force replaces it, another --name keeps both"
