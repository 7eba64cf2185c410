"""The axes of a sweep: the values or the range of each setting, and the points that they span."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, get_origin

from robattr.errors import InvalidInput
from robattr.training import settings
from robattr.training.config import BOOKKEEPING, KINDS, TrainConfig

Point = Mapping[str, Any]


@dataclass(frozen=True)
class Span:
    """A range to search on a logarithmic scale, `0.001..1`; of integers, if the key is one: `10..100`."""

    low: float
    high: float
    whole: bool = False

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


Axis: TypeAlias = Sequence[Any] | Span


def parse_axis(word: str) -> tuple[str, Axis]:
    """`"m=10,20,50"` -> `("m", [10, 20, 50])`; `"weight=0.01..1"` -> `("weight", Span(0.01, 1))`."""
    key, _, text = word.partition("=")
    if not text:
        raise InvalidInput(f"--over expects key=value,value,… or key=low..high, got {word!r}")
    first, *rest = [settings.parse_word(f"{key}={part}") for part in text.replace("..", ",").split(",")]
    key = first[0]
    if get_origin(KINDS[key]) is tuple:
        raise InvalidInput(f"cannot sweep {key}, a list: start one run per value, with --set and --out")
    if key == "full":
        raise InvalidInput("cannot sweep full: it trains on the validation split, on which a sweep compares")
    if key in BOOKKEEPING:
        raise InvalidInput(f"cannot sweep {key}: it has no effect on what is trained")
    values = [first[1], *(value for _, value in rest)]
    if ".." not in text:
        return key, list(dict.fromkeys(values))
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    if len(values) != 2 or not numbers or not 0 < values[0] < values[1]:
        raise InvalidInput(f"expected a range low..high of numbers with 0 < low < high, got {word!r}")
    return key, Span(float(values[0]), float(values[1]), whole=isinstance(values[0], int))


def parse_axes(words: Iterable[str]) -> dict[str, Axis]:
    """The axes of several words, each with another key."""
    axes: dict[str, Axis] = {}
    for word in words:
        key, axis = parse_axis(word)
        if key in axes:
            raise InvalidInput(f"--over {key} is given twice: give all values in one, --over {key}=V,V,…, or one range")
        axes[key] = axis
    return axes


def grid(over: Mapping[str, Axis]) -> list[dict[str, Any]]:
    """Every point of the grid."""
    axes = [axis for axis in over.values() if not isinstance(axis, Span)]
    if len(axes) < len(over):
        raise InvalidInput("a range low..high needs the number of points to try: --trials N")
    return [dict(zip(over, values, strict=True)) for values in itertools.product(*axes)]


def check_grid(run: TrainConfig, over: Mapping[str, Axis]) -> None:
    """Check every point of a grid, before any of them is trained."""
    known = set[str]()
    for point in grid(over):
        try:
            changed = settings.change(run, point)
        except InvalidInput as error:
            raise InvalidInput(f"at {name_of(point)}: {error}") from error
        numbers = (key for key, value in point.items() if key in settings.FORMULA and type(value) in (int, float))
        if idle := next((key for key in numbers if not changed.uses(key)), None):
            raise InvalidInput(f"cannot sweep {idle}: it has no effect on the objective of method={changed.method}")
        if name_of(point) in known:
            raise InvalidInput(f"expected different points, got two at {name_of(point)}: leave one of them out")
        known.add(name_of(point))


def name_of(point: Point) -> str:
    """The directory of a point: `weight=0.1,m=10`."""
    return ",".join(
        f"{key}={value:.6g}" if isinstance(value, float) else f"{key}={value}" for key, value in point.items()
    )
