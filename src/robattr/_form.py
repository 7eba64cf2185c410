"""What files contain: JSON and TOML from anywhere, read without surprises and checked against a form.

A form is a type (int, float, str, bool, dict, list), None, [form] for a list, {str: form} for an object,
{"key": form, "key?": form} for an object with at least these keys (those with ? may be missing), or several forms in a
tuple, one of which must fit. Numbers are finite, integers below 2⁶³.
"""

from __future__ import annotations

import gc
import json
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import chain
from operator import itemgetter
from reprlib import repr as short
from typing import Any

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
    """Without Python's search for cycles, which takes a third of the time where many values are parsed and kept."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def check_form(value: Any, form: Any) -> None:
    """Raise a ValueError that says where `value` does not have the form, what was expected and what is there."""
    if odd := _odd(value, form):
        at, reason = odd
        raise ValueError(f"{at.removeprefix('.') or 'it'}{reason}")


Fit = Callable[[Sequence[Any]], bool]


class _Absent:
    """The type of ABSENT, the value of a key that an object lacks."""


ABSENT = _Absent()


def fits(form: Any) -> Callable[[Any], bool]:
    """A function that says whether a value has the form, faster than `check_form`."""
    fit = all_fit(form)
    return lambda value: fit([value])


def all_fit(form: Any, *, optional: bool = False) -> Fit:
    """A function that says whether all values of a list have the form: 20 times as fast as `check_form` of each.

    It looks at the types of all, then at all values of one type together; at objects by columns.
    """
    kinds = form if isinstance(form, tuple) else (form,)
    plain = {type(None) if kind is None else kind for kind in kinds if kind in (None, bool, str, dict, list)}
    plain |= {_Absent} if optional else set()
    further: dict[type, list[Fit]] = {int: [], float: [], list: [], dict: []}
    if float in kinds or int in kinds:
        below = (LARGEST if float in kinds else 2**63).__gt__
        for kind in (int, float) if float in kinds else (int,):
            further[kind].append(lambda some: all(map(below, map(abs, some))))
    for kind in kinds:
        if isinstance(kind, list):
            further[list].append(_all_lists_fit(all_fit(kind[0])))
        elif isinstance(kind, dict):
            further[dict].append(_all_objects_fit(kind))

    def fit(values: Sequence[Any]) -> bool:
        types = set(map(type, values))
        for kind in types - plain:
            some = values if len(types) == 1 else [value for value in values if type(value) is kind]
            checks = further.get(kind, [])
            if not (checks[0](some) if len(checks) == 1 else all(any(c([v]) for c in checks) for v in some)):
                return False
        return True

    return fit


def _all_lists_fit(inner: Fit) -> Fit:
    return lambda lists: inner(list(chain.from_iterable(lists)))


def _all_objects_fit(form: dict[Any, Any]) -> Fit:
    every = all_fit(form[str]) if str in form else None
    each = {_name(key): all_fit(of, optional=key.endswith("?")) for key, of in form.items() if key is not str}

    def fit(objects: Sequence[Any]) -> bool:
        if every is not None and not every([value for one in objects for value in one.values()]):
            return False
        columns = by_columns(objects, [*each], ABSENT)
        return all(fit(column) for fit, column in zip(each.values(), columns, strict=True))

    return fit


def by_columns(rows: Sequence[Mapping[str, Any]], keys: Sequence[str], missing: Any = None) -> list[tuple[Any, ...]]:
    """The values of each key in all rows. One pass over the rows: three times as fast as a pass for each key."""
    nothing = dict.fromkeys([*keys, ""], missing)
    row = itemgetter(*keys, "", "")  # two more: of a single key it would not give a tuple
    found = list(zip(*[row({**nothing, **value}) for value in rows], strict=True))
    return found[: len(keys)] if rows else [()] * len(keys)


def _odd(value: Any, form: Any) -> tuple[str, str] | None:
    """The first place that does not have the form, and why; None where all do."""
    if isinstance(form, tuple):
        return None if any(_odd(value, one) is None for one in form) else ("", _unlike(value, form))
    if not _is(value, _outer(form)):
        return "", _unlike(value, (form,))
    if isinstance(form, list):
        for number, item in enumerate(value):
            if odd := _odd(item, form[0]):
                return f"[{number}]{odd[0]}", odd[1]
    elif isinstance(form, dict):
        for key, inner in form.items():
            for name in value if key is str else (_name(key),):
                if name in value:
                    if odd := _odd(value[name], inner):
                        return f".{name}{odd[0]}", odd[1]
                elif not key.endswith("?"):
                    return f".{name}", " is missing"
    return None


@cache
def _name(key: str) -> str:
    return key.removesuffix("?")


def _is(value: Any, kind: Any) -> bool:
    if kind is float:
        return type(value) in (int, float) and -LARGEST < value < LARGEST  # false for NaN
    if kind is int:
        return type(value) is int and -(2**63) < value < 2**63
    return value is None if kind is None else isinstance(value, kind)


def _unlike(value: Any, kinds: tuple[Any, ...]) -> str:
    expected = " or ".join(
        dict.fromkeys("nothing" if k is None else WORDS.get(k, "an object") for k in map(_outer, kinds))
    )
    return f": expected {expected}, got {short(value)}"


def _outer(form: Any) -> Any:
    return type(form) if isinstance(form, list | dict) else form
