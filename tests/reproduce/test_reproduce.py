"""Plans: what a table needs, what is done, what is left; estimates; the demo from end to end on a sliver."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from typer.testing import CliRunner

from robattr import recipes
from robattr.attacks import IFIA, integrated_gradients
from robattr.cli import app
from robattr.cli.train import _started
from robattr.errors import CheckpointError, InvalidInput
from robattr.evaluation import protocol
from robattr.reproduce import estimate, plan
from robattr.reproduce.job import Job, Progress
from robattr.reproduce.targets import TARGETS, jobs
from robattr.reproduce.workers import run_parallel
from robattr.training.loop import train

TINY = {"steps": 12, "batch": 25, "attack_steps": 1, "m": 1, "m_attack": 1, "log_every": 1, "validate_every": 0}


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedded set's recipes and evaluation, cut down to a few steps, and two methods to compare."""
    real = recipes.get
    monkeypatch.setattr(recipes, "get", lambda name: replace(real(name), **TINY))
    short = replace(protocol.paper("fashion-mini"), steps=2, pgd_steps=2, repeats=1, N=2)
    monkeypatch.setitem(protocol._PAPER, "fashion-mini", short)
    monkeypatch.setitem(TARGETS, "table1", replace(TARGETS["table1"], methods=("natural", "ig-sum-norm")))


def test_every_target_is_made_of_recipes_that_exist(tmp_path: Path) -> None:
    counts = {name: len(jobs(name, tmp_path)) for name in TARGETS}
    assert counts == {"table1": 16, "table2": 10, "table3": 12, "figure1": 12, "figure2": 16}


def test_table_2_varies_m_of_the_papers_recipe(tmp_path: Path) -> None:
    made = jobs("table2", tmp_path)
    assert [job.run.m for job in made] == list(range(10, 101, 10))
    assert {replace(job.run, m=50) for job in made} == {recipes.get("mnist/ig-norm")}
    assert len({job.path for job in made}) == 10
    first, *quick = jobs("table2", tmp_path, kind="tuned")
    assert first.run.method == "madry"
    assert [job.run.m for job in quick] == list(range(10, 101, 10))


def test_tables_and_figures_share_their_runs(tmp_path: Path) -> None:
    paths = {name: {job.path for job in jobs(name, tmp_path, datasets=["mnist"])} for name in TARGETS}
    assert paths["table3"] < paths["table1"] == paths["figure2"]
    assert paths["figure1"] < paths["table1"]


def test_a_job_asks_for_no_more_examples_than_there_are(tmp_path: Path) -> None:
    assert {job.examples for job in jobs("table1", tmp_path, datasets=["flower"], examples=1000)} == {136}
    assert {job.examples for job in jobs("table1", tmp_path, datasets=["mnist"])} == {10_000}


def test_mistakes_are_answered_with_what_is_right(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="did you mean 'table1'"):
        jobs("tabel1", tmp_path)
    with pytest.raises(InvalidInput, match="mnist"):
        jobs("table1", tmp_path, datasets=["mnits"])
    with pytest.raises(InvalidInput, match="paper or tuned"):
        jobs("table1", tmp_path, kind="quick")


@pytest.mark.parametrize("dataset", ["mnist", "fashion-mnist", "gtsrb", "flower"])
@pytest.mark.parametrize("method", ["natural", "madry", "ig-norm", "ig-sum-norm"])
def test_a_tuned_recipe_keeps_the_problem_and_cuts_the_work(dataset: str, method: str) -> None:
    run, quick = (recipes.get(f"{dataset}/{method}{form}") for form in ("", "-tuned"))
    assert (quick.method, quick.norm, quick.dataset) == (run.method, run.norm, run.dataset)
    assert quick.eps == (0.075 if (dataset, method) == ("fashion-mnist", "madry") else run.eps)
    if method != "natural":
        assert quick.attack_steps * quick.step_size == pytest.approx(2 * quick.eps, rel=2e-3)
    assert quick.recipe == f"{dataset}/{method}-tuned"
    if run.second_order:
        cost, whole = (r.steps * r.batch * r.second_order for r in (quick, run))
        assert 20 * cost <= whole
    made = jobs("table1", Path("x"), datasets=[dataset], kind="tuned")
    assert [replace(job.run, warm_start=quick.warm_start) for job in made].count(quick) == 1


@pytest.mark.parametrize("dataset", ["mnist", "fashion-mnist", "gtsrb", "flower"])
def test_tuned_ig_recipes_start_from_madry_of_the_same_seed(dataset: str) -> None:
    run = replace(recipes.get(f"{dataset}/ig-norm-tuned"), seed=3, precision="fp32")
    first = recipes.before(run)
    assert first == replace(recipes.get(f"{dataset}/madry-tuned"), seed=3, precision="fp32")
    assert recipes.before(first) is None
    blind = recipes.before(replace(run, full=False))
    assert blind is not None
    assert not blind.full, "what starts from it is compared on the validation split"
    assert recipes.before(replace(run, warm_start=f"{dataset}/madry")) is None, "not a tuned recipe"
    made = jobs("figure1", Path("x"), datasets=[dataset], kind="tuned", seed=3)
    assert [(job.run.method, job.examples > 0) for job in made] == [
        ("natural", True),
        ("madry", False),
        ("ig-norm", True),
        ("ig-sum-norm", True),
    ]
    one_piece = dataset == "fashion-mnist"  # of IG-SUM-NORM
    assert [job.starts_from(made[1]) for job in made] == [False, False, True, not one_piece]
    whole = jobs("table1", Path("x"), datasets=[dataset], kind="tuned", seed=3)
    assert [job.path for job in whole] == [job.path for job in made]
    assert all(job.examples for job in whole)


@pytest.fixture
def chained(monkeypatch: pytest.MonkeyPatch, tiny: None) -> None:
    """IG-SUM-NORM of the embedded set starts from NATURAL of the same seed."""
    base = replace(recipes.get("fashion-mini/natural"), steps=3)

    def before(run: recipes.Run) -> recipes.Run | None:
        named = run.method == "ig-sum-norm" and not run.warm_start
        return replace(base, recipe="fashion-mini/first", seed=run.seed) if named else None

    monkeypatch.setattr(recipes, "before", before)
    monkeypatch.setitem(TARGETS, "table1", replace(TARGETS["table1"], methods=("ig-sum-norm",)))


@pytest.mark.usefixtures("chained")
def test_what_others_start_from_is_trained_before_them_and_not_shown(tmp_path: Path) -> None:
    made = jobs("table1", tmp_path / "t", datasets=["fashion-mini"], examples=4)
    assert run_parallel(made, workers=2, device="cpu") is None
    first, later = (json.loads((job.path / "config.json").read_text()) for job in made)
    assert later["warm_start"] == made[0].path.as_posix()
    assert (first["steps"], later["steps"]) == (3, 12)
    assert not (made[0].path / "records").exists()
    assert [run.method for run in plan.results(made)] == ["ig-sum-norm"]
    assert [step.kind for step in plan.steps(made)] == ["train", "train", "evaluate"]
    assert all(step.done for step in plan.steps(made))


@pytest.mark.usefixtures("chained")
def test_a_sweep_over_seeds_starts_each_from_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["sweep", "fashion-mini/ig-sum-norm", "--over", "seed=4,5", "--examples", "0", "--device", "cpu"]
    done = CliRunner().invoke(app, [*words, "--out", "s"])
    assert done.exit_code == 0, done.output
    starts = [json.loads(Path(f"s/seed={n}/config.json").read_text())["warm_start"] for n in (4, 5)]
    assert starts == [f"runs/fashion-mini/first-seed{n}" for n in (4, 5)]
    assert [json.loads((Path(p) / "config.json").read_text())["seed"] for p in starts] == [4, 5]


@pytest.mark.usefixtures("chained")
def test_train_makes_what_it_starts_from_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["train", "fashion-mini/ig-sum-norm", "--device", "cpu"]
    done = CliRunner().invoke(app, [*words, "--out", "a"])
    assert done.exit_code == 0, done.output
    assert "starts from fashion-mini/first, which is trained first" in done.output
    start = Path("runs/fashion-mini/first-seed0")
    assert json.loads(Path("a/config.json").read_text())["warm_start"] == start.as_posix()
    weights = load_file(start / "model.safetensors")
    kept = start.stat().st_mtime_ns
    again = CliRunner().invoke(app, [*words, "--out", "b", "--set", "lr=1e-30", "--set", "steps=1"])
    assert again.exit_code == 0, again.output
    assert "trained first" not in again.output
    assert start.stat().st_mtime_ns == kept
    for name, value in load_file("b/model.safetensors").items():
        torch.testing.assert_close(value, weights[name], rtol=0, atol=1e-12)
    shutil.rmtree(start)
    resumed = CliRunner().invoke(app, [*words, "--out", "a", "--resume"])
    assert resumed.exit_code == 0, resumed.output
    assert not start.exists(), "a run that has begun does not need what it started from"
    monkeypatch.setenv("WORLD_SIZE", "2")
    fixed = _started(replace(recipes.get("fashion-mini/ig-sum-norm"), seed=9), device="cpu", data_dir=None)
    assert fixed.warm_start == "runs/fashion-mini/first-seed9", "several processes look for it, and do not train it"
    assert not Path(fixed.warm_start).exists()


def test_a_run_that_names_a_recipe_from_python_is_told_what_to_do(tmp_path: Path) -> None:
    run = replace(recipes.get("fashion-mini/natural"), warm_start="mnist/madry-tuned", steps=1)
    with pytest.raises(CheckpointError, match=r"no weights to start from: .*Train that run first"):
        train(run, tmp_path / "run", device="cpu")


def test_seeds_and_protocols_share_what_they_can(tmp_path: Path) -> None:
    plain, other, strict = (
        jobs("table1", tmp_path, datasets=["mnist"], seed=seed, protocol=protocol)[0]
        for seed, protocol in ((0, "paper"), (1, "paper"), (0, "strict"))
    )
    assert plain.path == strict.path != other.path
    assert (plain.run, other.run.seed) == (strict.run, 1)
    many, few = (
        estimate.seconds_to_evaluate(replace(job, examples=8, run=replace(job.run, dataset="fashion-mini")), "cpu")
        for job in (strict, plain)
    )
    assert many > 2 * few
    with pytest.raises(InvalidInput, match="did you mean 'strict'"):
        jobs("table1", tmp_path, protocol="strct")


@pytest.mark.usefixtures("tiny")
def test_a_strict_table_from_the_runs_of_the_first(tmp_path: Path) -> None:
    def reproduce(*words: str) -> str:
        arguments = [
            "reproduce",
            "table1",
            "--datasets",
            "fashion-mini",
            "--examples",
            "6",
            "-o",
            str(tmp_path),
            *words,
        ]
        return CliRunner().invoke(app, [*arguments, "--device", "cpu"], catch_exceptions=False).output

    assert "done before" not in reproduce("--workers", "2")
    strict = reproduce("--protocol", "strict")
    assert strict.count("done before") == 2  # the trainings
    assert "strict protocol" in (tmp_path / "table1-strict" / "table.md").read_text(encoding="utf-8")
    names = sorted(path.name for path in (tmp_path / "fashion-mini" / "natural" / "records").glob("*.json"))
    assert names == ["paper-ig.json", "strict-ig.json"]


class Counted(nn.Module):
    """Counts the images that it sees: the clock of the estimates in these tests."""

    seen = 0

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))

    def forward(self, x: Tensor) -> Tensor:
        Counted.seen += len(x)
        return self.net(x)


@pytest.fixture
def counting_clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(estimate.models, "for_dataset", lambda _: Counted())
    monkeypatch.setattr(estimate.time, "perf_counter", lambda: float(Counted.seen))
    monkeypatch.setattr(estimate, "LONG", float("inf"))  # time the whole batch
    for cached in (estimate._training_step, estimate._attack_iteration):
        cached.cache_clear()
    yield
    for cached in (estimate._training_step, estimate._attack_iteration):
        cached.cache_clear()


@pytest.mark.usefixtures("counting_clock")
@pytest.mark.parametrize("method", ["natural", "madry", "ig-norm", "ig-sum-norm"])
def test_the_estimate_of_a_training_counts_what_its_steps_compute(method: str, tmp_path: Path) -> None:
    run = replace(recipes.get(f"fashion-mini/{method}"), batch=4, attack_steps=5)
    Counted.seen = 0
    run.objective((0.0, 1.0))(Counted(), torch.rand(4, 1, 28, 28), torch.arange(4)).value.sum().backward()
    one_step = Counted.seen
    assert estimate.seconds_to_train(Job(run, tmp_path, "ig", 10), "cpu") == pytest.approx(run.steps * one_step)


@pytest.mark.usefixtures("counting_clock")
def test_the_estimate_of_an_evaluation_counts_what_its_attacks_compute(tmp_path: Path) -> None:
    paper, net = protocol.paper("fashion-mini"), Counted()

    def images(steps: int) -> int:
        Counted.seen = 0
        x, map = torch.rand(2, 1, 28, 28), integrated_gradients(paper.N)
        IFIA(net, paper.eps, paper.alpha, steps, k=paper.k, map=map)(x, torch.arange(2))
        return Counted.seen

    iteration = (images(4) - images(2)) / (2 * 2)  # of one example
    job = Job(recipes.get("fashion-mini/ig-norm"), tmp_path, "ig", 10)
    expected = 10 * paper.repeats * paper.steps * iteration
    assert estimate.seconds_to_evaluate(job, "cpu") == pytest.approx(expected)
    assert estimate.seconds_to_evaluate(replace(job, protocol="strict"), "cpu") == pytest.approx(expected * 10 / 3)


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.2, "0 s"), (90, "90 s"), (150, "2.5 min"), (9000, "2.5 h"), (864000, "10 days")]
)
def test_durations_in_words(seconds: float, said: str) -> None:
    assert estimate.words(seconds) == said


@pytest.mark.usefixtures("tiny")
def test_the_demo_runs_and_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    def demo(*words: str) -> str:
        arguments = ["demo", "--out", str(tmp_path), "--examples", "12", "--workers", "1", *words]
        return CliRunner().invoke(app, arguments, catch_exceptions=False).output

    first = demo()
    assert "4/4 evaluate fashion-mini/ig-sum-norm (12 examples)" in first
    assert "On fashion-mini" in first
    assert "this many examples do not settle" in " ".join(first.split())
    assert (tmp_path / "report.html").read_text(encoding="utf-8").count("IG-SUM-NORM") > 1
    weights = tmp_path / "fashion-mini" / "natural" / "model.safetensors"
    before = weights.stat().st_mtime_ns
    again = demo()
    assert again.count("done before") == 4
    assert weights.stat().st_mtime_ns == before
    weights.unlink()
    assert demo("--dry-run").count("about") == 3  # train, evaluate, and the sum
    assert not weights.exists()
    assert demo().count("done before") == 2
    assert weights.exists()


@pytest.mark.usefixtures("tiny")
def test_more_examples_are_an_evaluation_not_done_yet(tmp_path: Path) -> None:
    job = jobs("table1", tmp_path, datasets=["fashion-mini"], examples=12)[0]
    assert [step.done for step in plan.steps([job])] == [False, False]
    stopped = plan.carry_out(plan.steps([job]), say=lambda text: None, bar=_no_bar, device="cpu")
    assert stopped is None
    assert [step.done for step in plan.steps([job])] == [True, True]
    assert [step.done for step in plan.steps([replace(job, examples=13)])] == [True, False]


@pytest.mark.usefixtures("tiny")
def test_jobs_side_by_side_leave_what_jobs_in_turn_leave(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)  # a thread for each worker: rounding follows threads
    made = jobs("table1", tmp_path, datasets=["fashion-mini"], examples=12)
    assert run_parallel(made, workers=2, device="cpu") is None
    assert all(step.done for step in plan.steps(made))
    lines = capfd.readouterr().err.splitlines()
    for method in ("natural", "ig-sum-norm"):
        assert any(line.startswith(method) and "attacked 12 of 12 images" in line for line in lines)
    alone = replace(made[0], path=tmp_path / "alone")
    assert run_parallel([alone], workers=2, device="cpu") is None
    weights = [(job.path / "model.safetensors").read_bytes() for job in (made[0], alone)]
    assert weights[0] == weights[1]


@pytest.mark.usefixtures("tiny")
def test_a_folder_with_another_run_is_refused(tmp_path: Path) -> None:
    job = jobs("table1", tmp_path, datasets=["fashion-mini"], examples=3)[0]
    job.path.mkdir(parents=True)
    (job.path / "config.json").write_text(json.dumps({**job.run.as_dict(), "lr": 0.5}))
    with pytest.raises(CheckpointError, match=r"lr is .*, was 0\.5.*--out"):
        plan.steps([job])


@pytest.mark.usefixtures("tiny")
def test_an_evaluation_that_is_interrupted_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Job, "evaluate", interrupted)
    done = CliRunner().invoke(app, ["demo", "--out", str(tmp_path), "--examples", "3", "--workers", "1"])
    assert done.exit_code == 130
    assert "stopped during: evaluate fashion-mini/natural (3 examples); start the same command again" in done.output


@contextmanager
def _no_bar(title: str) -> Iterator[Progress]:
    yield lambda done, total: None


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_stops_all_processes_and_says_how_to_go_on(tmp_path: Path, times: int) -> None:
    """A terminal sends the signal to the whole group: the program and its workers. The impatient send it again."""
    words = [sys.executable, "-m", "robattr", "demo", "--examples", "6", "--workers", "2", "-o", str(tmp_path)]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "step 50/600" in line:
                break
        for _ in range(times):
            os.killpg(process.pid, signal.SIGINT)
            time.sleep(0.05)
        try:
            rest = process.communicate(timeout=60)[1]
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 130
    assert "start the same command again to continue" in rest
    assert "Traceback" not in rest
    assert list(tmp_path.glob("fashion-mini/*/checkpoints/*.pt"))
    assert len(list(tmp_path.glob("fashion-mini/*/config.json"))) == 2  # no other job began
