"""Per-example records: JSON lines that survive a kill at any moment, each example once.

For records named RUN/records/paper-ig.jsonl the folder holds

    paper-ig.settings              the settings of the records; other settings are rejected
    paper-ig.rank0-of-2.jsonl      a shard while the evaluation runs; one process appends to each
    paper-ig.jsonl                 all records, sorted by id, written atomically by `merge`

A line is one example: an object with an integer "id". JSON has no NaN: NaN and infinities are written as null.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from glob import escape
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from robattr.engine.files import write_atomically
from robattr.errors import CheckpointError, InvalidInput

try:
    import fcntl
except ImportError:  # not a POSIX system: there is no lock to take
    fcntl = None  # type: ignore[assignment]

Record = dict[str, Any]


class Records:
    """The shard of one process, open for appending.

        with Records(path, settings, rank=rank, world=world) as records:
            for batch in batches(ids[rank::world]):
                records.append(row for row in score(batch) if row["id"] not in records.done)
        barrier()
        if rank == 0: merge(path, ids)

    Opening removes a last line that a kill has cut. `done` contains the ids recorded by any process, in this run or in
    earlier ones with the same settings, whatever their number of processes.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any], *, rank: int = 0, world: int = 1) -> None:
        if not 0 <= rank < world:
            raise InvalidInput(f"expected 0 ≤ rank < world, got rank {rank} of {world}")
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        shard = self.path.with_name(f"{self.path.stem}.rank{rank}-of-{world}.jsonl")
        self._file = _open_alone(shard)
        try:
            os.ftruncate(self._file, sum(len(line) + 1 for _, line in _whole_lines(shard)))
            self.done = set(_entries(self.path))
            _settle(self.path, settings, begun=bool(self.done))
        except BaseException:
            if os.fstat(self._file).st_size == 0:
                shard.unlink()  # no empty shard after an error
            os.close(self._file)
            raise

    def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write a batch of records and flush it to the disk."""
        plain = [_plain(row) for row in rows]
        seen = set(self.done)
        for row in plain:
            if _id(row) in seen:
                raise InvalidInput(f"expected each example once, got id {row['id']} again: skip ids in `done`")
            seen.add(row["id"])
        size = os.fstat(self._file).st_size
        try:
            blob = memoryview("".join(json.dumps(row, allow_nan=False) + "\n" for row in plain).encode())
            while blob:
                blob = blob[os.write(self._file, blob) :]
            os.fsync(self._file)
        except BaseException:  # a full disk, an interrupt: leave no partial line
            os.ftruncate(self._file, size)
            raise
        self.done = seen

    def close(self) -> None:
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read(path: Path) -> list[Record]:
    """All records at `path`, sorted by id, each id once; also those of a running evaluation."""
    records = [json.loads(line) for line in _entries(Path(path)).values()]
    if not records:
        raise CheckpointError(f"expected records at {path}, found none: run `robattr evaluate` first")
    return records


def read_settings(path: Path) -> dict[str, Any]:
    """The settings of the records at `path`."""
    note = Path(path).with_suffix(".settings")
    remedy = "evaluate again with --fresh, or move the records away"
    try:
        return dict(json.loads(note.read_text(encoding="utf-8"))["settings"])
    except FileNotFoundError:
        raise CheckpointError(f"expected {note} beside its records, found none: {remedy}") from None
    except (ValueError, KeyError, TypeError) as cause:
        raise CheckpointError(f"expected the settings of the records in {note}, but it is damaged: {remedy}") from cause


def merge(path: Path, ids: Iterable[int]) -> list[Record]:
    """Merge all shards into `path` atomically, and return the records of `ids`, sorted by id.

    Call it in one process when all have closed their shards. The file is the same, byte for byte, for any number of
    processes. If an id is missing the shards stay, and the evaluation can resume.
    """
    path = Path(path)
    lines = _entries(path)
    wanted = sorted(set(ids))
    missing = [i for i in wanted if i not in lines]
    if missing:
        raise CheckpointError(
            f"expected {len(wanted)} examples in {path}, got {len(wanted) - len(missing)} "
            f"(id {missing[0]} is missing): run the same command again to resume"
        )
    write_atomically(path, b"".join(line + b"\n" for line in lines.values()))
    for shard in _shards(path):
        shard.unlink()
    return [json.loads(lines[i]) for i in wanted]


def _settle(path: Path, settings: Mapping[str, Any], *, begun: bool) -> None:
    """Write the settings of new records; reject existing records with other settings."""
    note = path.with_suffix(".settings")
    mine = json.loads(json.dumps(_plain(settings)))
    theirs = read_settings(path) if begun or note.exists() else None
    if mine == theirs:
        return
    if theirs is None or not begun:
        text = json.dumps({"settings": mine}, indent=1)
        write_atomically(note, text.encode() + b"\n")
        return
    odd = [key for key in sorted({*mine, *theirs}) if mine.get(key) != theirs.get(key)]
    changes = ", ".join(f"{key} {theirs.get(key)!r} → {mine.get(key)!r}" for key in odd)
    raise CheckpointError(
        f"expected the settings that {path} was made with, got others ({changes}): "
        "use the old ones, move the records away, or write elsewhere"
    )


def _shards(path: Path) -> list[Path]:
    return sorted(path.parent.glob(f"{escape(path.stem)}.rank*-of-*.jsonl"))


def _entries(path: Path) -> dict[int, bytes]:
    """id → line of every record, sorted by id.

    The shards are read first: one that disappears meanwhile has been merged into `path`, so repeated ids are copies.
    """
    found: dict[int, bytes] = {}
    for file in (*_shards(path), path):
        with suppress(FileNotFoundError):
            found.update(_whole_lines(file))
    return dict(sorted(found.items()))


def _whole_lines(file: Path) -> list[tuple[int, bytes]]:
    """(id, line) of the records in one file without an incomplete last line; other damaged lines are errors."""
    lines = file.read_bytes().split(b"\n")[:-1]
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found.append((_id(json.loads(line)), line))
        except ValueError as cause:
            if number < len(lines):
                raise CheckpointError(
                    f"expected a record in line {number} of {file}, got {line[:40]!r}: the file is damaged; "
                    "delete that line, and the example is evaluated again"
                ) from cause
    return found


def _open_alone(shard: Path) -> int:
    """Open for appending, with a lock against a second writer that ends with the process."""
    file = os.open(shard, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as cause:
            os.close(file)
            raise CheckpointError(f"expected {shard} to be free, but a process is writing it: wait for it") from cause
    return file


def _id(row: Mapping[str, Any]) -> int:
    value = row.get("id") if isinstance(row, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInput(f"expected a record with a whole number as its id, got id {value!r}")
    return value


def _plain(value: Any) -> Any:
    """The value in JSON types: arrays and tensors as numbers and lists, NaN and infinities as null."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value
