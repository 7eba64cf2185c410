"""Sweeps: every point once, resumable, shared between workers, chosen by validation data."""

from __future__ import annotations

import json
import math
import re
import signal
from dataclasses import replace
from importlib import import_module

import pytest
import torch
from typer.testing import CliRunner

from forked import robattr, signalled, start
from robattr import recipes
from robattr.cli import app
from robattr.data import from_tensors
from robattr.engine.processes import World
from robattr.errors import CheckpointError, InvalidInput
from robattr.metrics.intervals import Estimate
from robattr.runs import measure_on_validation
from robattr.training.axes import Span, check_grid, name_of, parse_axes, parse_axis
from robattr.training.loop import Outcome
from robattr.training.step import validate
from robattr.training.sweep import Result, sweep, table

RUN = replace(
    recipes.get("fashion-mini/ig-norm"), steps=4, batch=8, attack_steps=1, m=2, m_attack=1, checkpoint_every=2
)


def about(value, half=0.1, n=9):
    return Estimate(value, value - half, value + half, n)


def accuracy(path):
    return {"nat_acc": about(json.loads((path / "metrics.jsonl").read_text().splitlines()[-1])["val_accuracy"])}


def points(found):
    return [dict(result.point) for result in found]


def test_axes_are_typed():
    assert parse_axis("weight=1,0.1,0.01") == ("weight", [1.0, 0.1, 0.01])
    assert parse_axis("m=10,20,10") == ("m", [10, 20])
    assert parse_axis("rule=left,right") == ("rule", ["left", "right"])
    assert parse_axis("lr=1e-4..1e-2") == ("lr", Span(1e-4, 1e-2))
    assert parse_axis("m=10..100") == ("m", Span(10, 100, whole=True))
    for word, message in (
        ("wieght=1", "did you mean 'weight'"),
        ("weight", "expects key=value,value"),
        ("weight=1,x", "must be a number"),
        ("rates=1,2", "cannot sweep rates, a list"),
        ("recipe=a,b", "cannot sweep recipe: it has no effect on what is trained"),
        ("weight=2..1", "0 < low < high"),
        ("rule=left..right", "of numbers"),
    ):
        with pytest.raises(InvalidInput, match=message):
            parse_axis(word)


def test_an_axis_is_given_once():
    assert parse_axes(["m=10,20", "weight=1..2"]) == {"m": [10, 20], "weight": Span(1.0, 2.0)}
    with pytest.raises(InvalidInput, match=r"--over attack_steps is given twice.*--over attack_steps=V,V"):
        parse_axes(["attack_steps=20", "attack-steps=30"])
    with pytest.raises(InvalidInput, match=r"--over weight is given twice.* or one range"):
        parse_axes(["weight=1..2", "weight=3"])


def test_every_point_is_checked_before_any_is_trained(tmp_path):
    with pytest.raises(InvalidInput, match="at batch=-5: batch must be at least 1"):
        sweep(RUN, {"batch": [8, -5]}, tmp_path / "sweep", measure=accuracy, device="cpu")
    assert not (tmp_path / "sweep").exists()


def test_the_command_checks_the_grid_before_what_it_starts_from(monkeypatch, tmp_path):
    monkeypatch.setattr("robattr.cli.train.train_warm_start", lambda run, **_: pytest.fail("training began"))
    for over, message in ((["batch=8,-5"], "batch must be"), (["batch=8", "batch=9"], "--over batch is given twice")):
        words = ["sweep", "fashion-mini/natural", *(f"--over={word}" for word in over), "--out", str(tmp_path)]
        refused = CliRunner().invoke(app, words).exception
        assert isinstance(refused, InvalidInput)
        assert message in str(refused)


@pytest.mark.parametrize("content", ["garbage", "[]", '{"a": 1}'])
def test_damaged_scores_are_named(tmp_path, content):
    file = tmp_path / "m=2" / "sweep.json"
    file.parent.mkdir()
    file.write_text(content)
    with pytest.raises(CheckpointError, match=rf"in {file}, got other content: delete the file"):
        sweep(RUN, {"m": [2]}, tmp_path, measure=accuracy, device="cpu")
    assert file.read_text() == content


def test_the_scores_of_another_point_are_refused(tmp_path):
    """They would never be found again, and the sweep would repeat the point without end."""
    (tmp_path / "lr=0.01").mkdir()
    score = '{"value": 0.5, "low": null, "high": null, "n": 1, "excluded": 0, "more": 3}'
    (tmp_path / "lr=0.01" / "sweep.json").write_text(
        f'{{"point": {{"lr": 0.02}}, "scores": {{"a": {{"nat_acc": {score}}}}}}}'
    )
    with pytest.raises(CheckpointError, match=r"expected the point \{'lr': 0.01\} in .*delete the file"):
        sweep(RUN, {"lr": [0.01]}, tmp_path, measure=accuracy, device="cpu")


def test_a_grid_is_run_once_and_extended_by_what_is_new(tmp_path, capsys):
    seen = []

    def measure(path):
        seen.append(path.name)
        return accuracy(path)

    found, stopped = sweep(RUN, {"m": [3, 2], "weight": [0.1]}, tmp_path, measure=measure, device="cpu")
    assert stopped is None
    assert points(found) == [{"m": 2, "weight": 0.1}, {"m": 3, "weight": 0.1}]
    assert sorted(seen) == ["m=2,weight=0.1", "m=3,weight=0.1"]
    assert f"{tmp_path}: 1 of 2 points, about " in capsys.readouterr().err
    assert json.loads((tmp_path / "m=2,weight=0.1" / "config.json").read_text())["m"] == 2
    assert (tmp_path / "table-m-weight.md").read_text() == table(found)
    others, _ = sweep(RUN, {"seed": [0]}, tmp_path, measure=accuracy, device="cpu")
    assert (tmp_path / "table-seed.md").read_text() == table(others)
    assert (tmp_path / "table-m-weight.md").read_text() == table(found)  # a table for each choice of axes

    capsys.readouterr()
    again, _ = sweep(RUN, {"m": [3, 2], "weight": [0.1]}, tmp_path, measure=measure, device="cpu")
    assert again == found
    assert capsys.readouterr().err == f"{tmp_path}: 2 of 2 points were done before (--fresh begins anew)\n"
    assert len(seen) == 2

    with pytest.raises(CheckpointError, match=r"another configuration \(eps is 0\.02"):  # not the results of another ε
        sweep(replace(RUN, eps=0.02), {"m": [3, 2], "weight": [0.1]}, tmp_path, measure=measure, device="cpu")


def test_a_search_ends_after_its_trials(tmp_path):
    found, _ = sweep(RUN, {"weight": Span(0.01, 1.0)}, tmp_path, measure=accuracy, trials=2, device="cpu")
    assert len(found) == 2
    assert all(0.01 <= result.point["weight"] <= 1.0 for result in found)
    whole, _ = sweep(RUN, {"m": Span(1, 4, whole=True)}, tmp_path, measure=accuracy, trials=2, device="cpu")
    assert all(type(result.point["m"]) is int for result in whole)
    with pytest.raises(InvalidInput, match="--trials"):
        sweep(RUN, {"weight": Span(0.01, 1.0)}, tmp_path / "grid", measure=accuracy, device="cpu")


def test_a_diverged_point_is_marked_and_the_others_go_on(tmp_path):
    run = replace(RUN, optimizer="momentum", schedule="constant")
    found, _ = sweep(run, {"lr": [1e-3, 1e30]}, tmp_path, measure=accuracy, device="cpu")
    assert [bool(result.scores) for result in found] == [True, False]
    assert "| 1e+30 | diverged |" in table(found)


def test_an_axis_of_numbers_may_hold_none(tmp_path):
    assert parse_axis("clip=1,none,0.5") == ("clip", [1.0, None, 0.5])
    found, _ = sweep(RUN, {"clip": [1.0, None, 0.5]}, tmp_path, measure=accuracy, device="cpu")
    assert points(found) == [{"clip": None}, {"clip": 0.5}, {"clip": 1.0}]
    with pytest.raises(CheckpointError, match="is the directory of a run: choose another folder for the sweep"):
        sweep(RUN, {"clip": [1.0]}, tmp_path / "clip=0.5", measure=accuracy, device="cpu")


def test_what_cannot_be_compared_on_validation_data_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="cannot sweep full: it trains on the validation split"):
        parse_axis("full=true,false")
    x, y = torch.rand(6, 1, 12, 12), torch.arange(6) % 2  # too few to set any apart
    few = from_tensors(x, y, name="few")
    with pytest.raises(InvalidInput, match="few has no validation examples"):
        validate(torch.nn.Linear(1, 1), few, world=World(0, 1, torch.device("cpu")))


def test_a_number_without_effect_is_refused():
    with pytest.raises(InvalidInput, match="cannot sweep m: it has no effect on the objective of method=natural"):
        check_grid(replace(RUN, method="natural"), {"m": [2, 10]})


def test_points_of_one_name_are_refused():
    with pytest.raises(InvalidInput, match=r"expected different points, got two at lr=0\.123457"):
        check_grid(RUN, {"lr": [0.12345678, 0.12345679]})


def test_the_table_has_intervals_and_marks_what_stands_out():
    found = [
        Result({"m": 10}, {"nat_acc": about(0.98, 0.01, 5000), "kendall": about(0.26)}),
        Result({"m": 50}, {"nat_acc": about(0.90, 0.01, 5000), "kendall": about(0.28)}),
    ]
    assert table(found) == (
        "| m | Nat Acc. | Rank Corr. |\n|---|---|---|\n"
        "| 10 | **98.00% [97.0, 99.0]** | 0.2600 [0.160, 0.360] |\n"
        "| 50 | 90.00% [89.0, 91.0] | 0.2800 [0.180, 0.380] |\n\n"
        "Validation images: Nat Acc. on 5,000; Rank Corr. on 9. Intervals are 95%.\n"
        "Bold: the interval lies above all others.\n"
    )
    few = replace(found[1], scores={**found[1].scores, "kendall": replace(about(0.28), n=7)})
    assert "Nat Acc. on 5,000; Rank Corr. on 7 to 9. Intervals" in table([found[0], few])
    within_noise = table([Result(r.point, {"kendall": r.scores["kendall"]}) for r in found])
    assert "**" not in within_noise
    assert within_noise.endswith("No point stands out: the intervals of the best ones overlap.\n")


def test_a_score_without_an_interval_survives_its_file(tmp_path):
    one = {"nat_acc": Estimate(0.5, math.nan, math.nan, 1)}
    for _ in range(2):
        found, _ = sweep(RUN, {"m": [2]}, tmp_path, measure=lambda path: one, device="cpu")
    (score,) = (result.scores["nat_acc"] for result in found)
    assert (score.value, score.n) == (0.5, 1)
    assert math.isnan(score.low)
    assert "| 2 | 50.00% |" in table(found)


def test_a_directory_is_named_by_its_point():
    assert name_of({"weight": 0.1, "m": 10, "rule": "left"}) == "weight=0.1,m=10,rule=left"


def test_selection_measures_the_papers_columns_on_validation_examples(tmp_path):
    found, _ = sweep(RUN, {"m": [2]}, tmp_path, measure=measure_on_validation(4, device="cpu"), device="cpu")
    (scores,) = (result.scores for result in found)
    assert list(scores) == ["nat_acc", "adv_acc", "topk", "kendall"]
    assert scores["nat_acc"].value == pytest.approx(accuracy(tmp_path / "m=2")["nat_acc"].value)
    assert 0 <= scores["adv_acc"].low <= scores["adv_acc"].value <= scores["adv_acc"].high <= 1
    assert -1 <= scores["kendall"].value <= 1
    assert (scores["nat_acc"].n, scores["adv_acc"].n) == (500, 4)
    ((other,), _) = sweep(RUN, {"m": [2]}, tmp_path, measure=accuracy, by="accuracy alone", device="cpu")
    assert list(other.scores) == ["nat_acc"]  # measured anew, not what the other measure found


def test_a_search_continues_what_was_begun_and_ends_when_no_point_is_new(tmp_path):
    class Killed(Exception):
        pass

    def killed(path):
        raise Killed

    search = {"over": {"m": [1, 2]}, "out": tmp_path, "trials": 5, "device": "cpu"}
    with pytest.raises(Killed):
        sweep(RUN, measure=killed, **search)
    (begun,) = tmp_path.glob("m=*")
    measured = []

    def measure(path):
        measured.append(path.name)
        return accuracy(path)

    found, _ = sweep(RUN, measure=measure, **search)
    assert measured[0] == begun.name
    assert points(found) == [{"m": 1}, {"m": 2}]


def test_a_point_is_done_however_its_worker_died(tmp_path, monkeypatch):
    """A sweep that is killed at each of its writes lacks no point in the end."""
    module = import_module("robattr.training.sweep")

    class Killed(Exception):
        pass

    write, tried = module.write_json, set()

    def dies(path, content):
        if (once := json.dumps([str(path), content])) not in tried:
            tried.add(once)
            raise Killed
        write(path, content)

    monkeypatch.setattr(module, "write_json", dies)
    over, kills = {"warm_start": ["none/first", "none/second"]}, 0
    monkeypatch.setattr(module, "train", lambda run, path, **_: Outcome(path, 4, True, None, None))
    while True:
        try:
            found, _ = sweep(RUN, over, tmp_path, measure=lambda path: {"nat_acc": about(0.5)}, device="cpu")
            break
        except Killed:
            kills += 1
    assert kills == len(tried) == 4  # of each point, once begun and once measured
    assert [result.scores for result in found] == [{"nat_acc": about(0.5)}] * 2


def test_a_killed_worker_is_taken_over_and_two_share_the_work(tmp_path):
    out = tmp_path / "sweep"
    words = [
        "sweep", "fashion-mini/natural", "--over", "lr=0.001,0.002", "--set=steps=30", "--set=batch=8",
        "--set=checkpoint_every=4", "--set=log_every=1", "--examples=0", "--device=cpu", "--out", str(out),
    ]  # fmt: skip
    first = start(signalled, signal.SIGKILL, 6, *words, log=tmp_path / "first")
    first.join()
    assert first.exitcode == -signal.SIGKILL
    logs = [tmp_path / name for name in ("second", "third")]
    workers = [start(robattr, *words, log=log) for log in logs]
    for worker in workers:
        worker.join(timeout=300)
    said = [log.read_text() for log in logs]
    assert [worker.exitcode for worker in workers] == [0, 0], said
    assert any("continuing after" in text for text in said)
    rows = re.findall(r"^\| (0\.00\d) \| \**\d+\.\d\d% \[", (out / "table-lr.md").read_text(), flags=re.M)
    assert rows == ["0.001", "0.002"]
    for path in out.glob("lr=*"):
        steps = [json.loads(line)["step"] for line in (path / "metrics.jsonl").read_text().splitlines()]
        assert steps == [*range(1, 31), 30]
