"""Styles and series of runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fake_runs import METHODS, fake_results
from robattr.reporting.curves import COLOURS, DASHES, MOST_POINTS, score_panels, styles, training_panels
from robattr.reporting.groups import group_evaluations
from robattr.reporting.record import APPROACHES
from robattr.reporting.run_results import read_runs


def test_methods_have_fixed_colours_and_further_runs_a_dash() -> None:
    first = [fake_results(method, 0.5, 0.3) for method in METHODS]
    assert list(styles(first).values()) == list(range(len(METHODS)))
    again = replace(first[2], name="again")
    assert styles([first[2], again]) == {"IG-NORM": 2, "again": 2 + COLOURS}


def test_every_method_has_a_colour_and_its_further_runs_a_dash() -> None:
    """Also methods that are not the paper's, and objectives of the user's."""
    one = fake_results("madry", 0.5, 0.3)
    runs = [
        replace(one, name=f"{method} {seed}", config={"method": method})
        for method in ("igr", "natural", "my-rho", "trades", "madry")
        for seed in (0, 1)
    ]
    found = styles(runs)
    assert {name.split()[0]: style for name, style in found.items() if style < COLOURS}.keys() == {
        "igr", "natural", "my-rho", "trades", "madry",
    }  # fmt: skip
    assert all(found[f"{name.split()[0]} 1"] == found[name] + COLOURS for name in found if name.endswith("0"))
    assert (found["natural 0"], found["madry 0"]) == (0, 1)
    many = [replace(one, name=method, config={"method": method}) for method in APPROACHES]
    assert len({*styles(many).values()}) == len(many)


def test_other_methods_and_many_runs_take_free_colours() -> None:
    runs = [replace(fake_results("madry", 0.5, 0.3), name=f"run {i}") for i in range(DASHES + 2)]
    other = replace(runs[0], name="other", config={"method": "other"})
    found = styles([*runs, other])
    assert len(set(found.values())) == len(runs) + 1
    assert {style % COLOURS for style in found.values()} > {1}
    assert found["other"] % COLOURS != 1


def test_series_are_the_logged_and_evaluated_values(runs: list[Path]) -> None:
    read = read_runs(runs[:1])
    loss, _, _ = training_panels(read)
    logged = [(m["step"], m["loss"]) for m in read[0].metrics if "loss" in m]
    assert list(zip(loss.series[0].xs, loss.series[0].ys, strict=True)) == logged
    long = replace(read[0], metrics=tuple({"step": i, "loss": float(i)} for i in range(10 * MOST_POINTS)))
    thinned, *missing = training_panels([long])
    assert (len(thinned.series[0].xs), thinned.series[0].ys[0]) == (MOST_POINTS, 4.5)
    assert [panel.series for panel in missing] == [[], []]
    (group,) = group_evaluations(read)
    topk, _ = score_panels(group, "eps")
    assert list(topk.series[0].xs) == [0.025, 0.05, 0.1, 0.2]


def test_a_curve_over_eps_has_intervals_where_its_summary_has_them(runs: list[Path]) -> None:
    (group,) = group_evaluations(read_runs(runs[:1]))
    topk, kendall = (panel.series[0] for panel in score_panels(group, "eps"))
    for series in (topk, kendall):
        assert [y - 0.03 for y in series.ys] == list(series.low)
        assert [y + 0.03 for y in series.ys] == list(series.high)
    ((run, e),) = group.members
    stored = {key: ys for key, ys in e.summary["curves"]["score_vs_eps"].items() if "_" not in key}
    older = replace(e, summary={**e.summary, "curves": {"score_vs_eps": stored}})
    (series, _) = (panel.series[0] for panel in score_panels(replace(group, members=((run, older),)), "eps"))
    assert (series.low, series.ys) == ((), topk.ys)


def test_a_logarithmic_panel_says_so(runs: list[Path]) -> None:
    titles = [panel.title for panel in training_panels(read_runs(runs[:1]))]
    assert titles == ["loss ℓ (log scale)", "size of the regulariser (log scale)", "validation accuracy"]


def test_a_score_is_drawn_at_the_end_of_the_window_that_it_is_of() -> None:
    """Of each window of ten iterates one is scored; a curve point inside a window repeats that score."""
    run = fake_results("madry", 0.5, 0.3)
    (evaluation,) = run.evaluations

    def drawn(iterations: list[int], topk: list[float], **about: int) -> list[tuple[float, float]]:
        curve = {"iterations": iterations, "topk": topk}
        summary = {**evaluation.summary, "curves": {"score_vs_iterations": curve}, **about}
        (group,) = group_evaluations([replace(run, evaluations=(replace(evaluation, summary=summary),))])
        (series,) = score_panels(group, "iterations")[0].series
        return list(zip(series.xs, series.ys, strict=True))

    thirty = [1, 11, 21, 30]
    assert drawn([1, 6, 11, 17, 25], [0.9, 0.9, 0.8, 0.8, 0.7], window=10) == [(10, 0.9), (20, 0.8), (25, 0.7)]
    assert drawn(thirty, [0.9, 0.8, 0.8, 0.7], window=10) == [(10, 0.9), (20, 0.8), (30, 0.7)]
    assert drawn(thirty, [0.9, 0.8, 0.7, 0.6]) == [(1, 0.9), (11, 0.8), (21, 0.7), (30, 0.6)]
