"""Publication figures: every format opens, and files are reproducible."""

from __future__ import annotations

import json
import re
import shutil
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from fake_runs import METHODS, change, write_run
from robattr.evaluation.gallery import read_gallery
from robattr.reporting.curves import Panel, Series, score_panels
from robattr.reporting.display import brightness, ceiling
from robattr.reporting.figures import MOST_MODELS, _figures, _typical, boxes, inline_svg, lines, map_grid, write_figures
from robattr.reporting.groups import Group, group_evaluations
from robattr.reporting.run_results import read_runs


def test_every_format_opens_and_is_reproducible(tmp_path: Path) -> None:
    run = write_run(tmp_path, "natural", examples=1, steps=1)
    (run / "metrics.jsonl").unlink()
    without_scores(run)  # figure 1 is left
    first, second = (write_figures(read_runs([run]), tmp_path / folder, rows=1) for folder in "ab")
    assert {path.name for path in first} == {
        *(f"figure1.{suffix}" for suffix in ("pdf", "svg", "png")),
        *(f"table.{suffix}" for suffix in ("md", "tex", "csv")),
    }
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert (tmp_path / "a" / "figure1.pdf").read_bytes().startswith(b"%PDF")
    assert ElementTree.parse(tmp_path / "a" / "figure1.svg").getroot().tag.endswith("svg")
    with Image.open(tmp_path / "a" / "figure1.png") as image:
        assert min(image.size) > 200


def without_scores(run: Path) -> None:
    """Remove the scores and the curves of the run's evaluation."""
    file = run / "records" / "paper-ig.json"
    columns = {
        **json.loads(file.read_text())["columns"],
        "topk": {"value": None, "n": 0},
        "kendall": {"value": None, "n": 0},
    }
    change(file, columns=columns, curves={})
    lines = [json.loads(line) for line in file.with_suffix(".jsonl").read_text().splitlines()]
    rows = ({**line, "topk": None, "kendall": None} for line in lines)
    file.with_suffix(".jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_long_class_names_do_not_overlap_the_maps(runs: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    long = tuple(f"Vehicles over {i}.5 metric tons prohibited" for i in range(10))
    monkeypatch.setattr(Group, "classes", long)
    figure = map_grid(group_evaluations(read_runs(runs))[0], rows=2)
    assert figure is not None
    figure.canvas.draw()
    names = [axis.yaxis.label for axis in figure.axes if axis.get_ylabel().endswith("before")]
    assert len(names) == 2
    for name in names:
        assert "prohibited" in name.get_text()
        assert not any(name.get_window_extent().overlaps(axis.get_window_extent()) for axis in figure.axes)


@pytest.fixture(scope="module")
def seeds(runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Group:
    """Two seeds of every method, on a network that is not the paper's."""
    root, made = tmp_path_factory.mktemp("seeds"), []
    for run in runs:
        for seed in (0, 1):
            made.append(shutil.copytree(run, root / f"{run.name}-{seed}"))
            config = json.loads((run / "config.json").read_text())
            (made[-1] / "config.json").write_text(json.dumps({**config, "seed": seed, "model": "avgpool_cnn"}))
    return group_evaluations(read_runs(made))[0]


def test_seeds_share_the_colour_of_their_method_and_differ_in_dash(seeds: Group) -> None:
    figure = lines(score_panels(seeds, "eps"), x_label="ε")
    assert figure is not None
    looks = {line.get_label(): (line.get_color(), line.get_linestyle()) for line in figure.axes[0].lines}
    assert len(looks) == len(set(looks.values())) == 2 * len(METHODS)
    assert len({colour for colour, _ in looks.values()}) == len(METHODS)
    figure.canvas.draw()
    assert figure.legends[0].get_window_extent().width <= figure.get_window_extent().width


def test_figure_1_shows_one_seed_of_each_and_its_titles_do_not_overlap(seeds: Group) -> None:
    assert len(seeds.members) > MOST_MODELS
    figure = map_grid(seeds, rows=1)
    assert figure is not None
    figure.canvas.draw()
    heads = [text for text in figure.texts if text.get_text()]
    assert len(heads) == len(METHODS)
    places = [head.get_window_extent() for head in heads]
    assert not any(a.overlaps(b) for a, b in pairwise(places))


def test_figure_1_shows_the_images_and_maps_before_and_after_the_attack(runs: list[Path]) -> None:
    (group,) = group_evaluations(read_runs(runs[:1]))
    ((_, e),) = group.members
    assert e.gallery is not None
    gallery = read_gallery(e.gallery)
    figure = map_grid(group, rows=1)
    assert figure is not None
    image, before, perturbed, after = (axis.images[0].get_array() for axis in figure.axes)
    place = next(g for g in range(len(gallery)) if np.array_equal(gallery.image[g, 0], image))
    step = gallery.reported(place)
    assert np.array_equal(gallery.perturbed[place, step, 0], perturbed)
    top = ceiling(gallery.before[place])
    assert np.allclose(before, brightness(gallery.before[place], top))
    assert np.allclose(after, brightness(gallery.after[place, step], top))
    assert [axis.get_ylabel().split("\n")[-1] for axis in figure.axes[::2]] == ["before", "after"]


def test_a_curve_of_zeros_is_left_out_of_a_logarithmic_axis() -> None:
    """NATURAL has no regulariser: its panel stays away, and nothing is said on a warning's way."""
    loss, nothing, some = (Series("a", [0, 1], ys, 0) for ys in ([1.0, 0.5], [0.0, 0.0], [0.0, 2.0]))
    figure = lines([Panel("loss", [loss], True), Panel("regulariser", [nothing], True)], x_label="step")
    assert figure is not None
    assert [axis.get_ylabel() for axis in figure.axes] == ["loss (log scale)"]
    both = lines([Panel("regulariser", [nothing, some], True)], x_label="step")
    assert both is not None
    assert len(both.axes[0].lines) == 1
    assert lines([Panel("accuracy", [nothing])], x_label="step") is not None


def test_points_that_are_not_positive_are_left_out_of_a_logarithmic_axis() -> None:
    figure = lines([Panel("regulariser", [Series("a", [0, 1, 2], [-0.1, 0.5, 2.0], 0)], True)], x_label="step")
    assert figure is not None
    drawn = figure.axes[0].transData.transform(figure.axes[0].lines[0].get_xydata())
    assert np.isfinite(drawn[:, 1]).tolist() == [False, True, True]


@pytest.mark.parametrize(("methods", "drawn"), [(["ig-norm"], 6), (["natural", "ig-norm"], 2)])
def test_one_m_is_shown_beside_other_methods_and_all_where_m_alone_varies(
    methods: list[str], drawn: int, tmp_path: Path
) -> None:
    made = [write_run(tmp_path / "m10", method, dataset="mnist", gallery=False) for method in methods]
    for m in (20, 30, 40, 50, 60):
        made.append(shutil.copytree(made[-1], tmp_path / f"m{m}"))
        config = json.loads((made[-1] / "config.json").read_text())
        (made[-1] / "config.json").write_text(json.dumps({**config, "m": m}))
    runs = read_runs(made)
    figures = dict(_figures(runs, group_evaluations(runs), 1))
    for name in ("eps", "training"):
        looks = [(line.get_color(), line.get_linestyle()) for line in figures[name].axes[0].lines]
        assert len(looks) == len(set(looks)) == drawn
    assert len(figures["figure2"].axes[0].get_yticks()) == drawn


def test_datasets_that_are_folders_and_runs_without_scores(runs: list[Path], tmp_path: Path) -> None:
    photos = shutil.copytree(runs[0], tmp_path / "photos")
    change(photos / "config.json", dataset="my data/photos")
    change(photos / "records" / "paper-ig.json", dataset="photos")
    without_scores(photos)
    read = read_runs([photos, runs[1]])
    names = [name for name, _ in _figures(read, group_evaluations(read), 1)]
    assert [name for name in names if "photos" in name] == [
        "figure1-my-data-photos-paper-ig",
        "training-my-data-photos",
    ]


def test_figure_1_shows_typical_examples_of_different_classes(runs: list[Path]) -> None:
    evaluation = read_runs(runs)[0].evaluations[0]
    ids = [r["id"] for r in evaluation.records if r["topk"] is not None]
    chosen = _typical(ids, evaluation, 3)
    by_id = {r["id"]: r for r in evaluation.records}
    assert {by_id[i]["label"] for i in chosen} == {0, 1, 2}
    middle = sorted(by_id[i]["topk"] for i in ids)[len(ids) // 2]
    assert all(abs(by_id[i]["topk"] - middle) < 0.05 for i in chosen)


def test_a_chart_of_the_page_has_the_colours_of_the_style_sheet_and_escapes_names(seeds: Group) -> None:
    series = Series("<b> & co", [0, 1], [0.5, 1.0], 2)
    for figure in (boxes(seeds, ["topk"]), lines([Panel("loss", [series])], x_label="step")):
        assert figure is not None
        drawn = inline_svg(figure, name='a "chart"')
        root = ElementTree.fromstring(drawn)
        assert root.attrib["aria-label"] == 'a "chart"'
        assert {"var(--s2)", "currentColor"} <= set(re.findall(r"(?:stroke|fill): ([^;\"]*)", drawn))
        ids = re.findall(r' id="([^"]*)"', drawn)
        assert len(ids) == len(set(ids))
        assert not [i for i in ids if "_" in i]  # two charts in one page would repeat them
