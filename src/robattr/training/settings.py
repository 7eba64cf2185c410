"""Settings from `key=value` words, TOML and JSON files, type-checked against the fields of `TrainConfig`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import isfinite
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

from robattr._form import parse_json, parse_toml
from robattr._text import LARGEST, number, too_large
from robattr.errors import InvalidInput, nearest
from robattr.models.architecture import RENAMED
from robattr.training.config import CHOICES, KINDS, USES_WARMUP, TrainConfig, check_choice

SCHEDULES = {"warmup": USES_WARMUP, "rates": ("piecewise",), "boundaries": ("piecewise",)}
"""Keys that only some schedules use. Files may contain them anyway: `config.json` has every key."""
OBJECTIVE = ("method", "custom", "custom_source")
_KEYS = list(KINDS)
FORMULA = _KEYS[_KEYS.index("weight") : _KEYS.index("optimizer")]
"""Keys of ρ, which the methods build their objectives with."""


def change(run: TrainConfig, settings: Mapping[str, Any]) -> TrainConfig:
    """`run` with `settings` as read from TOML or JSON; rejects unknown keys and wrong types."""
    typed = {key: _typed(key, _kind(key), value) for key, value in settings.items()}
    if run.own is not None:  # a file does not replace the objective that the user gave
        typed = {key: value for key, value in typed.items() if key not in OBJECTIVE}
    changed = replace(run, **typed)
    changed = replace(changed, model=RENAMED.get(changed.model, changed.model))
    if "lr" in settings and "rates" not in settings and changed.schedule == "piecewise":
        raise InvalidInput("lr has no effect on a piecewise schedule: set rates=…, or schedule=constant with lr")
    return changed


def change_by_words(run: TrainConfig, words: Iterable[str]) -> TrainConfig:
    """`run` with settings from the command line: `weight=0.1`, `eps=8/255`, `rates=1e-3,1e-2`."""
    settings = dict(parse_word(word) for word in words)
    if "recipe" in settings:
        raise InvalidInput(
            f"cannot set recipe: write robattr train {settings['recipe']}, or name the recipe in the --config file"
        )
    if given := next((key for key in OBJECTIVE if key in settings and (run.own or key != "method")), None):
        raise InvalidInput(f"cannot set {given}: give an objective of your own by --objective package.module:function")
    check_reached(run, settings)
    changed = change(run, settings)
    for key, using in SCHEDULES.items():
        if settings.get(key) and changed.schedule not in using:
            raise InvalidInput(
                f"{key} has no effect with schedule={changed.schedule}: set schedule={using[0]}, or omit {key}"
            )
    for key in ("weight", "weight_ramp"):
        scales_own = key == "weight_ramp" and changed.own is not None  # a ramp scales the λ of any objective
        if settings.get(key) and not (scales_own or changed.uses("weight")):
            raise InvalidInput(f"{key} has no effect with method={changed.method}: set method=ig-norm, or omit {key}")
    return changed


def check_reached(run: TrainConfig, keys: Iterable[str]) -> None:
    """Reject keys that have no effect on the custom objective of `run`."""
    if run.own is None or run.own.follows_config:
        return
    if idle := sorted({*keys} & {*FORMULA}):
        raise InvalidInput(
            f"{', '.join(idle)} would have no effect on an objective of your own: build it with them, or name a "
            "function of `config`, which has them, or a method"
        )


def parse_word(word: str) -> tuple[str, Any]:
    """`"eps=8/255"` -> `("eps", 0.0313…)`, with the type of that field."""
    key, equals, text = word.partition("=")
    key = key.strip().replace("-", "_")
    if not equals:
        remedy = f"write {key}=VALUE" if key in KINDS else nearest(key, KINDS)
        raise InvalidInput(f"expected key=value, got {word!r}; {remedy}")
    return key, _typed(key, _kind(key), _read(_kind(key), text.strip()))


def read_file(path: Path) -> dict[str, Any]:
    """The settings of a TOML file, or of the `config.json` of an earlier run."""
    try:
        text = path.read_text(encoding="utf-8")
        settings = parse_json(text) if path.suffix == ".json" else parse_toml(text)
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, JSON or TOML
        why = getattr(error, "strerror", None) or error
        raise InvalidInput(f"expected a TOML file, or the config.json of a run, got {path} ({why})") from error
    if not isinstance(settings, dict):
        raise InvalidInput(f"expected keys and values in {path}, got {type(settings).__name__}")
    return settings


def to_toml(run: TrainConfig) -> str:
    """`run` as TOML for `--config`; keys that are None are left out."""
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in run.as_dict().items() if value is not None)


def _kind(key: str) -> Any:
    if key not in KINDS:
        raise InvalidInput(f"unknown key {key!r}; {nearest(key, KINDS)}")
    return KINDS[key]


def _read(kind: Any, text: str) -> Any:
    """`text` as a Python value of type `kind`; unchanged if it is not one."""
    if get_origin(kind) is UnionType:
        return None if text.lower() == "none" else _read(_without_none(kind), text)
    if get_origin(kind) is tuple:
        inside = text.strip("[]() ")
        words = [] if inside.lower() in ("", "none") else inside.split(",")
        return [_read(get_args(kind)[0], word.strip()) for word in words]
    if kind is bool:
        return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}.get(text.lower(), text)
    if kind in (int, float):
        if kind is int and text.removeprefix("-").isdecimal() and len(text) < 100:
            return int(text)  # exactly
        try:  # also reads 8/255, 1_000 and 1e5
            value = number(text)
        except InvalidInput:
            return text
        return int(value) if kind is int and value.is_integer() else value
    return text


def _typed(key: str, kind: Any, value: Any) -> Any:
    """`value` as type `kind`; raises an error that says what `key` expects."""
    if get_origin(kind) is UnionType:
        return None if value is None else _typed(key, _without_none(kind), value)
    if get_origin(kind) is tuple and isinstance(value, list | tuple):
        return tuple(_typed(key, get_args(kind)[0], item) for item in value)
    if key in CHOICES:
        check_choice(key, value)
        return value
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind is float and number and isfinite(value):
        return float(value)
    if kind in (int, bool, str) and type(value) is kind:
        return value
    most = f" of at most {LARGEST:g}" if kind in (int, float) and isinstance(value, str) and too_large(value) else ""
    raise InvalidInput(f"{key} must be {_words(kind)}{most}, got {value!r}")


def _without_none(kind: Any) -> Any:
    return next(part for part in get_args(kind) if part is not NoneType)


def _words(kind: Any) -> str:
    if get_origin(kind) is tuple:
        return f"a list, each {_words(get_args(kind)[0])}"
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[kind]
