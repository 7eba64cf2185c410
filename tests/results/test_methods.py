"""The program that fills the leaderboard: its table of methods, its rule, and rows that survive kills."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from evaluation_fixtures import shorten_search
from forked import start
from results import leaderboard, methods
from results.methods import DATASETS, TRIED, chosen, fill, main, row_of
from robattr import models
from robattr.attacks import integrated_gradients, simple_gradient
from robattr.engine.processes import choose_device
from robattr.errors import Diverged
from robattr.evaluation import protocol
from robattr.formula import midpoint
from robattr.metrics.intervals import Estimate
from robattr.reporting.run_results import read_runs
from robattr.training.sweep import Result

SAME = (
    "optimizer",
    "batch",
    "schedule",
    "momentum",
    "decay",
    "reduction",
    "clip",
    "average",
    "eps_ramp",
    "norm",
    "full",
)


@pytest.mark.parametrize("dataset", DATASETS)
def test_methods_differ_in_their_objective_and_in_what_is_searched_alone(dataset: str) -> None:
    madry = row_of(dataset, "madry").run
    for name in TRIED:
        row = row_of(dataset, name)
        assert [getattr(row.run, key) for key in SAME] == [getattr(madry, key) for key in SAME]
        assert (row.run.model != "") == (name == "madry-softplus")
        assert len(row.values) == 4
        tried = [row.fitted(1000, {row.key: value}) for value in row.values]
        assert len({(run.objective(), run.lr, run.model) for run in tried}) == 4
        assert all(run.eps_ramp == run.weight_ramp and run.eps_ramp[1] < 1000 == run.steps for run in tried)
        if row.key != "model":
            assert pytest.approx(getattr(row.run, row.key), rel=1e-5) in row.values, "the recipe's own value is tried"


def test_a_schedule_is_stretched_to_the_steps() -> None:
    """GTSRB by hand: warm-up 500, ramp 500 to 2,500 of 7,000; Fashion-MNIST averages over 1,000 of 15,000."""
    gtsrb, fashion = row_of("gtsrb", "trades"), row_of("fashion-mnist", "trades")
    run = gtsrb.fitted(1400, {"weight": 0.5})
    assert (run.warmup, run.eps_ramp, run.weight, run.average) == (100, (100, 500), 0.5, 0.0)
    assert fashion.fitted(3000, {}).average == pytest.approx(1 - 1 / 200)
    assert (fashion.run.eps, fashion.run.attack_steps) == (0.1, 6)
    assert fashion.run.step_size == pytest.approx(0.1 / 3)
    shortest = gtsrb.fitted(1, {})
    assert (shortest.eps_ramp, shortest.warmup) == ((0, 1), 0)


@pytest.mark.parametrize(("method", "kind", "compiled"), [
    ("ig-norm", "cuda", True), ("ig-norm", "cpu", False), ("natural", "cuda", False),
])  # fmt: skip
def test_all_stages_are_compiled_or_none(method: str, kind: str, compiled: bool) -> None:
    row = row_of("gtsrb", method).on(kind)
    assert [row.fitted(steps, {}).compiles(kind) for steps in (100, 2000, 50_000)] == [compiled] * 3


def test_the_pace_leaves_out_what_comes_before_the_first_steps(tmp_path: Path) -> None:
    """Ten seconds of compilation, then a hundredth of a second a step."""
    lines = [{"step": 10 * i, "rate": 10 / s, "seconds": s} for i, s in enumerate([10.1, *[0.1] * 9], start=1)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps({**line, "loss": 1.0}) + "\n" for line in lines))
    assert methods._pace(tmp_path, 100, 1.0) == (pytest.approx(0.01), pytest.approx(10.0))


def found(*scores: tuple[float, float, float] | None) -> list[Result]:
    """Results at weight 0, 1, …, with these (natural accuracy, top-k, Kendall); None: diverged."""
    names = ("nat_acc", "topk", "kendall")
    plain = [dict(zip(names, row, strict=True)) if row else {} for row in scores]
    return [Result({"weight": n}, {k: Estimate(v, v, v, 100, 0) for k, v in of.items()}) for n, of in enumerate(plain)]


@pytest.mark.parametrize(
    ("dataset", "scores", "weight"),
    [
        ("fashion-mnist", [(0.90, 0.4, 0.5), (0.84, 0.5, 0.5), (0.83, 0.9, 0.9)], 1),  # the paper's row has 85.44%
        ("fashion-mnist", [(0.80, 0.4, 0.5), (0.79, 0.5, 0.5), (0.77, 0.9, 0.9)], 1),  # none reaches it
        ("fashion-mini", [(0.90, 0.4, 0.5), (0.89, 0.4, 0.6), (0.85, 0.9, 0.9)], 1),  # the paper has no row
        ("gtsrb", [None, (0.5, 0.1, 0.1), None], 1),
        ("gtsrb", [(0.97, 0.3, 0.8), (0.97, 0.6, 0.4)], 0),  # the sum counts
    ],
)
def test_the_rule_of_the_search(dataset: str, scores: list[Any], weight: int) -> None:
    assert chosen(found(*scores), dataset).point == {"weight": weight}


def test_no_row_where_every_candidate_diverged() -> None:
    with pytest.raises(Diverged, match="every candidate diverged"):
        chosen(found(None, None), "gtsrb")


def work(out: Path, kill_at: int) -> None:
    """Fill a row of 6 steps, in a process that is killed at its write number `kill_at`; OUT.writes counts them."""
    writes, move = count(1), os.replace

    def counted(*paths: Any, **settings: Any) -> None:
        number = next(writes)
        if number == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        move(*paths, **settings)
        out.with_suffix(".writes").write_text(str(number))

    with pytest.MonkeyPatch.context() as patch:
        shorten(patch)
        patch.setattr(os, "replace", counted)
        settings = {"minutes": 0.004, "jobs": 1, "examples": 3, "device": "cpu", "data_dir": None}
        row = row_of("fashion-mini", "igr")
        assert fill(replace(row, values=row.values[2:]), out, **settings) is None


def shorten(patch: pytest.MonkeyPatch) -> None:
    shorten_search(patch)
    quick = replace(protocol.paper("fashion-mini"), steps=1, pgd_steps=1, repeats=1, N=1)
    patch.setitem(protocol._PAPER, "fashion-mini", quick)
    patch.setattr(methods, "IMAGES", 3)
    patch.setattr(methods, "ITERATIONS", 1)


def probed(out: Path, method: str, seconds: float) -> None:
    """Write a probe: a step takes so many seconds, and it took a minute itself, so that no time is left in the end."""
    file = out / "fashion-mini/search" / method / "probe.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"asked": 0.004, "step": seconds, "seconds": 60.0}))


def run(out: Path, kill_at: int = 0) -> int | None:
    """The exit code of `work`."""
    probed(out, "igr", 0.01)
    process = start(work, out, kill_at, log=out.with_suffix(".log"))
    process.join(timeout=120)
    assert process.exitcode in (0, -signal.SIGKILL), out.with_suffix(".log").read_text()
    return process.exitcode


def result(out: Path) -> tuple[Any, ...]:
    """What a row consists of, but for times."""
    (record,) = (out / "records").glob("*-ig.json")
    content = json.loads(record.read_text())
    assert content["search"].pop("minutes") > 1
    weights = (out / "fashion-mini/igr/model.safetensors").read_bytes()
    return weights, *(content[key] for key in ("search", "config", "curve", "examples", "weights"))


def test_a_killed_row_ends_as_one_that_was_not(tmp_path: Path) -> None:
    assert run(tmp_path / "whole") == 0
    wanted = result(tmp_path / "whole")
    assert wanted[1]["steps"] == wanted[1]["final_steps"] == wanted[2]["steps"] == 6
    assert [trial["weight"] for trial in wanted[1]["tried"]] == [1.0, 3.0]
    writes = int((tmp_path / "whole.writes").read_text())
    for share in (0.4, 0.9):  # in the search; in the training or the evaluation
        out = tmp_path / f"killed-{share}"
        assert run(out, int(share * writes)) == -signal.SIGKILL
        assert run(out) == 0
        assert result(out) == wanted
    assert not list((tmp_path / "whole").rglob("search/*/*/model.safetensors")), "candidates leave their scores alone"

    (record,) = (tmp_path / "whole/records").glob("*-ig.json")
    (read,) = read_runs([record])
    broken = leaderboard.violations(read, read.evaluations[0])
    assert [said.split(",")[0] for said in broken] == [
        "expected a dataset of the board (mnist",
        "expected at least 300 examples",
    ]


def test_the_program_plans_fills_and_says_what_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    shorten(monkeypatch)
    words = [
        "fashion-mini",
        "natural",
        "ssr",
        "--out",
        str(tmp_path),
        "--examples",
        "6",
        "--device",
        "cpu",
        "--minutes",
        "0.004",
    ]

    def in_turn(waves: Any, workers: int) -> None:
        assert [call() for _, call in waves[0]] == [None, None]

    monkeypatch.setattr(methods, "run_parallel", in_turn)
    assert main([*words, "--dry-run"]) == 0
    planned = capfd.readouterr().out
    assert "fashion-mini/ssr" in planned
    assert "weight = 0.1, 1.0, 10.0, 100.0; steps as measured" in planned
    assert not list(tmp_path.iterdir())
    for method in ("natural", "ssr"):
        probed(tmp_path, method, 0.005)

    real = methods.chosen

    def fails(results: Any, dataset: str) -> Result:
        if "weight" in results[0].point:
            raise Diverged("every candidate diverged")
        return real(results, dataset)

    monkeypatch.setattr(methods, "chosen", fails)
    assert main(words) == 1
    assert capfd.readouterr().out == "no row for ssr\n"
    assert [file.name for file in sorted((tmp_path / "records").glob("*-ig.json"))] == [
        "fashion-mini-natural-seed0-strict-v3-ig.json"
    ]
    monkeypatch.setattr(methods, "chosen", real)
    assert main(words) == 0
    assert len(list((tmp_path / "records").glob("*-ig.json"))) == 2
    assert main([*words, "--dry-run"]) == 0
    assert "steps each, then" in capfd.readouterr().out
    assert main([*words[:-1], "0.005"]) == 0  # the rows are there
    assert "is of --minutes 0.004, got 0.005: choose another --out" in capfd.readouterr().err
    assert main(["fashion-mini", "trade"]) == 1
    assert "did you mean 'trades'" in capfd.readouterr().out


def test_art_is_left_out_where_it_has_no_direction(capfd: pytest.CaptureFixture[str]) -> None:
    """The network of GTSRB standardises an image: it is orthogonal to its gradient, and IG has one direction."""
    torch.manual_seed(0)
    net, x, y = models.for_dataset("gtsrb").double(), 255 * torch.rand(2, 3, 32, 32).double(), torch.tensor([3, 7])
    slope, one, five = (
        map.of(net, x, y).flatten(1)
        for map in (simple_gradient(), *(integrated_gradients(rule=midpoint(m)) for m in (1, 5)))
    )
    assert torch.cosine_similarity(slope, x.flatten(1)).abs().max() < 1e-9
    assert torch.cosine_similarity(one, five).min() > 1 - 1e-9
    assert {row_of("gtsrb", name).run.m for name in ("igr", "aat")} == {1}
    assert main(["gtsrb", "--dry-run"]) == 0
    assert "gtsrb/art" not in capfd.readouterr().out
    assert main(["gtsrb", "art", "--dry-run"]) == 1


def test_an_interrupt_stops_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "run_parallel", lambda waves, workers: signal.SIGINT)
    assert main(["fashion-mini"]) == 130


def test_a_probe_measures_the_seconds_of_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last of two lines of the log counts: the first has the time to begin."""
    probed = methods.probe(row_of("fashion-mini", "natural"), tmp_path, minutes=1.0, device="cpu", data_dir=None)
    assert 0 < probed["step"] * methods.PROBE[choose_device("cpu").type] <= probed["seconds"] + 0.05  # which is rounded
    monkeypatch.setattr(methods, "train", None)
    again = methods.probe(row_of("fashion-mini", "natural"), tmp_path, minutes=1.0, device="cpu", data_dir=None)
    assert again == probed


def test_any_error_leaves_the_other_rows_alone(tmp_path: Path, monkeypatch, capfd: pytest.CaptureFixture[str]) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access")

    monkeypatch.setattr(methods, "search", broken)
    settings = {"minutes": 1.0, "jobs": 1, "examples": 3, "device": "cpu", "data_dir": None}
    assert fill(row_of("fashion-mini", "natural"), tmp_path, **settings) is None
    assert "no row for natural: Traceback" in capfd.readouterr().err
