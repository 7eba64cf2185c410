"""Settings from outside: `key=value` words, TOML and JSON files, checked against the fields of `TrainConfig`."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import isfinite
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

from robattr._text import number
from robattr.errors import InvalidInput, nearest
from robattr.training.config import CHOICES, KINDS, WARMED, WEIGHTED, TrainConfig, check_choice

HEEDED_BY = {
    "weight": ("method", WEIGHTED), "weight_ramp": ("method", WEIGHTED), "warmup": ("schedule", WARMED),
    "rates": ("schedule", ("piecewise",)), "boundaries": ("schedule", ("piecewise",)),
}  # fmt: skip
"""Keys that only some methods or schedules heed. A file may hold them all the same: it says every key."""


def change(run: TrainConfig, settings: Mapping[str, Any]) -> TrainConfig:
    """`run` with typed `settings` (as TOML or JSON give them); an unknown key or a wrong type is refused."""
    changed = replace(run, **{key: _typed(key, _kind(key), value) for key, value in settings.items()})
    if "lr" in settings and "rates" not in settings and changed.schedule == "piecewise":
        raise InvalidInput("lr has no effect on a piecewise schedule: set rates=…, or schedule=constant with lr")
    return changed


def change_by_words(run: TrainConfig, words: Iterable[str]) -> TrainConfig:
    """`run` with the settings of command-line words such as `weight=0.1`, `eps=8/255`, `rates=1e-3,1e-2`."""
    settings = dict(parse_word(word) for word in words)
    if "recipe" in settings:
        raise InvalidInput(
            f"recipe is not a key to set: name it in its place, robattr train {settings['recipe']}, or in --config"
        )
    changed = change(run, settings)
    for key, (field, heeding) in HEEDED_BY.items():
        if settings.get(key) and (chosen := getattr(changed, field)) not in heeding:
            raise InvalidInput(
                f"{key} has no effect where {field} is {chosen}: set {field}={heeding[0]} too, or leave {key} out"
            )
    return changed


def parse_word(word: str) -> tuple[str, Any]:
    """`"eps=8/255"` -> `("eps", 0.0313…)`, typed as the field of that name is."""
    key, equals, text = word.partition("=")
    key = key.strip().replace("-", "_")
    if not equals:
        raise InvalidInput(f"expected key=value, got {word!r}; {nearest(key, KINDS)}")
    return key, parse(key, text.strip())


def parse(key: str, text: str) -> Any:
    """The value that `text` means for the field `key`."""
    return _typed(key, _kind(key), _read(_kind(key), text))


def read_file(path: Path) -> dict[str, Any]:
    """The settings of a TOML file, or of the `config.json` of an earlier run."""
    try:
        text = path.read_text(encoding="utf-8")
        settings = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except FileNotFoundError:
        raise InvalidInput(f"there is no configuration file {path}") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidInput(f"cannot read the configuration {path}: {error}") from error
    if not isinstance(settings, dict):
        raise InvalidInput(f"{path} must hold keys and values, got a {type(settings).__name__}")
    return settings


def to_toml(run: TrainConfig) -> str:
    """`run` as a TOML file that `--config` reads back; keys that are None are left out."""
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in run.as_dict().items() if value is not None)


def _kind(key: str) -> Any:
    if key not in KINDS:
        raise InvalidInput(f"unknown key {key!r}; {nearest(key, KINDS)}")
    return KINDS[key]


def _read(kind: Any, text: str) -> Any:
    """`text` as the Python value it most plainly means for `kind`; left as text where it means none."""
    if get_origin(kind) is UnionType:
        return None if text.lower() == "none" else _read(_without_none(kind), text)
    if get_origin(kind) is tuple:
        inside = text.strip("[]() ")
        words = [] if inside.lower() in ("", "none") else inside.split(",")
        return [_read(get_args(kind)[0], word.strip()) for word in words]
    if kind is bool:
        return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}.get(text.lower(), text)
    if kind in (int, float):
        try:  # also reads 8/255, 1_000 and 1e5
            value = number(text)
        except InvalidInput:
            return text
        return int(value) if kind is int and value.is_integer() else value
    return text


def _typed(key: str, kind: Any, value: Any) -> Any:
    """`value` as `kind`, or a refusal that says what `key` expects."""
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
    raise InvalidInput(f"{key} must be {_words(kind)}, got {value!r}")


def _without_none(kind: Any) -> Any:
    return next(part for part in get_args(kind) if part is not NoneType)


def _words(kind: Any) -> str:
    if get_origin(kind) is tuple:
        return f"a list, each {_words(get_args(kind)[0])}"
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[kind]
