"""The results page: the bar on hand-made numbers, every section, escaping, and stability."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fake_runs import METHODS, write_run
from robattr.cli import app
from robattr.reporting.acceptance import Criterion, bar
from robattr.reporting.export import write_records
from robattr.reporting.figures import write_figures
from robattr.reporting.record import measured_on
from robattr.reporting.results import results, write_results
from robattr.reporting.runs import APPROACHES, Evaluation, RunResults, groups, read_runs
from robattr.reporting.training import Training

BEATS_NATURAL, BEATS_MADRY, REACHES, YARDSTICK, EXAMPLES, SEEDS, STRICT = range(7)


def model(
    method: str,
    topk: float,
    kendall: float,
    *,
    dataset: str = "mnist",
    nat: float = 0.985,
    adv: float = 0.9,
    half: float = 0.01,
    protocol: str = "paper",
    map_name: str = "ig",
    examples: int = 1000,
    first: int = 0,
    variant: str = "",
    **config: Any,
) -> RunResults:
    """A run with one evaluation whose columns are these, each ± half."""
    values = {"nat_acc": nat, "adv_acc": adv, "topk": topk, "kendall": kendall, "noise_topk": 0.9, "noise_kendall": 0.8}
    columns = {key: {"value": v, "low": v - half, "high": v + half} for key, v in values.items()}
    summary = {"protocol": protocol, "map": map_name, "columns": columns, "never_kept": 0.25, "settings": {"k": 100}}
    records = tuple(
        {"id": i, "kept": i % 4 > 0, "topk": topk, "kendall": kendall} for i in range(first, first + examples)
    )
    path = Path(f"results/{dataset}-{method}")
    evaluation = Evaluation(summary, records, None, path.with_suffix(".json"))
    config = {"dataset": dataset, "method": method, "seed": 0, **config}
    return RunResults(APPROACHES[method], variant or method, path, config, {}, (), Training(), (evaluation,))


def judged(runs: Iterable[RunResults], dataset: str = "mnist") -> tuple[Criterion, ...]:
    return bar(dataset, groups(runs))


NATURAL, MADRY = model("natural", 0.46, 0.18), model("madry", 0.62, 0.24)


def test_a_cleared_bar() -> None:
    demands = judged([NATURAL, MADRY, model("ig-sum-norm", 0.73, 0.32)])
    assert [demand.met for demand in demands[:5]] == [True] * 5
    assert "TopK Inter. 73.00% against 46.00% (+27.00 points)" in demands[BEATS_NATURAL].detail
    assert "Rank Corr. 0.3200 against 0.1800 (+0.1400)" in demands[BEATS_NATURAL].detail
    assert "between the intervals: TopK Inter. +25.00 points, Rank Corr. +0.1200" in demands[BEATS_NATURAL].detail
    assert demands[REACHES].detail == "IG-SUM-NORM"
    assert "72.45%, Rank Corr. 0.3111, Nat Acc. 97.67%, Adv Acc. 88.17%" in demands[REACHES].text


def test_a_missed_bar_says_by_how_much() -> None:
    demands = judged([NATURAL, MADRY, model("ig-sum-norm", 0.70, 0.23, adv=0.80)])
    assert demands[BEATS_NATURAL].met is True
    assert demands[BEATS_MADRY].answer == "no"
    assert "Rank Corr. 0.2300 against 0.2400 (-0.0100)" in demands[BEATS_MADRY].detail
    assert demands[REACHES].met is False
    # IG-SUM-NORM falls 8.17 points of accuracy short; Madry's net 10.45 points of top-k.
    assert demands[REACHES].detail == (
        "closest is IG-SUM-NORM: TopK Inter. -2.45 points, Rank Corr. -0.0811, Adv Acc. -8.17 points"
    )


def test_the_papers_numbers_are_rounded() -> None:
    level = {"dataset": "flower", "nat": 116 / 136, "adv": 64 / 136, "examples": 136}
    assert judged([model("ig-sum-norm", 0.6633, 0.7974, **level)], "flower")[REACHES].met is True  # type: ignore[arg-type]
    assert judged([model("ig-sum-norm", 0.6632, 0.7974, **level)], "flower")[REACHES].met is False  # type: ignore[arg-type]


def test_overlapping_intervals_do_not_beat_natural() -> None:
    demands = judged([NATURAL, model("ig-sum-norm", 0.73, 0.19)])
    assert demands[BEATS_NATURAL].met is False
    assert "Rank Corr. -0.0100" in demands[BEATS_NATURAL].detail.partition("between")[2]


def test_what_is_not_measured_is_said() -> None:
    assert [demand.met for demand in judged([NATURAL], "gtsrb")] == [None] * 7
    demands = judged([NATURAL])
    assert demands[BEATS_NATURAL].answer == "not measured yet"
    assert demands[BEATS_NATURAL].detail == "no record of IG-SUM-NORM"
    assert demands[BEATS_MADRY].detail == "no record of IG-SUM-NORM or of Madry et al."
    other = judged([NATURAL, model("ig-sum-norm", 0.73, 0.32, examples=500)])
    assert other[BEATS_NATURAL].met is None
    assert "same examples" in other[BEATS_NATURAL].detail
    assert other[EXAMPLES].met is False
    assert other[EXAMPLES].detail == "500, 1,000 examples, not the same for all rows"


def test_of_several_seeds_the_lowest_counts_and_of_several_variants_the_best() -> None:
    seeds = [model("ig-sum-norm", topk, 0.32, seed=seed) for seed, topk in enumerate((0.73, 0.50))]
    demands = judged([NATURAL, MADRY, *seeds])
    assert demands[BEATS_NATURAL].met is True
    assert "50.00% against 46.00%" in demands[BEATS_NATURAL].detail
    assert "the lowest of 2 against the highest of 1" in demands[BEATS_NATURAL].detail
    assert demands[BEATS_MADRY].met is False
    wide = model("ig-sum-norm", 0.80, 0.40, variant="wide")
    assert judged([NATURAL, MADRY, *seeds, wide])[BEATS_MADRY].met is True


def test_headline_rows_need_two_seeds() -> None:
    short, clear = (0.70, 0.30), (0.73, 0.32)
    pairs = [("natural", (0.4, 0.1)), ("madry", (0.6, 0.2)), ("ig-sum-norm", short)]
    both = [model(method, *scores, seed=seed) for method, scores in pairs for seed in (0, 1)]
    assert judged(both[1:])[SEEDS].met is False
    assert judged(both[1:])[SEEDS].detail == "NATURAL 1, Madry et al. 2, IG-SUM-NORM 2"
    assert judged(both)[SEEDS].met is True
    lone = judged([*both, model("ig-norm", *clear)])[SEEDS]
    assert (lone.met, lone.detail) == (False, "NATURAL 2, Madry et al. 2, IG-SUM-NORM 2, IG-NORM 1")
    assert lone.text.endswith("NATURAL, Madry et al., IG-SUM-NORM, IG-NORM")
    other = [*both, model("ig-norm", *clear), model("ig-sum-norm", *clear, seed=2)]
    assert judged(other)[SEEDS].met is True, "a method that is compared clears the bar as well"
    assert judged([])[SEEDS].met is None


def test_a_yardstick_that_flatters_is_seen() -> None:
    demand = judged([model("natural", 0.50, 0.18), MADRY])[YARDSTICK]
    assert demand.met is False
    assert demand.detail == "NATURAL TopK Inter. +3.39 points"
    fine = judged([NATURAL, MADRY])[YARDSTICK]
    assert fine.met is True
    assert fine.detail == "Madry et al. TopK Inter. -0.56 points, NATURAL Rank Corr. +0.0042"
    ours = model("natural", 0.60, 0.30, model="avgpool_cnn")
    assert judged([NATURAL, MADRY, ours])[YARDSTICK] == fine, "another network tells nothing of the attack"
    assert judged([ours])[YARDSTICK].met is None


def test_strict_must_hold_as_well() -> None:
    paper = [NATURAL, model("ig-sum-norm", 0.73, 0.32)]
    assert judged(paper)[STRICT].met is None
    strict = [model("natural", 0.2, 0.1, protocol="strict"), model("ig-sum-norm", 0.6, 0.05, protocol="strict")]
    assert judged([*paper, strict[1]])[STRICT].detail == "no record of NATURAL under strict"
    assert judged([*paper, *strict])[STRICT].met is False
    assert judged([*paper, *strict])[STRICT].detail.endswith("; the 1,000 examples of both")


def test_strict_is_judged_on_the_examples_of_both() -> None:
    ours = model("ig-sum-norm", 0.6, 0.05, protocol="strict")
    (evaluation,) = ours.evaluations
    harder = [{**r, "kendall": 0.09} if r["id"] < 100 else r for r in evaluation.records]
    harder[7] = {**harder[7], "topk": None, "kendall": None, "kept": None}
    ours = replace(ours, evaluations=(replace(evaluation, records=tuple(harder)),))
    fewer = model("natural", 0.2, 0.07, protocol="strict", examples=100)
    demand = judged([ours, fewer])[STRICT]
    assert demand.met is True
    assert "Rank Corr. 0.0900 against 0.0700 (+0.0200); the 99 examples of both" in demand.detail
    for other in (model("natural", 0.2, 0.01, protocol="strict", examples=100, first=1000), _unscored(fewer)):
        assert judged([ours, other])[STRICT].detail == "not measured on the same examples"


def _unscored(run: RunResults) -> RunResults:
    """The run without any score."""
    (evaluation,) = run.evaluations
    lone = [{"id": i, "kept": None} for i in range(100)]
    return replace(run, evaluations=(replace(evaluation, records=tuple(lone)),))


def section(text: str, title: str) -> str:
    found = re.search(rf"^## {re.escape(title)}.*?(?=^## |\Z)", text, flags=re.S | re.M)
    assert found, title
    return found.group()


def test_every_section() -> None:
    end = Training(lines=7, loss=0.05, penalty=0.4, ig=0.25, val_accuracy=0.99)
    regularised = replace(model("ig-norm", 0.7, 0.3, m=10, weight=1.0), training=end)
    stronger = replace(
        NATURAL, evaluations=(*model("natural", 0.3, 0.1, protocol="strict").evaluations, *NATURAL.evaluations)
    )
    stronger.evaluations[0].summary["alarms"] = ["noise beats the attack"]  # type: ignore[index]
    sg = model("madry", 0.48, 0.25, map_name="sg")
    text = results(
        [stronger, sg, regularised], command="robattr report results -o docs/results.md", notes="# Mine\n*x*"
    )
    assert "`robattr report results -o docs/results.md`" in text
    assert "### gtsrb\n\nNot measured yet." in section(text, "The bar")
    first = section(text, "Integrated gradients")
    assert "46.00% [45.0, 47.0]<br>paper 46.61%" in first
    assert "| 25.00% |" in first
    assert "paper 71.36%" in first  # IG-NORM beside table 1, not beside ten right ends
    assert "paper 47.95%" in section(text, "Simple gradient")
    assert "Not measured yet." in section(text, "IG-NORM on MNIST over m")
    rows = [line for line in section(text, "Stronger attacks").splitlines() if line.startswith("| mnist")]
    assert ["paper" in rows[0], "strict" in rows[1], len(rows)] == [True, True, 2]
    assert "| 90.00% [89.0, 91.0] | 0.8000 [0.790, 0.810] | 250 of 1,000 |" in rows[1]
    assert "- mnist · strict protocol · ig maps, NATURAL: noise beats the attack" in section(text, "Stronger attacks")
    assert "| mnist | IG-NORM | 1 | 0.05 | 0.25 | 5 | 99.00% | 7 |" in section(text, "How effective")
    assert "\n# Mine\n*x*\n" in section(text, "What was tried") + text


def test_the_table_over_m_stands_beside_the_papers(tmp_path: Path) -> None:
    runs = [replace(model("ig-norm", 0.6, 0.2, m=m), name=f"IG-NORM, m = {m}") for m in (10, 20)]
    text = results([*runs, model("ig-sum-norm", 0.7, 0.3, m=20)], command="x")
    over = section(text, "IG-NORM on MNIST over m")
    assert "paper 67.14%" in over
    assert "paper 70.78%" in over
    first = section(text, "Integrated gradients")
    assert "m = 10" not in first
    assert "paper 71.36%" in first


def test_of_several_m_the_one_measured_on_most_examples_is_a_row() -> None:
    sweep = [replace(model("ig-norm", 0.6, 0.2, m=m, examples=200), name=f"IG-NORM, m = {m}") for m in (10, 50)]
    row = replace(model("ig-norm", 0.7, 0.3, m=5), name="IG-NORM, m = 5")
    text = results([*sweep, row, model("ig-sum-norm", 0.7, 0.3, m=3)], command="x")
    first = section(text, "Integrated gradients")
    assert "m = 5 |" in first
    assert "m = 10" not in first
    assert "m = 50" not in first
    assert "mnist 1,000." in first
    assert judged([*sweep, row])[EXAMPLES].met
    over = section(text, "IG-NORM on MNIST over m")
    assert all(f"m = {m}, {count} examples |" in over for m, count in ((5, "1,000"), (10, "200"), (50, "200")))


def test_of_several_m_measured_alike_the_longest_training_is_a_row() -> None:
    runs = [replace(model("ig-norm", 0.6, 0.2, m=m, steps=600), name=f"IG-NORM, m = {m}") for m in (10, 50)]
    row = replace(model("ig-norm", 0.7, 0.3, m=5, steps=2000), name="IG-NORM, m = 5")
    first = section(results([*runs, row], command="x"), "Integrated gradients")
    assert "m = 5 |" in first
    assert "m = 50" not in first


def test_an_evaluation_on_another_dataset_is_not_a_row_of_the_models_own(tmp_path: Path) -> None:
    run = write_run(tmp_path, "natural", dataset="fashion-mnist")
    config = run / "config.json"
    config.write_text(config.read_text(encoding="utf-8").replace('"fashion-mnist"', '"fashion-mini"'), encoding="utf-8")
    text = results(read_runs([run]), command="x")
    table = section(text, "Integrated gradients")
    assert "| fashion-mnist | NATURAL, trained on fashion-mini |" in table
    assert "| fashion-mini |" not in table
    made = [path.name for path, _ in write_records(read_runs([run]), tmp_path / "kept")]
    assert "fashion-mnist-natural-from-fashion-mini-seed0-paper-ig.json" in made


@pytest.mark.parametrize(
    ("trained", "measured", "found"),
    [
        ("mnist", "mnist", ("mnist", False)),
        ("mnist", "gtsrb", ("gtsrb", True)),
        ("photos/cats", "cats", ("photos/cats", False)),
        ("photos/mnist", "folder mnist", ("folder mnist", False)),
        ("mnist", "folder mnist", ("folder mnist", False)),  # as a record keeps an absolute path
        ("photos/mnist", "mnist", ("mnist", True)),
    ],
)
def test_what_an_evaluation_is_of(trained: str, measured: str, found: tuple[str, bool]) -> None:
    assert measured_on({"dataset": trained}, {"dataset": measured}) == found


def test_foreign_words_stay_text() -> None:
    hostile = replace(
        model("natural", 0.4, 0.1, dataset="<b>|`x`\n# y"),
        name="a|b<script>",
        environment={"command": "a\n# b /srv/x"},
    )
    text = results([hostile], command="x")
    assert "<b>" not in text.replace("\\<b\\>", "")
    assert "<script>" not in text.replace("\\<script\\>", "")
    assert "    a # b x" in text
    assert not re.search(r"^# y", text, flags=re.M)
    rows = [line for line in text.splitlines() if line.startswith("| ") and "script" in line]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in rows} == {8, 11}


def test_a_continued_evaluation_says_what_its_seconds_are_of() -> None:
    run = model("natural", 0.5, 0.2)
    summary = {**run.evaluations[0].summary, "seconds": 12.0, "earlier": 480}
    later = replace(run, evaluations=(replace(run.evaluations[0], summary=summary),))
    assert "12 s for the last 520 |" in section(results([later], command="x"), "Provenance")


def test_the_page_from_records_is_stable_and_links_lead_somewhere(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    runs = [write_run(Path("runs"), method, dataset="mnist") for method in METHODS]
    write_records(read_runs(runs), "results")
    write_figures(read_runs(["results"]), "docs/figures", formats=("png",), rows=2)
    Path("results/notes.md").write_text("Ramps of ε were tried, too.\n", encoding="utf-8")
    arguments = ["report", "results", "-o", "docs/results.md"]
    made = []
    for _ in range(2):
        done = CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert done.exit_code == 0
        made.append(Path("docs/results.md").read_text(encoding="utf-8"))
    assert made[0] == made[1]
    assert "Rendered by `robattr report results -o docs/results.md`" in made[0]
    links = re.findall(r"\]\(([^)]+)\)", made[0])
    assert "figures/figure1.png" in links
    assert "../results/mnist-natural-seed0-paper-ig.json" in links
    assert all((Path("docs") / link).is_file() for link in links)
    assert "Ramps of ε were tried, too." in section(made[0], "What was tried")
    assert str(tmp_path) not in made[0]


def test_absolute_paths_are_not_published(tmp_path: Path) -> None:
    run = write_run(tmp_path, "natural")
    text = write_results(read_runs([run]), tmp_path / "page.md", command=f"robattr report {run} -o page.md").read_text()
    assert str(tmp_path) not in text
    assert "paper-ig.json |" in text


@pytest.mark.parametrize("method", METHODS)
def test_a_lone_row_is_a_page(tmp_path: Path, method: str) -> None:
    run = write_run(tmp_path, method, gallery=False, dataset="flower")
    assert "not measured yet" in results(read_runs([run]), command="x")
