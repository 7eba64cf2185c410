"""What files contain: JSON and TOML from anywhere, read without surprises and checked against a form.

A form is a type (int, float, str, bool, dict, list), None, [form] for a list, {str: form} for an object,
{"key": form, "key?": form} for an object with at least these keys (those with ? may be missing), or several forms in a
tuple, one of which must fit. Numbers are finite, integers below 2⁶³.
"""

from __future__ import annotations

import gc
import json
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
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


def fits(form: Any) -> Callable[[Any], bool]:
    """A function that says whether a value has the form: ten times as fast as `check_form`, for files of many lines."""
    if isinstance(form, tuple):
        first, *others = map(fits, form)
        return lambda value: first(value) or any(fit(value) for fit in others)
    if isinstance(form, list):
        inner = fits(form[0])
        return lambda value: isinstance(value, list) and all(map(inner, value))
    if isinstance(form, dict) and str in form:
        inner = fits(form[str])
        return lambda value: isinstance(value, dict) and all(map(inner, value.values()))
    if isinstance(form, dict):
        return _fits_object(form)
    if form is float:
        return lambda value: type(value) in (int, float) and -LARGEST < value < LARGEST
    return lambda value: _is(value, form)


def _fits_object(form: dict[str, Any]) -> Callable[[Any], bool]:
    """The same for an object with some keys: most values are of a type that needs no further look, or floats."""
    required = {key for key in form if not key.endswith("?")}
    kinds = {_name(key): inner if isinstance(inner, tuple) else (inner,) for key, inner in form.items()}
    enough = {
        name: {type(None) if kind is None else kind for kind in of if kind in (None, bool, str, dict, list)}
        for name, of in ((name, [k for k in of if not isinstance(k, dict | list)]) for name, of in kinds.items())
    }
    numbers = {name for name, of in kinds.items() if float in of}
    inner = {name: fits(of) for name, of in kinds.items()}

    def fit(value: Any) -> bool:
        if not isinstance(value, dict) or not required <= value.keys():
            return False
        for name, item in value.items():
            kind = type(item)
            if kind is float and name in numbers:
                if not -LARGEST < item < LARGEST:
                    return False
            elif name in inner and kind not in enough[name] and not inner[name](item):
                return False
        return True

    return fit


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
