"""`robattr demo` and `robattr reproduce`, with short recipes."""

from __future__ import annotations

import re
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from robattr.cli import app
from robattr.reporting import figures
from robattr.reproduce import execute, execution, jobs, plan, tasks
from robattr.reproduce.execution import Stopped
from train_fixtures import shorten_recipes


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch, short_search, undrawn) -> None:
    shorten_recipes(monkeypatch)


def invoke(*words: str) -> str:
    return CliRunner().invoke(app, [*words], catch_exceptions=False).output


def test_a_strict_table_from_the_runs_of_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(plan.TARGETS, "table1", replace(plan.TARGETS["table1"], methods=("natural",)))
    monkeypatch.setattr(figures, "write_figures", partial(figures.write_figures, formats=("svg",)))
    words = ["reproduce", "table1", "--datasets", "fashion-mini", "--examples", "2", "-o", str(tmp_path)]
    assert execute(tasks(jobs("table1", tmp_path, datasets=["fashion-mini"], examples=2)), device="cpu") is None
    strict = invoke(*words, "--device", "cpu", "--protocol", "strict")
    assert strict.count("done before") == 1  # the training
    assert "strict v3 protocol" in (tmp_path / "table1-strict" / "table.md").read_text(encoding="utf-8")
    names = sorted(path.name for path in (tmp_path / "fashion-mini" / "natural" / "records").glob("*.json"))
    assert names == ["paper-ig.json", "strict-ig.json"]


def test_the_demo_runs_and_what_is_done_is_not_done_again(tmp_path: Path) -> None:
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
    assert demo().count("done before") == 4  # its checkpoint and its records are still there
    assert weights.exists()


def test_the_time_of_the_whole_is_said_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan.Task, "seconds", lambda task, device: 100.0)
    monkeypatch.setattr("robattr.reproduce.execute", lambda planned, **_: Stopped(planned[0], signal.SIGINT))
    ended = CliRunner().invoke(app, ["demo", "--out", str(tmp_path), "--workers", "1"])
    assert ended.exit_code == 130
    first, second = ended.output.splitlines()
    assert first == "4 of 4 tasks are left: about 6.7 min here, 1 at a time"
    assert second.startswith("stopped during: train fashion-mini/natural")


def test_an_evaluation_that_is_interrupted_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(execution, "evaluate_job", interrupted)
    done = CliRunner().invoke(app, ["demo", "--out", str(tmp_path), "--examples", "3", "--workers", "1"])
    assert done.exit_code == 130
    assert "stopped during: evaluate fashion-mini/natural (3 examples); the same command continues" in done.output


OWN = """
from robattr import PGD, LinfBall, Rho, cross_entropy, objectives

def tiny_trades(config, bounds):
    return objectives.trades(1.0, LinfBall(config.eps, bounds), PGD(1, config.step_size))

def plain(model, x, y):
    return Rho(cross_entropy(model, x, y), 0 * cross_entropy(model, x, y), x)

def make_plain():
    return plain
"""


def test_the_demo_takes_other_methods_and_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("demo_rho.py").write_text(OWN)
    chosen = "natural, lga, demo_rho:tiny_trades, demo_rho:make_plain"
    words = ["demo", "--out", "out", "--examples", "3", "--workers", "1", "--objectives"]
    assert "8/8 evaluate fashion-mini/make-plain (3 examples)" in invoke(*words, chosen)
    page = Path("out/report.html").read_text(encoding="utf-8")
    rows = re.findall(r'<tr><th scope="row">(.*?)</th>', page)
    assert [row.partition(" (flagged")[0] for row in rows[:4]] == ["NATURAL", "LGA", "make-plain", "tiny-trades"]
    assert "most important pixels of the NATURAL model" in page
    refused = CliRunner().invoke(app, [*words, "natural,igrr"])
    assert "unknown recipe 'fashion-mini/igrr'; did you mean" in str(refused.exception)
