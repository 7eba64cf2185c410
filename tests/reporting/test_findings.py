"""The headline of a comparison and its cautions, computed from the summaries."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy import stats

from fake_runs import change, fake_results, rescore, write_run
from robattr.reporting.findings import (
    difference,
    differences,
    examples_differ,
    finding,
    groups_differ,
    unlike,
)
from robattr.reporting.groups import group_evaluations
from robattr.reporting.run_results import read_runs


def test_models_with_different_settings_are_not_compared(tmp_path: Path) -> None:
    runs = [write_run(tmp_path, method) for method in ("natural", "ig-norm")]
    file = runs[1] / "records" / "paper-ig.json"
    summary = json.loads(file.read_text())
    for eps, compared in ((summary["settings"]["eps"], True), (0.25, False)):
        file.write_text(json.dumps({**summary, "settings": {**summary["settings"], "eps": eps}}))
        said = finding(group_evaluations(read_runs(runs))[0]).headline
        assert ("those of the IG-NORM model" in said) == compared
    assert re.search(r"measured differently \(eps [\d.]+ and 0\.25\)", said)


def test_the_headline_is_computed_from_the_summaries(runs: list[Path]) -> None:
    said = finding(group_evaluations(read_runs(runs))[0])
    moved, accuracy = {}, []
    for run in (runs[0], runs[-1]):
        columns = json.loads((run / "records" / "paper-ig.json").read_text())["columns"]
        moved[run.name] = f"{100 * (1 - columns['topk']['value']):.0f}%"
        accuracy.append(columns["nat_acc"]["value"])
    assert said.headline.startswith(f"On fashion-mini, the attack replaced {moved['natural']} of the 100")
    assert f"{moved['ig-sum-norm']} of those of the IG-SUM-NORM model" in said.headline
    for words, run in (("random noise of the same size", runs[0]), ("noise", runs[-1])):
        kept = json.loads((run / "records" / "paper-ig.json").read_text())["columns"]["noise_topk"]["value"]
        assert f"({words}: {100 * (1 - kept):.0f}%)" in said.headline
    lower = 100 * (accuracy[0] - accuracy[1])
    assert f"{abs(lower):.1f} points {'lower' if lower > 0 else 'higher'}" in said.headline
    correct = [
        {r["id"]: r["correct"] for r in map(json.loads, (run / "records" / "paper-ig.jsonl").read_text().splitlines())}
        for run in (runs[0], runs[-1])
    ]
    change_in_accuracy = np.mean([correct[1][i] - correct[0][i] for i in correct[0]])
    assert re.fullmatch(
        r"Whether the two models differ in accuracy is not settled: "
        rf"{re.escape(f'{100 * change_in_accuracy:+.2f}')} points \[-[\d.]+, \+[\d.]+\] on the 120 examples of both\.",
        said.cautions[0],
    )
    assert said.cautions[1:] == (
        "NATURAL: on 3% of the attacked examples no attack step kept the prediction: they count as unmoved, which "
        "raises the score.",
    )


def test_the_headline_names_the_highest_mean_and_a_caution_its_equals(tmp_path: Path) -> None:
    """Models are told apart by their differences on the same examples, whose interval may exclude 0 or not."""
    paths = [write_run(tmp_path, method, gallery=False) for method in ("natural", "madry", "ig-sum-norm")]
    for path, value in zip(paths, (0.3, 0.75, 0.74), strict=True):
        rescore(path, value)
    (group,) = group_evaluations(read_runs(paths))
    said = finding(group)
    assert re.search(r"replaced 70% of .* pixels of the NATURAL model .*, and 25% of those of the Madry", said.headline)
    assert not any("Whether Madry et al. keeps more" in caution for caution in said.cautions)  # by 1 point, everywhere
    swing = np.resize([0.5, -0.5, 0.4, -0.4], 120)
    for path, by in zip(paths[1:], (0.0, 1.0), strict=True):
        _shift(path, by * swing)
    (group,) = group_evaluations(read_runs(paths))
    assert re.search(
        r"Whether Madry et al\. keeps more than IG-SUM-NORM is not settled: \+[\d.]+ points \[-[\d.]+, \+[\d.]+\]",
        " ".join(finding(group).cautions),
    )
    rows = {row[0]: row for row in differences(group)}
    assert rows.keys() == {"Madry et al. − NATURAL", "IG-SUM-NORM − NATURAL", "IG-SUM-NORM − Madry et al."}
    assert rows["Madry et al. − NATURAL"][1] == "+45.00 points [+45.00, +45.00]"
    assert rows["IG-SUM-NORM − Madry et al."][1].endswith(", not settled")


def _shift(run: Path, by: np.ndarray) -> None:
    """Change the scores of the examples, and the summary with them."""
    file = run / "records" / "paper-ig.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    moved = ({**r, "topk": r["topk"] and r["topk"] + d} for r, d in zip(rows, by.tolist(), strict=True))
    file.write_text("".join(json.dumps(r) + "\n" for r in moved))
    rescore(run)


def test_a_difference_agrees_with_scipys_bootstrap_of_the_shared_examples(runs: list[Path]) -> None:
    (group,) = group_evaluations(read_runs([runs[0], runs[-1]]))
    first, second = (e for _, e in group.members)
    a, b = ({r["id"]: r["topk"] for r in e.records if r["topk"] is not None} for e in (first, second))
    gaps = [b[i] - a[i] for i in a.keys() & b.keys()]
    found = difference(first, second, "topk")
    assert found.n == len(gaps)
    low, high = stats.bootstrap((gaps,), np.mean, method="percentile", rng=1).confidence_interval
    # Two bootstraps of 10,000 draws: the error of a 2.5% quantile is about 0.027 standard errors of the mean.
    tolerance = 6 * 0.027 * float(np.std(gaps)) / len(gaps) ** 0.5
    assert abs(found.low - low) < tolerance
    assert abs(found.high - high) < tolerance


def test_the_page_says_that_rows_and_tables_have_different_examples_or_protocols(tmp_path: Path) -> None:
    runs = [write_run(tmp_path, method, gallery=False) for method in ("natural", "madry")]
    (group,) = group_evaluations(read_runs(runs))
    counts = [int(e.column("topk")["n"]) for _, e in group.members]
    assert len({*counts}) == 2
    assert examples_differ(group).endswith(f"so each row has its own: from {min(counts)} to {max(counts)}.")
    assert groups_differ([group]) == ""
    strict = replace(group, protocol="strict v2")
    said = groups_differ([group, strict, replace(strict, map_name="sg")])
    assert said.startswith("The tables have different protocols (paper, strict v2) and maps (ig, sg): do not compare")


def test_a_reference_that_keeps_as_much_as_any_is_said_to(tmp_path: Path) -> None:
    paths = [write_run(tmp_path, method, gallery=False) for method in ("natural", "madry")]
    for path in paths:
        rescore(path, 0.5)
    assert finding(group_evaluations(read_runs(paths))[0]).headline.endswith("; no other model keeps more.")
    assert "no other" not in finding(group_evaluations(read_runs(paths[:1]))[0]).headline


def test_models_with_other_examples_are_not_compared(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, "natural") for name in "ab"]
    for run, digest in zip(runs, ("one", "two"), strict=True):
        config = json.loads((run / "config.json").read_text())
        (run / "config.json").write_text(json.dumps({**config, "examples": digest}))
    (group,) = group_evaluations(read_runs(runs))
    assert unlike(group) == ["other examples"]
    assert "measured differently (other examples)" in finding(group).headline


def test_models_whose_examples_have_other_labels_are_not_compared(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, "natural", gallery=False) for name in "ab"]
    file = runs[1] / "records" / "paper-ig.jsonl"
    assert unlike(group_evaluations(read_runs(runs))[0]) == []
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows[0]["label"] += 1
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    rescore(runs[1])
    assert unlike(group_evaluations(read_runs(runs))[0]) == ["other examples"]


def test_the_reference_is_a_model_without_a_regulariser_whatever_the_others_are(tmp_path: Path) -> None:
    for methods, reference, best in (
        (("trades", "natural", "custom"), "NATURAL", "my-rho"),
        (("trades", "custom"), "TRADES", "my-rho"),  # else the most fragile
    ):
        paths = [write_run(tmp_path / reference, method, gallery=False) for method in methods]
        for path, method in zip(paths, methods, strict=True):
            if method == "custom":
                change(path / "config.json", recipe="fashion-mini/my-rho")
            rescore(path, {"custom": 0.9, "natural": 0.5, "trades": 0.4}[method])
        said = finding(group_evaluations(read_runs(paths))[0]).headline
        assert re.search(rf"pixels of the {reference} model \(.*\), and 10% of those of the {best} model", said)


def test_a_hardened_model_is_compared_with_the_one_before(tmp_path: Path) -> None:
    for hardened, ending in ((0.5, "no other model keeps more."), (0.9, "10% of those of the TRADES model")):
        before, after = (write_run(tmp_path / str(hardened), method, gallery=False) for method in ("natural", "trades"))
        change(before / "config.json", method="before", name="Before")
        rescore(before, 0.6)
        rescore(after, hardened)
        said = finding(group_evaluations(read_runs([before, after]))[0]).headline
        assert "replaced 40% of the 100 most important pixels of the Before model" in said
        assert ending in said


def test_of_many_models_the_best_is_compared_with_those_next_to_it(monkeypatch) -> None:
    monkeypatch.setattr("robattr.reporting.findings.MOST_RIVALS", 2)
    scores = [0.3 + 0.01 * number for number in range(6)]  # 15 pairs, more than are shown
    runs = [fake_results("madry", topk, 0.5, variant=f"v{number}") for number, topk in enumerate(scores)]
    (group,) = group_evaluations([replace(run, name=run.variant) for run in runs])
    assert [row[0] for row in differences(group)] == [f"v5 − v{n}" for n in (3, 4)]
    assert "Of 6 models, the most robust one is compared with the 2 next to it." in finding(group).cautions
