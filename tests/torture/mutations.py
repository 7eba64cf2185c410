"""Files that are almost right: Hypothesis strategies that damage the content of a real file."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
from hypothesis import strategies as st

OSC = "\x1b]0;owned\x07\x1b[31m"  # sets the title of a terminal, and its colour
ODD = st.one_of(
    st.sampled_from([
        None, True, False, 0, -1, 1, 10**18, 10**400, -(10**30), 1.5, -1e308, 5e-324, float("nan"), float("inf"),
        "", "nan", "../../etc/passwd", "a\x00b", OSC, "\ud800", "<script>", "[red]", "os:system", [], {}, [[[]]],
        [None] * 3, {"": None},
    ]),
    st.integers(), st.floats(), st.text(max_size=8),
)  # fmt: skip


@st.composite
def bytes_of(draw: Any, content: bytes) -> bytes:
    """The content cut, with bytes changed, inserted or repeated, or other content altogether."""
    how = draw(st.sampled_from(["cut", "flip", "insert", "twice", "other"]))
    at = draw(st.integers(0, max(0, len(content) - 1)))
    if how == "cut":
        return content[:at]
    if how == "flip":
        return content[:at] + bytes([draw(st.integers(0, 255))]) + content[at + 1 :]
    if how == "insert":
        return content[:at] + draw(st.binary(min_size=1, max_size=8)) + content[at:]
    if how == "twice":
        return content + content[at:]
    return draw(st.sampled_from([b"", b"\x00" * 64, b"[" * 50_000, b"\xff\xfe", b'{"a":' * 5000, b"null", b"[]\n"]))


@st.composite
def json_of(draw: Any, content: bytes) -> bytes:
    """A JSON text, or lines of such, with one value replaced, removed or added somewhere."""
    lines = content.decode().splitlines() if b"\n{" in content else [content.decode()]
    number = draw(st.integers(0, len(lines) - 1))
    value = _replaced(draw, json.loads(lines[number]))
    try:
        lines[number] = json.dumps(value)
    except ValueError:  # too many digits
        lines[number] = "9" * 5000
    return ("\n".join(lines) + "\n").encode("utf-8", "replace")


def _replaced(draw: Any, value: Any) -> Any:
    inside = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    if not inside or draw(st.integers(0, 5)) == 0:
        return draw(ODD)
    key = draw(st.sampled_from(inside))
    if draw(st.integers(0, 7)) == 0:
        if isinstance(value, dict):
            return (
                {k: v for k, v in value.items() if k != key} if draw(st.booleans()) else {**value, draw(st.text()): 1}
            )
        return value[:key]
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[key] = _replaced(draw, value[key])
    return copy


@st.composite
def npz_of(draw: Any, content: bytes) -> bytes:
    """An .npz with one array of another shape, type or value."""
    with np.load(io.BytesIO(content)) as stored:
        arrays = dict(stored)
    key = draw(st.sampled_from(sorted(arrays)))
    array = arrays[key]
    how = draw(st.sampled_from(["drop", "cut", "flat", "type", "empty", "nan", "scalar"]))
    if how == "drop":
        del arrays[key]
    else:
        arrays[key] = {
            "cut": array[:-1], "flat": array.reshape(-1),
            "type": array.astype(draw(st.sampled_from(["f8", "i1", "U3"]))),
            "empty": array[:0], "scalar": np.array(3), "nan": np.full(array.shape, np.nan, dtype=np.float16),
        }[how]  # fmt: skip
    made = io.BytesIO()
    np.savez(made, **arrays)
    return made.getvalue()


@st.composite
def toml_of(draw: Any, content: bytes) -> bytes:
    """A TOML text with one value replaced."""
    lines = [line for line in content.decode().splitlines() if "=" in line]
    number = draw(st.integers(0, len(lines) - 1))
    key = lines[number].partition("=")[0]
    value = draw(st.one_of(
        st.sampled_from(["nan", "inf", "-1", "1e308", "9" * 30, "''", "[]", "{}", "[" * 3000, '"a\\u0000"',
                         "1979-05-27", "true", '"os:system"', '"\\u001b]0;x\\u0007"']),
        st.integers().map(str), st.floats().map(str),
    ))  # fmt: skip
    lines[number] = f"{key}= {value}"
    return "\n".join(lines).encode()


def of(name: str, content: bytes) -> Any:
    """The strategy for a file of that name."""
    damaged = bytes_of(content)
    if name.endswith((".json", ".jsonl", ".settings")):
        return st.one_of(json_of(content), damaged)
    if name.endswith(".npz"):
        return st.one_of(npz_of(content), damaged)
    if name.endswith(".toml"):
        return st.one_of(toml_of(content), damaged)
    return damaged
