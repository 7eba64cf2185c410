"""The table of what holds best under `strict`: which model is shown, and when all that was asked is met."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fake_runs import fake_results
from results import best
from robattr.models import zoo
from robattr.reporting.run_results import RunResults


def model(topk: float, *, accuracy: float = 0.97, gain: float | None = 0.05, natural: bool = False) -> RunResults:
    """A network of GTSRB with these scores under `strict`; `natural`: NATURAL on the paper's network."""
    run = fake_results("natural" if natural else "madry", topk, 0.8, dataset="gtsrb", protocol="strict")
    columns: dict[str, Any] = {**run.evaluations[0].summary["columns"], "nat_acc": {"value": accuracy}}
    if gain is not None:
        columns[best.GAIN] = {"value": gain}
    e = replace(run.evaluations[0], summary={**run.evaluations[0].summary, "columns": columns, "map": "ig"})
    config = {**run.config, "model": "" if natural else "smooth_resnet"}
    return replace(run, name=f"{topk}", config=config, evaluations=(e,))


@pytest.mark.parametrize(
    ("runs", "shown", "met"),
    [
        ([model(0.6), model(0.5), model(0.1, gain=0.0, natural=True)], "0.6", "yes"),
        ([model(0.6, accuracy=0.9), model(0.5), model(0.1, gain=0.0, natural=True)], "0.5", "yes"),
        ([model(0.45), model(0.1, gain=0.0, natural=True)], "0.45", "**no**"),
        ([model(0.6), model(0.1, gain=0.2, natural=True)], "0.6", "**no**"),
        ([model(0.6), model(0.1, gain=None, natural=True)], "0.6", "not yet measured"),
    ],
)
def test_the_most_robust_of_the_accurate_models_is_shown(runs: list[RunResults], shown: str, met: str) -> None:
    row = best.row("gtsrb", best.members(runs, "strict", "ig"))
    assert (row[0], row[1], row[-1]) == ("gtsrb", shown, met)
    assert row[2].endswith("(47.80%)")  # 37.8% of the tuned IG-SUM-NORM, and ten points


def test_accuracy_is_that_of_the_larger_evaluation_of_the_same_weights() -> None:
    run = model(0.6, accuracy=0.9)
    (e,) = run.evaluations
    columns = {**e.summary["columns"], "nat_acc": {"value": 0.99}}
    larger = replace(e, summary={**e.summary, "examples": 10 * e.examples, "columns": columns})
    assert best.natural_accuracy((replace(run, evaluations=(e, larger)), e)) == {"value": 0.99}
    other = replace(larger, weights="of another network")
    assert best.natural_accuracy((replace(run, evaluations=(e, other)), e)) == {"value": 0.9}


def test_without_records_there_is_no_section() -> None:
    assert best.section([]) == ""


def test_a_model_of_the_zoo_has_its_name_there() -> None:
    run = model(0.6)
    source = Path(zoo.entries()["gtsrb/madry-smooth"].record)
    shipped = replace(run, evaluations=(replace(run.evaluations[0], source=source),))
    assert best.row("gtsrb", best.members([shipped], "strict", "ig"))[1] == "`gtsrb/madry-smooth`"
