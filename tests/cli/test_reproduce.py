"""`robattr demo` and `robattr reproduce`, with short recipes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from robattr.cli import app
from robattr.reproduce import execute, execution, jobs, plan, tasks
from train_fixtures import shorten_recipes


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_recipes(monkeypatch)


def invoke(*words: str) -> str:
    return CliRunner().invoke(app, [*words], catch_exceptions=False).output


def test_a_strict_table_from_the_runs_of_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(plan.TARGETS, "table1", replace(plan.TARGETS["table1"], methods=("natural",)))
    words = ["reproduce", "table1", "--datasets", "fashion-mini", "--examples", "2", "-o", str(tmp_path)]
    assert execute(tasks(jobs("table1", tmp_path, datasets=["fashion-mini"], examples=2)), device="cpu") is None
    strict = invoke(*words, "--device", "cpu", "--protocol", "strict")
    assert strict.count("done before") == 1  # the training
    assert "strict protocol" in (tmp_path / "table1-strict" / "table.md").read_text(encoding="utf-8")
    names = sorted(path.name for path in (tmp_path / "fashion-mini" / "natural" / "records").glob("*.json"))
    assert names == ["paper-ig.json", "strict-ig.json"]


def test_the_demo_runs_and_what_is_done_is_not_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "_step_seconds", lambda run, device: 1.0)
    monkeypatch.setattr(plan, "_attack_seconds", lambda *_: 1.0)

    def demo(*words: str) -> str:
        return invoke("demo", "--out", str(tmp_path), "--examples", "3", "--workers", "1", *words)

    first = demo()
    assert "4/4 evaluate fashion-mini/ig-sum-norm (3 examples)" in first
    assert "On fashion-mini" in first
    assert (tmp_path / "report.html").read_text(encoding="utf-8").count("IG-SUM-NORM") > 1
    weights = tmp_path / "fashion-mini" / "natural" / "model.safetensors"
    before = weights.stat().st_mtime_ns
    again = demo()
    assert again.count("done before") == 4
    assert weights.stat().st_mtime_ns == before
    weights.unlink()
    planned = demo("--dry-run").splitlines()
    assert ["done" in line for line in planned] == [False, False, True, True, False]  # the last is the total
    assert not weights.exists()
    assert demo().count("done before") == 2
    assert weights.exists()


def test_an_evaluation_that_is_interrupted_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(execution, "evaluate_job", interrupted)
    done = CliRunner().invoke(app, ["demo", "--out", str(tmp_path), "--examples", "3", "--workers", "1"])
    assert done.exit_code == 130
    assert "stopped during: evaluate fashion-mini/natural (3 examples); start the same command again" in done.output
