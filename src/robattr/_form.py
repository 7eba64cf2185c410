"""Read JSON and TOML of unknown origin, and check their values against a form.

A form is a type (int, float, str, bool, dict, list), None, [form] for a list, {str: form} for an object,
{"key": form, "key?": form} for an object with at least these keys (those with ? may be missing; str is for all others),
or a tuple of forms, of which the value must have one. Numbers are finite, integers below 2⁶³.
"""

from __future__ import annotations

import gc
import json
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import cache
from reprlib import repr as short
from types import NoneType, UnionType
from typing import Any, get_args, get_type_hints

from robattr.errors import InvalidInput, brief

LARGEST = 2.0**1000
DEEPEST = 100  # dots in a key of TOML, whose reader takes half a minute for 30,000
WORDS = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    dict: "an object",
    list: "a list",
}


_DECODER = json.JSONDecoder(parse_constant=lambda _: None)  # made once: `json.loads` makes one for each call


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text; NaN and infinities, which JSON lacks, become None. Raises ValueError alone."""
    text = text if isinstance(text, str) else text.decode(json.detect_encoding(text))
    try:
        value = _DECODER.decode(text)
        if "\\ud" in text or "\\uD" in text:
            json.dumps(value, ensure_ascii=False).encode()  # half a character cannot be written
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return value


def parse_json_lines(lines: Sequence[bytes]) -> list[Any] | None:
    """The values of many lines of JSON, faster than one by one; None if a line is not a value."""
    try:
        values = parse_json(b"[" + b",".join(lines) + b"]")
    except ValueError:
        return None
    return values if len(values) == len(lines) else None


def parse_toml(text: str) -> dict[str, Any]:
    """The keys and values of a TOML text. Raises ValueError alone."""
    if any(line.partition("=")[0].count(".") > DEEPEST for line in text.splitlines() if not line.startswith("#")):
        raise ValueError("it is nested too deeply")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


@contextmanager
def uncollected() -> Iterator[None]:
    """Suspend Python's garbage collector, which takes a third of the time if many values are parsed and kept."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


Fault = tuple[str, str]
Check = Callable[[Any], Fault | None]
"""The first place in a value that does not have a form, and what is wrong there; None if the value has the form."""


def check_form(value: Any, form: Any) -> None:
    """Raise a ValueError that says where `value` does not have the form, what was expected and what is there."""
    if fault := checker(form)(value):
        place, reason = fault
        raise ValueError(f"{place.removeprefix('.') or 'it'}{reason}")


def all_fit(form: Any) -> Callable[[Sequence[Any]], bool]:
    """A function that says whether all values of a list have the form."""
    check = checker(form)
    return lambda values: not any(map(check, values))


def checker(form: Any) -> Check:
    """The check of a form, built once for many values."""
    if isinstance(form, list):
        return _list_checker(form[0])
    if isinstance(form, dict):
        return _object_checker(form)
    kinds = form if isinstance(form, tuple) else (form,)
    numbers = (int, float) if float in kinds else (int,) if int in kinds else ()
    most = LARGEST if float in kinds else 2**63
    plain = tuple(NoneType if kind is None else kind for kind in kinds if kind in (None, bool, str, dict, list))
    nested = [checker(kind) for kind in kinds if isinstance(kind, list | dict)]

    def check(value: Any) -> Fault | None:
        if type(value) in numbers:  # a bool is not a number
            fits = -most < value < most  # false for NaN
        else:
            fits = isinstance(value, plain) or any(one(value) is None for one in nested)
        return None if fits else ("", _expected(kinds, value))

    return check


def _list_checker(form: Any) -> Check:
    check_item = checker(form)

    def check(value: Any) -> Fault | None:
        if not isinstance(value, list):
            return "", _expected((list,), value)
        for number, item in enumerate(value):
            if fault := check_item(item):
                return f"[{number}]{fault[0]}", fault[1]
        return None

    return check


def _object_checker(form: dict[Any, Any]) -> Check:
    named = [(key.removesuffix("?"), key.endswith("?"), checker(of)) for key, of in form.items() if key is not str]
    check_other = checker(form[str]) if str in form else None
    known = {name for name, *_ in named}

    def check(value: Any) -> Fault | None:
        if not isinstance(value, dict):
            return "", _expected((dict,), value)
        for name, optional, check_one in named:
            if name in value:
                if fault := check_one(value[name]):
                    return f".{name}{fault[0]}", fault[1]
            elif not optional:
                return f".{name}", " is missing"
        if check_other is not None:
            for name, item in value.items():
                if name not in known and (fault := check_other(item)):
                    return f".{name}{fault[0]}", fault[1]
        return None

    return check


def _expected(kinds: tuple[Any, ...], value: Any) -> str:
    outer = [type(kind) if isinstance(kind, list | dict) else kind for kind in kinds]
    expected = " or ".join(dict.fromkeys("nothing" if kind is None else WORDS[kind] for kind in outer))
    return f": expected {expected}, got {short(value)}"


def check_fields(value: Any) -> None:
    """Refuse a dataclass whose fields of numbers, text or flags have values of another type.

    Scalars of NumPy and torch become those of Python, which JSON and random generators take.
    """
    kind: type = type(value)
    for name, kinds in _plain_fields(kind).items():
        found = getattr(value, name)
        if getattr(found, "ndim", None) == 0:
            found = found.item()
            object.__setattr__(value, name, found)
        allowed = (*kinds, int) if float in kinds else kinds
        if not isinstance(found, allowed) or (isinstance(found, bool) and bool not in kinds):
            expected = " or ".join("None" if kind is NoneType else WORDS[kind] for kind in kinds)
            raise InvalidInput(f"expected {name} to be {expected}, got {brief(found)}")


@cache
def _plain_fields(kind: type) -> dict[str, tuple[type, ...]]:
    """The types that each field may have, of the fields with plain types alone."""
    hints = get_type_hints(kind)
    each = {f.name: get_args(hint) if isinstance(hint := hints[f.name], UnionType) else (hint,) for f in fields(kind)}
    return {name: kinds for name, kinds in each.items() if all(one in (*WORDS, NoneType) for one in kinds)}
