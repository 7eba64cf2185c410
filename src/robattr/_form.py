"""What files contain: JSON and TOML from anywhere, read without surprises and checked against a form.

A form is a type (int, float, str, bool, dict, list), None, [form] for a list, {str: form} for an object,
{"key": form, "key?": form} for an object with at least these keys (those with ? may be missing), or several forms in a
tuple, one of which must fit. Numbers are finite, integers below 2⁶³.
"""

from __future__ import annotations

import json
import tomllib
from functools import cache
from reprlib import repr as short
from typing import Any

LARGEST = 2.0**1000
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
    try:
        return _DECODER.decode(text if isinstance(text, str) else text.decode(json.detect_encoding(text)))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parse_toml(text: str) -> dict[str, Any]:
    """The keys and values of a TOML text. Raises ValueError alone."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def check_form(value: Any, form: Any) -> None:
    """Raise a ValueError that says where `value` does not have the form, what was expected and what is there."""
    if odd := _odd(value, form):
        at, reason = odd
        raise ValueError(f"{at.removeprefix('.') or 'it'}{reason}")


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
