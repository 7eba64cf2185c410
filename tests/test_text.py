"""Numbers and ranges of the command line: parsed, never evaluated."""

from __future__ import annotations

import pytest

from robattr._text import duration, interval, number, numbers, printable, words
from robattr.errors import InvalidInput


@pytest.mark.parametrize(
    ("text", "value"), [("8/255", 8 / 255), (" 0.03 ", 0.03), ("1e-2", 0.01), ("-1", -1.0), ("2", 2.0)]
)
def test_numbers_are_read(text: str, value: float) -> None:
    assert number(text) == value


@pytest.mark.parametrize(
    "text", ["", "8/0", "nan", "inf", "__import__('os')", "1+1", "8//255", "2**9", "1e999999999999"]
)
def test_numbers_are_never_evaluated(text: str) -> None:
    with pytest.raises(InvalidInput, match="expected a number"):
        number(text)


def test_lists_of_words() -> None:
    assert words(" ig, sg,,") == ["ig", "sg"]
    assert words("") == []


def test_lists_of_numbers() -> None:
    assert numbers("0.485,1/2") == (0.485, 0.5)
    assert interval("0,255") == (0.0, 255.0)
    for wrong in ("1,0", "0", "0,1,2"):
        with pytest.raises(InvalidInput, match="two rising numbers"):
            interval(wrong)


def test_control_characters_and_broken_bytes_are_written_out() -> None:
    assert printable("é\x1b[2J\n\udc80") == "é\\x1b[2J\\n\\udc80"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.0012, "1.2 ms"),
        (0.2, "200 ms"),
        (1.16, "1.16 s"),
        (90, "90 s"),
        (150, "2.5 min"),
        (9000, "2.5 h"),
        (864000, "10 days"),
    ],
)
def test_durations_in_words(seconds: float, said: str) -> None:
    assert duration(seconds) == said
