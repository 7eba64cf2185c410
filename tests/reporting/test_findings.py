"""The headline of a comparison and its cautions, computed from the summaries."""

from __future__ import annotations

import json
import re
from pathlib import Path

from fake_runs import change, rescore, write_run
from robattr.reporting.findings import finding, unlike
from robattr.reporting.run_results import group_evaluations, read_runs


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
    assert said.cautions == (
        "The two models' intervals of accuracy overlap: this many examples do not settle the difference.",
        "NATURAL: on 3% of the examples no attack step kept the prediction; those count as unmoved, which raises "
        "this model's score.",
    )


def test_overlapping_intervals_are_mentioned(tmp_path: Path) -> None:
    paths = [write_run(tmp_path, method, gallery=False) for method in ("natural", "madry")]
    for path in paths:
        file = path / "records" / "paper-ig.json"
        summary = json.loads(file.read_text())
        summary["columns"]["topk"] |= {"low": 0.0, "high": 1.0}
        file.write_text(json.dumps(summary))
    assert (
        "intervals of pixels kept and of accuracy overlap"
        in finding(group_evaluations(read_runs(paths))[0]).cautions[0]
    )


def test_the_headline_names_the_highest_mean_and_a_caution_its_equals(tmp_path: Path) -> None:
    paths = [write_run(tmp_path, method, gallery=False) for method in ("natural", "madry", "ig-sum-norm")]
    for path, value in zip(paths, (0.3, 0.75, 0.74), strict=True):
        rescore(path, value)
    said = finding(group_evaluations(read_runs(paths))[0])
    assert re.search(r"replaced 70% of .* pixels of the NATURAL model .*, and 25% of those of the Madry", said.headline)
    assert "Whether Madry et al. keeps more than IG-SUM-NORM is not settled: their intervals overlap." in said.cautions


def test_models_with_other_examples_are_not_compared(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, "natural") for name in "ab"]
    for run, digest in zip(runs, ("one", "two"), strict=True):
        config = json.loads((run / "config.json").read_text())
        (run / "config.json").write_text(json.dumps({**config, "examples": digest}))
    (group,) = group_evaluations(read_runs(runs))
    assert unlike(group) == ["other examples"]
    assert "measured differently (other examples)" in finding(group).headline


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
