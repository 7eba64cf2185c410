"""Plans: the jobs of a table, what is done, what is left, and how long it takes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from robattr import models, recipes
from robattr._progress import Watching
from robattr.attacks import integrated_gradients
from robattr.errors import CheckpointError, InvalidInput
from robattr.evaluation import evaluate
from robattr.evaluation.cost import SECOND_ORDER
from robattr.evaluation.protocol import paper
from robattr.reproduce import TARGETS, Job, jobs, plan, tasks


def test_every_target_is_made_of_recipes_that_exist(tmp_path: Path) -> None:
    counts = {name: len(jobs(name, tmp_path)) for name in TARGETS}
    assert counts == {"table1": 16, "table2": 10, "table3": 12, "figure1": 12, "figure2": 16}


def test_what_is_named_twice_is_made_once(tmp_path: Path) -> None:
    made = jobs("table1", tmp_path, datasets=["mnist", "mnist"], objectives=["natural", "madry", "natural"])
    assert [job.run.method for job in made] == ["natural", "madry"]


def test_table_2_varies_m_of_the_papers_recipe(tmp_path: Path) -> None:
    made = jobs("table2", tmp_path)
    assert [job.run.m for job in made] == list(range(10, 101, 10))
    assert {replace(job.run, m=50) for job in made} == {recipes.get("mnist/ig-norm")}
    assert len({job.path for job in made}) == 10
    first, *quick = jobs("table2", tmp_path, kind="tuned")
    assert first.run.method == "madry"
    assert [job.run.m for job in quick] == list(range(10, 101, 10))


def test_a_changed_setting_reaches_the_runs_whose_objective_has_it(tmp_path: Path) -> None:
    changes = ["precision=bf16", "rule=radau", "m=10", "m_attack=3"]
    made = jobs("table1", tmp_path, datasets=["mnist"], changes=changes)
    assert {job.run.precision for job in made} == {"bf16"}
    found = {job.run.method: (job.run.rule, job.run.m, job.run.m_attack) for job in made}
    plain, fewer = ("right", 50, 10), ("radau", 10, 3)
    assert found == {"natural": plain, "madry": plain, "ig-norm": fewer, "ig-sum-norm": fewer}


def test_a_changed_setting_reaches_the_runs_that_others_start_from(tmp_path: Path) -> None:
    made = jobs("figure1", tmp_path, datasets=["mnist"], kind="tuned", changes=["steps=10"])
    assert len(made) > len({job.run.method for job in jobs("figure1", tmp_path, datasets=["mnist"])})
    assert {job.run.steps for job in made} == {10}


def test_a_ramp_of_what_an_objective_has_not_is_left_out(tmp_path: Path) -> None:
    made = jobs("table1", tmp_path, datasets=["mnist"], changes=["weight_ramp=0,100"])
    ramps = {job.run.method: job.run.weight_ramp for job in made}
    assert ramps == {"natural": (), "madry": (), "ig-norm": (0, 100), "ig-sum-norm": (0, 100)}


@pytest.mark.parametrize(
    ("target", "word", "said"),
    [
        ("table1", "method=madry", "cannot set method"),
        ("table1", "dataset=gtsrb", "cannot set dataset"),
        ("table1", "seed=1", "cannot set seed"),
        ("table2", "m=10", "cannot set m, which table2"),
        ("table1", "presicion=bf16", "unknown key 'presicion'.*precision"),
    ],
)
def test_what_the_target_decides_cannot_be_changed(tmp_path: Path, target: str, word: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        jobs(target, tmp_path, changes=[word])


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


def test_seeds_and_protocols_share_what_they_can(tmp_path: Path) -> None:
    plain, other, strict = (
        jobs("table1", tmp_path, datasets=["mnist"], seed=seed, protocol=protocol)[0]
        for seed, protocol in ((0, "paper"), (1, "paper"), (0, "strict"))
    )
    assert plain.path == strict.path != other.path
    assert (plain.run, other.run.seed) == (strict.run, 1)
    with pytest.raises(InvalidInput, match="did you mean 'strict'"):
        jobs("table1", tmp_path, protocol="strct")


@pytest.fixture
def one_second_per_gradient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A first-order gradient of one example takes a second, a second-order one four times as long."""
    monkeypatch.setattr("robattr.evaluation.cost.seconds_per_pass", lambda *_: float(SECOND_ORDER))
    plan._timed.cache_clear()
    yield
    plan._timed.cache_clear()


@pytest.mark.usefixtures("one_second_per_gradient")
@pytest.mark.parametrize(
    ("method", "first", "second"),
    [("natural", 1, 0), ("madry", 1 + 5, 0), ("ig-norm", 1 + 5, 5 * 2 + 3), ("ig-sum-norm", 1 + 5, 5 * 2 + 3)],
)
def test_the_estimate_of_a_training_counts_its_gradients(method: str, first: int, second: int, tmp_path: Path) -> None:
    run = replace(recipes.get(f"fashion-mini/{method}"), batch=4, attack_steps=5, m=3, m_attack=2, steps=7)
    seconds = plan.training_seconds(Job(run, tmp_path, "ig", 10), "cpu")
    assert seconds == pytest.approx(7 * 4 * SECOND_ORDER * (first / 2 + second))


@pytest.mark.usefixtures("one_second_per_gradient")
def test_the_estimate_of_an_evaluation_is_that_of_the_evaluation_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = replace(paper("fashion-mini"), steps=2, pgd_steps=1)
    monkeypatch.setattr(plan, "paper", lambda _: small)
    x, y = torch.rand(10, 1, 28, 28), torch.arange(10)
    said: list[tuple[float, str]] = []
    monkeypatch.setattr(Watching, "expect", lambda self, title, seconds, what: said.append((seconds, what)))
    with Watching(shown=False) as watch:
        evaluate(models.small_cnn(), x, y, protocol=small, map=integrated_gradients(small.N), watch=watch)
    seconds = plan.evaluation_seconds(Job(recipes.get("fashion-mini/ig-norm"), tmp_path, "ig", 10), "cpu")
    assert said[0] == (seconds, "10 examples")


def test_the_network_of_a_tuned_recipe_is_timed(tmp_path: Path) -> None:
    for kind, architecture in (("paper", "resnet"), ("tuned", "wide_resnet")):
        job = jobs("table1", tmp_path, datasets=["gtsrb"], kind=kind)[0]
        assert plan._probe(job, "cpu").model.spec.name == architecture


def test_a_folder_with_another_run_is_refused(tmp_path: Path) -> None:
    job = jobs("table1", tmp_path, datasets=["fashion-mini"], examples=3)[0]
    job.path.mkdir(parents=True)
    (job.path / "config.json").write_text(json.dumps({**job.run.as_dict(), "lr": 0.5}))
    with pytest.raises(CheckpointError, match=r"lr is .*, was 0\.5.*--out"):
        tasks([job])
