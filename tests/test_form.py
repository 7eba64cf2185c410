"""Forms of JSON values, and texts that a parser must survive."""

from __future__ import annotations

import re

import pytest

from robattr._form import all_fit, check_form, parse_json, parse_json_lines, parse_toml

FORM = {"id": int, "score?": (float, None), "names?": [str], "columns?": {str: {"value": float}}}


@pytest.mark.parametrize(
    "value",
    [
        {"id": 1},
        {"id": 0, "score": 0.5, "names": [], "columns": {}, "more": object},
        {"id": 0, "score": None, "names": ["a"], "columns": {"topk": {"value": 3}}},
    ],
)
def test_values_of_the_form(value: object) -> None:
    check_form(value, FORM)
    assert all_fit(FORM)([value])


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ([], "it: expected an object, got []"),
        ({}, "id is missing"),
        ({"id": True}, "id: expected a whole number, got True"),
        ({"id": 1.0}, "id: expected a whole number, got 1.0"),
        ({"id": 10**30}, "id: expected a whole number, got 1000"),
        ({"id": 1, "score": "0.5"}, "score: expected a number or nothing, got '0.5'"),
        ({"id": 1, "score": float("inf")}, "score: expected a number or nothing, got inf"),
        ({"id": 1, "score": 10**400}, "score: expected a number or nothing"),
        ({"id": 1, "names": ["a", 2]}, "names[1]: expected text, got 2"),
        ({"id": 1, "columns": {"topk": {}}}, "columns.topk.value is missing"),
    ],
)
def test_other_values_are_named_by_their_place(value: object, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        check_form(value, FORM)
    assert not all_fit(FORM)([{"id": 1}, value])


def test_a_form_of_all_other_keys_leaves_the_named_ones_alone() -> None:
    form = {"id": int, "attacks?": [str], str: float}
    check_form({"id": 1, "attacks": ["noise"], "topk": 0.5}, form)
    for value, says in (({"id": 1, "topk": "high"}, "topk: expected a number"), ({"id": 0.5}, "id: expected a whole")):
        with pytest.raises(ValueError, match=says):
            check_form(value, form)


def test_lines_are_parsed_together_or_not_at_all() -> None:
    assert parse_json_lines([b'{"a": 1}', b"[2]"]) == [{"a": 1}, [2]]
    assert parse_json_lines([]) == []
    for lines in ([b"1, 2"], [b"{", b"}"], [b"1", b""], [b"\xff"]):
        assert parse_json_lines(lines) is None


def test_deep_and_odd_texts_are_value_errors() -> None:
    assert parse_json('"\\ud83d\\ude00"') == "😀"
    for parse, text in (
        (parse_json, '{"half a character": ["\\ud800"]}'),
        (parse_json, "[" * 100_000),
        (parse_toml, "a = " + "[" * 100_000),
        (parse_json, "9" * 5000),
        (parse_toml, "a" + ".a" * 30_000 + " = 1"),
        (parse_toml, "[a" + ".a" * 30_000 + "]"),
    ):
        with pytest.raises(ValueError):  # noqa: PT011
            parse(text)
    assert parse_json("[NaN, -Infinity, 1]") == [None, None, 1]
