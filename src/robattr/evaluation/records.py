"""Per-example records: JSON lines that survive a kill at any moment, each example once.

For records named RUN/records/paper-ig.jsonl the folder holds

    paper-ig.settings        the settings of the records; other settings are rejected
    paper-ig.from12.jsonl    while the evaluation runs: the records of one batch, named by its first id
    paper-ig.jsonl           all records, sorted by id

Every file is written atomically. A line is one example: an object with an integer "id".
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from glob import escape
from pathlib import Path
from typing import Any

from robattr._form import all_fit, check_form, parse_json, parse_json_lines, uncollected
from robattr.engine.files import locked, read_object, write_atomically
from robattr.errors import CheckpointError
from robattr.evaluation.gallery import ENDING
from robattr.evaluation.scores import AGREEMENT, CONTROLS, FAITHFULNESS

Record = dict[str, Any]
Rows = Sequence[Mapping[str, Any]]

SCORES = (*AGREEMENT, *CONTROLS, *FAITHFULNESS, "confidence")
FLAG = (bool, None)
FORM = {
    "id": int, "label?": int, "predicted?": int, "correct?": bool, "adv_correct?": bool, "kept?": FLAG,
    "iterate?": (int, None), "attack?": int, "repeat?": int, "excluded?": (str, None),
    "centre?": ([(float, None)], None), "diagnostics?": dict, **{f"{name}?": (float, None) for name in SCORES},
}  # fmt: skip
ALL_FIT = all_fit(FORM)


def begin(path: Path, settings: Mapping[str, Any]) -> set[int]:
    """The ids that are recorded already; records with other settings are rejected."""
    path.parent.mkdir(parents=True, exist_ok=True)
    done = set(_lines(path))
    mine = json.loads(json.dumps(settings))
    theirs = read_settings(path) if done else {}
    if not done:  # without a record, other settings may replace them
        write_atomically(path.with_suffix(".settings"), json.dumps({"settings": mine}, indent=1).encode() + b"\n")
    elif mine != theirs:
        odd = [key for key in sorted({*mine, *theirs}) if mine.get(key) != theirs.get(key)]
        changes = ", ".join(f"{key} {theirs.get(key)!r} → {mine.get(key)!r}" for key in odd)
        raise CheckpointError(
            f"expected the settings that {path} was made with, got others ({changes}): "
            "use the old ones, write elsewhere, or begin anew with --fresh"
        )
    return done


def append(path: Path, batch: Sequence[Record]) -> None:
    """Write the records of a batch."""
    lines = "".join(json.dumps(row, allow_nan=False) + "\n" for row in batch)
    write_atomically(path.with_name(f"{path.stem}.from{batch[0]['id']}.jsonl"), lines.encode())


def merge(path: Path, ids: Iterable[int]) -> None:
    """Merge all batches into `path`, in one process when all have finished.

    The file is the same, byte for byte, for any number of processes. If an id is missing the batches stay, and the
    evaluation can resume.
    """
    parts = _parts(path)  # before they are read: another one may appear meanwhile
    lines, wanted = _lines(path), sorted(set(ids))
    if missing := [i for i in wanted if i not in lines]:
        raise CheckpointError(
            f"expected {len(wanted)} examples in {path}, got {len(wanted) - len(missing)} "
            f"(id {missing[0]} is missing): run the same command again to resume"
        )
    write_atomically(path, b"".join(line + b"\n" for line, _ in lines.values()))
    for part in parts:
        part.unlink()


def read(path: Path, ids: Iterable[int] | None = None) -> list[Record]:
    """The records at `path`, of some or all ids, sorted by id, each id once; also of a running evaluation."""
    records = {i: record for i, (_, record) in _lines(path).items()}
    if not records:
        raise CheckpointError(f"expected records at {path}, found none: run `robattr evaluate` first")
    return list(records.values()) if ids is None else [records[i] for i in sorted(records.keys() & set(ids))]


def recorded(path: Path) -> set[int]:
    """The ids of the examples with a record in `path`; empty if the file does not exist."""
    return set(_lines(path))


def seconds_spent(path: Path, seconds: float | None = None) -> float:
    """The seconds that commands have spent on the records at `path`; `seconds` replaces the number."""
    note = path.with_suffix(".settings")
    content = read_object(note, {"settings": dict, "seconds?": float})
    if seconds is not None:
        content["seconds"] = seconds
        write_atomically(note, json.dumps(content, indent=1).encode() + b"\n")
    return float(content.get("seconds", 0.0))


def file_digest(path: Path) -> str | None:
    """A hash of the file of records; None where there is none, or batches are not merged into it yet."""
    if _parts(path) or not path.is_file():
        return None
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def read_settings(path: Path) -> dict[str, Any]:
    """The settings of the records at `path`."""
    note = path.with_suffix(".settings")
    remedy = "evaluate again with --fresh, or move the records away"
    try:
        content = parse_json(note.read_text(encoding="utf-8"))
        check_form(content, {"settings": dict})
        return dict(content["settings"])
    except FileNotFoundError:
        raise CheckpointError(f"expected {note} beside its records, found none: {remedy}") from None
    except ValueError as cause:
        raise CheckpointError(f"expected the settings of the records in {note}, but it is damaged: {remedy}") from cause


def discard(path: Path) -> None:
    """Delete the files of the evaluation with records at `path`, with its lock held."""
    ours = re.compile(rf"\.json|\.settings|(\.from\d+)?({re.escape(ENDING)}|\.jsonl)")
    for file in path.parent.glob(f"{escape(path.stem)}*"):
        if ours.fullmatch(file.name[len(path.stem) :]):
            file.unlink()


def discard_all(folder: Path) -> None:
    """Delete all evaluations in `folder`; refused while a process writes one of them."""
    with ExitStack() as stack:
        for file in folder.glob(".*.lock"):
            stack.enter_context(locked(folder, file.name))
        for file in folder.glob("[!.]*"):
            file.unlink()


def _parts(path: Path) -> list[Path]:
    return sorted(path.parent.glob(f"{escape(path.stem)}.from*.jsonl"))


@uncollected()
def _lines(path: Path) -> dict[int, tuple[bytes, Record]]:
    """id → line and content of every record, sorted by id.

    The batches are read first: one that disappears meanwhile has been merged into `path`, so repeated ids are copies.
    """
    found: dict[int, tuple[bytes, Record]] = {}
    for file in (*_parts(path), path):
        lines: list[bytes] = []
        with suppress(FileNotFoundError):
            lines = file.read_bytes().split(b"\n")[:-1]
        whole = parse_json_lines(lines)  # faster than one by one
        records = whole if whole is not None and ALL_FIT(whole) else None
        for number, line in enumerate(lines):
            try:
                record = _parsed(line) if records is None else records[number]
                if found.get(record["id"], (line,))[0] != line:
                    raise ValueError(f"example {record['id']} was there before, with other values")
                found[record["id"]] = line, record
            except ValueError as cause:
                raise CheckpointError(
                    f"expected a record in line {number + 1} of {file}, got {line[:40]!r} ({cause}): the file is "
                    "damaged; delete that line, and the example is evaluated again"
                ) from cause
    return dict(sorted(found.items()))


def _parsed(line: bytes) -> Record:
    record: Record = parse_json(line)
    check_form(record, FORM)
    return record
