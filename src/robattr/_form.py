"""What files contain: JSON and TOML from anywhere, read without surprises and checked against a form.

A form is a type (int, float, str, bool, dict, list), None, [form] for a list, {str: form} for an object,
{"key": form, "key?": form} for an object with at least these keys (those with ? may be missing), or several forms in a
tuple, one of which must fit. Numbers are finite, integers below 2⁶³.
"""

from __future__ import annotations

import json
import tomllib
from math import isfinite
from reprlib import repr as short
from typing import Any

WORDS = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    dict: "an object",
    list: "a list",
}


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text; NaN and infinities, which JSON lacks, become None. Raises ValueError alone."""
    try:
        return json.loads(text, parse_constant=lambda _: None)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parse_toml(text: str) -> dict[str, Any]:
    """The keys and values of a TOML text. Raises ValueError alone."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def check_form(value: Any, form: Any, at: str = "") -> None:
    """Raise a ValueError that says where `value` does not have the form, what was expected and what is there."""
    if isinstance(form, tuple):
        if not any(_fits(value, one) for one in form):
            raise _unlike(value, form, at)
    elif isinstance(form, list):
        _check_type(value, list, at)
        for number, item in enumerate(value):
            check_form(item, form[0], f"{at}[{number}]")
    elif isinstance(form, dict):
        _check_type(value, dict, at)
        for key, inner in form.items():
            for name in value if key is str else [key.removesuffix("?")]:
                place = f"{at}.{name}" if at else str(name)
                if name in value:
                    check_form(value[name], inner, place)
                elif not key.endswith("?"):
                    raise ValueError(f"{place} is missing")
    else:
        _check_type(value, form, at)


def _fits(value: Any, form: Any) -> bool:
    try:
        check_form(value, form)
    except ValueError:
        return False
    return True


def _check_type(value: Any, kind: Any, at: str) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2.0**1000
    if kind is float:
        fits = number and isfinite(value)
    elif kind is int:
        fits = number and isinstance(value, int) and abs(value) < 2**63
    else:
        fits = value is None if kind is None else isinstance(value, kind)
    if not fits:
        raise _unlike(value, kind, at)


def _unlike(value: Any, form: Any, at: str) -> ValueError:
    kinds = form if isinstance(form, tuple) else (form,)
    expected = " or ".join(
        dict.fromkeys("nothing" if k is None else WORDS.get(k, "an object") for k in map(_outer, kinds))
    )
    return ValueError(f"{at or 'it'}: expected {expected}, got {short(value)}")


def _outer(form: Any) -> Any:
    return type(form) if isinstance(form, list | dict) else form
