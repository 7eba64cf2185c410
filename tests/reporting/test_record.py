"""The record format: names and damaged files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from fake_runs import write_run
from robattr.errors import CheckpointError
from robattr.reporting.record import APPROACHES, approach, evaluated_dataset, integrates, variant
from robattr.reporting.run_results import read_runs
from robattr.training.config import TrainConfig
from robattr.training.method_names import INTEGRATING, Method

NAME = "fashion-mini-{}-seed0-paper-ig.json"


def test_a_damaged_log_is_named_by_its_line(tmp_path: Path) -> None:
    run = write_run(tmp_path, "natural")
    log = run / "metrics.jsonl"
    whole = log.read_bytes()
    for line in (b"[1, 2]", b"\xff\xfe", b"nonsense"):
        log.write_bytes(b"\n" + line + b"\n" + whole)
        with pytest.raises(CheckpointError, match=rf"{log}, line 2.*the file is damaged: delete that line"):
            read_runs([run])
    log.write_bytes(whole + b"7\n")
    with pytest.raises(CheckpointError, match="expected a JSON object, got int"):
        read_runs([run])
    log.write_bytes(whole + '{"note": "ε'.encode()[:-1])  # cut within a letter, while it is being written
    assert len(read_runs([run])[0].metrics) == len(whole.splitlines())


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"recipe": "mnist/ig-norm-tuned", "method": "ig-norm", "m": 20}, "ig-norm-tuned-m20"),
        ({"recipe": "mnist/madry (tuned)", "method": "madry", "m": 50}, "madry-tuned"),
        ({"recipe": "custom", "method": "natural"}, "natural"),
        ({"recipe": "gtsrb/sarkar", "method": "sarkar", "m": 20}, "sarkar-m20"),
        ({"recipe": "gtsrb/trades", "method": "trades", "m": 50}, "trades"),
        ({"recipe": "mnist/my-rho", "method": "custom", "m": 50}, "my-rho"),
        ({"recipe": "mnist/natural", "method": "ig-sum-norm", "m": 5}, "ig-sum-norm-m5"),
        ({"name": "My net"}, "My-net"),
    ],
)
def test_a_variant_is_the_recipe_and_its_m(config: dict[str, Any], name: str) -> None:
    assert variant(config) == name


def test_a_damaged_or_foreign_file_is_refused(records: Path, tmp_path: Path) -> None:
    whole = json.loads((records / NAME.format("natural")).read_text())
    cases = {
        "not JSON": ('{"schema": 1, "conf', "expected a record, got .*could not be read as JSON .*: give a run"),
        "text": ("my notes", "could not be read as JSON .*, or a record that .robattr record. wrote"),
        "a summary": ('{"protocol": "paper"}', "the summary of an evaluation: give its run, RUN of RUN/records"),
        "certificates": ('{"radii": [], "per_example": {}}', "a summary of certificates: the same .robattr certify."),
        "their attack": ('{"broken": {}, "per_example": {}}', "certificates: .* .robattr audit --certify. writes"),
        "foreign": ('{"a": 1}', "expected a record, got .*, which is not one: .robattr record. writes records"),
        "a list": ("[1]", "expected a record, got .*, which is not one"),
        "later": (json.dumps({**whole, "schema": 99}), "another version"),
        "less": (json.dumps({k: v for k, v in whole.items() if k != "summary"}), "damaged .summary missing"),
        "torn": (json.dumps({**whole, "examples": {"id": [1, 2], "topk": [0.5]}}), "damaged .its columns"),
        "wrong": (json.dumps({**whole, "config": []}), "config: expected an object, got"),
        "seed": (json.dumps({**whole, "config": {**whole["config"], "seed": "../7"}}), "config.seed: expected a whole"),
        "outside": (json.dumps({**whole, "variant": "../../evil"}), "variant '../../evil' is not a name"),
        "training": (json.dumps({**whole, "training": {"loss": "low"}}), "training.loss: expected a number"),
        "unknown": (json.dumps({**whole, "training": {"loss": 1, "more": 2}}), "damaged .its columns"),
        "curve": (json.dumps({**whole, "curve": {"logged": [1]}}), "curve.logged: expected an object"),
        "scores": (json.dumps({**whole, "examples": {**whole["examples"], "topk": ["x"] * 120}}), "topk.0.: expected"),
        "infinite": (json.dumps(whole).replace('"topk": [0', '"topk": [1e999, 0', 1), "topk.0.: expected a number"),
        "columns": (json.dumps({**whole, "summary": {**whole["summary"], "columns": 3}}), "summary.columns: expected"),
        "search": (json.dumps({**whole, "search": {"minutes": "many"}}), "search.minutes: expected a number"),
        "deep": ("[" * 100_000, "nested too deeply"),
    }
    for number, (text, message) in enumerate(cases.values()):
        file = tmp_path / f"{number}.json"
        file.write_text(text)
        with pytest.raises(CheckpointError, match=message):
            read_runs([file])


@pytest.mark.parametrize(
    ("trained", "evaluated", "found"),
    [
        ("mnist", "mnist", ("mnist", False)),
        ("mnist", "gtsrb", ("gtsrb", True)),
        ("photos/cats", "cats", ("photos/cats", False)),
        ("photos/mnist", "folder mnist", ("folder mnist", False)),
        ("mnist", "folder mnist", ("folder mnist", False)),  # as a record keeps an absolute path
        ("photos/mnist", "mnist", ("mnist", True)),
    ],
)
def test_the_dataset_of_an_evaluation(trained: str, evaluated: str, found: tuple[str, bool]) -> None:
    assert evaluated_dataset({"dataset": trained}, {"dataset": evaluated}) == found


def test_every_method_has_a_name_in_tables_and_an_objective_of_the_users_its_own() -> None:
    assert tuple(APPROACHES) == get_args(Method)


def test_what_is_known_about_the_methods_is_what_their_objectives_are() -> None:
    of = {method: TrainConfig(method=method, budget=1.0) for method in get_args(Method)}
    assert {method for method, config in of.items() if config.uses("m")} == INTEGRATING
    plain = [method for method, config in of.items() if config.objective() == TrainConfig(method="natural").objective()]
    assert plain == ["natural"]  # `RunResults.regularised`
    assert [integrates(method) for method in ("ig-norm", "madry", "my own", None)] == [True, False, True, True]
    assert approach({"method": "igr", "model": "my_net"}, "model") == "IGR, my_net"
    assert approach({"method": "custom", "recipe": "mnist/right-reasons"}, "model") == "right-reasons"
