"""Words from outside: numbers as people type them (8/255), which are read, never evaluated, and foreign names."""

from __future__ import annotations

from math import prod

from robattr.errors import InvalidInput

LARGEST = 3.4e38  # float32 overflows beyond it


def number(text: str, option: str = "") -> float:
    """`"8/255"` -> 0.0313…; errors begin with the `option` that the text was given to."""
    value = _value(text)
    if value != value:
        raise InvalidInput(f"{_of(option)}expected a number such as 0.03 or 8/255, got {text!r}")
    if too_large(text):
        raise InvalidInput(f"{_of(option)}expected a number of at most {LARGEST:g}, got {text!r}")
    return value


def _of(option: str) -> str:
    return f"{option}: " if option else ""


def too_large(text: str) -> bool:
    """Whether the text is a number beyond LARGEST."""
    return abs(_value(text)) > LARGEST


def _value(text: str) -> float:
    """The number in a text, NaN where there is none."""
    above, slash, below = text.partition("/")
    try:  # not by way of Fraction, which would write out all the digits of 1e999999999
        return float(above) / float(below) if slash else float(above)
    except (ValueError, ArithmeticError):
        return float("nan")


def numbers(text: str, option: str = "") -> tuple[float, ...]:
    """`"0.485,0.456,0.406"` -> three numbers."""
    return tuple(number(part, option) for part in text.split(","))


def words(text: str) -> list[str]:
    """`"ig, sg"` -> ["ig", "sg"]; empty words are left out."""
    return [word.strip() for word in text.split(",") if word.strip()]


def whole_numbers(text: str, option: str = "") -> list[int]:
    """`"3,224,224"` -> [3, 224, 224], the sides of a shape."""
    sides = [part.strip() for part in text.split(",")]
    small = all(side.isdecimal() and len(side) < 10 and int(side) for side in sides)
    if not small or prod(map(int, sides)) > 10**9:
        raise InvalidInput(f"{_of(option)}expected a shape of whole numbers such as 3,224,224, got {text!r}")
    return [int(side) for side in sides]


def interval(text: str, option: str = "") -> tuple[float, float]:
    """`"0,1"` -> (0.0, 1.0), the lower end first."""
    ends = numbers(text, option)
    if len(ends) != 2 or not ends[0] < ends[1]:
        raise InvalidInput(f"{_of(option)}expected two rising numbers such as 0,1 or 0,255, got {text!r}")
    return ends[0], ends[1]


def printable(name: str) -> str:
    """A foreign name with control characters, which a terminal would obey, and torn bytes written out."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in name)


def duration(seconds: float) -> str:
    """`350 ms`, `40 s`, `12 min`, `3.5 h`, `12 days`."""
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            amount = seconds / size
            return f"{amount:.0f} {unit}" if amount >= 10 else f"{amount:.1f} {unit}"
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"
