"""JSON and JSON lines, read with errors that name the file. NaN and infinities, which JSON lacks, become null."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from robattr.errors import CheckpointError


def read_object(path: Path) -> dict[str, Any]:
    """The object of a JSON file."""
    try:
        value = _parsed(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as cause:
        raise CheckpointError(f"{path} could not be read as JSON ({cause}): the file is damaged") from cause
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value


def read_lines(path: Path, *, torn_end: bool = False) -> tuple[Mapping[str, Any], ...]:
    """The objects of a JSON-lines file, none where it is absent. A log still being written may end mid-line."""
    if not path.is_file():
        return ()
    lines = [(number, line) for number, line in enumerate(path.read_bytes().splitlines(), start=1) if line.strip()]
    remedy = "the file is damaged: delete that line, or restore the file"
    rows: list[Mapping[str, Any]] = []
    for number, line in lines:
        try:
            row = _parsed(line.decode("utf-8"))
        except ValueError as cause:
            if torn_end and number == lines[-1][0]:
                break
            raise CheckpointError(f"{path}, line {number} is not JSON ({cause}); {remedy}") from cause
        if not isinstance(row, dict):
            raise CheckpointError(f"{path}, line {number}: expected a JSON object, got {type(row).__name__}; {remedy}")
        rows.append(row)
    return tuple(rows)


def _parsed(text: str) -> Any:
    return json.loads(text, parse_constant=lambda _: None)
