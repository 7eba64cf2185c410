"""Publication figures: every format opens, files are reproducible, and the commands write what they say."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from fake_runs import METHODS, write_run
from robattr import cli
from robattr.cli import app
from robattr.errors import InvalidInput
from robattr.reporting.curves import shades
from robattr.reporting.figures import MOST_MODELS, _evaluated, _figures, _telling, grid, lines, write_figures
from robattr.reporting.runs import Group, measured, read_runs
from robattr.reporting.svg import Series

NAMES = ("figure1", "figure2", "eps", "training")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("runs")
    return [write_run(root, method, examples=4, steps=3) for method in METHODS]


def test_every_figure_in_every_format(runs: list[Path], tmp_path: Path) -> None:
    written = write_figures(read_runs(runs), tmp_path, rows=2)
    expected = {f"{name}.{suffix}" for name in NAMES for suffix in ("pdf", "svg", "png")}
    assert {path.name for path in written} == expected | {"table.md", "table.tex", "table.csv"}
    for name in NAMES:
        assert (tmp_path / f"{name}.pdf").read_bytes().startswith(b"%PDF")
        assert ElementTree.parse(tmp_path / f"{name}.svg").getroot().tag.endswith("svg")
        with Image.open(tmp_path / f"{name}.png") as image:
            assert min(image.size) > 200


def test_the_name_of_a_class_stays_clear_of_the_maps(runs: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    long = tuple(f"Vehicles over {i}.5 metric tons prohibited" for i in range(10))
    monkeypatch.setattr(Group, "classes", long)
    figure = grid(measured(read_runs(runs))[0], rows=2)
    assert figure is not None
    figure.canvas.draw()
    names = [axis.yaxis.label for axis in figure.axes if axis.get_ylabel()]
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
    return measured(read_runs(made))[0]


def test_seeds_share_the_colour_of_their_method_and_differ_in_dash(seeds: Group) -> None:
    figure = _evaluated(seeds, "score_vs_eps", "eps", "ε", shades([run for run, _ in seeds.members]))
    assert figure is not None
    looks = {line.get_label(): (line.get_color(), line.get_linestyle()) for line in figure.axes[0].lines}
    assert len(looks) == len(set(looks.values())) == 2 * len(METHODS)
    assert len({colour for colour, _ in looks.values()}) == len(METHODS)
    figure.canvas.draw()
    assert figure.legends[0].get_window_extent().width <= figure.get_window_extent().width


def test_figure_1_shows_one_seed_of_each_and_its_heads_stay_apart(seeds: Group) -> None:
    assert len(seeds.members) > MOST_MODELS
    figure = grid(seeds, rows=1)
    assert figure is not None
    figure.canvas.draw()
    heads = [text for text in figure.texts if text.get_text()]
    assert len(heads) == len(METHODS)
    places = [head.get_window_extent() for head in heads]
    assert not any(a.overlaps(b) for a, b in pairwise(places))


def test_a_curve_of_zeros_has_no_place_on_a_logarithmic_axis() -> None:
    """NATURAL has no regulariser: its panel stays away, and nothing is said on a warning's way."""
    loss, nothing, some = (Series("a", [0, 1], ys, 0) for ys in ([1.0, 0.5], [0.0, 0.0], [0.0, 2.0]))
    figure = lines([("loss", [loss], True), ("regulariser", [nothing], True)], x_label="step")
    assert figure is not None
    assert [axis.get_ylabel() for axis in figure.axes] == ["loss"]
    both = lines([("regulariser", [nothing, some], True)], x_label="step")
    assert both is not None
    assert len(both.axes[0].lines) == 1
    assert lines([("accuracy", [nothing], False)], x_label="step") is not None


def test_what_is_not_positive_is_left_out_of_a_logarithmic_axis_not_drawn_to_its_bottom() -> None:
    figure = lines([("regulariser", [Series("a", [0, 1, 2], [-0.1, 0.5, 2.0], 0)], True)], x_label="step")
    assert figure is not None
    drawn = figure.axes[0].transData.transform(figure.axes[0].lines[0].get_xydata())
    assert np.isfinite(drawn[:, 1]).tolist() == [False, True, True]


@pytest.mark.parametrize(("methods", "drawn"), [(["ig-norm"], 6), (["natural", "ig-norm"], 2)])
def test_one_m_stands_beside_other_methods_and_by_themselves_all_are_told_apart(
    methods: list[str], drawn: int, tmp_path: Path
) -> None:
    made = [write_run(tmp_path / "m10", method, dataset="mnist", gallery=False) for method in methods]
    for m in (20, 30, 40, 50, 60):
        made.append(shutil.copytree(made[-1], tmp_path / f"m{m}"))
        config = json.loads((made[-1] / "config.json").read_text())
        (made[-1] / "config.json").write_text(json.dumps({**config, "m": m}))
    runs = read_runs(made)
    figures = dict(_figures(runs, measured(runs), 1))
    for name in ("eps", "training"):
        looks = [(line.get_color(), line.get_linestyle()) for line in figures[name].axes[0].lines]
        assert len(looks) == len(set(looks)) == drawn
    assert len(figures["figure2"].axes[0].get_yticks()) == drawn


def test_datasets_that_are_folders_and_runs_without_scores(runs: list[Path], tmp_path: Path) -> None:
    photos = shutil.copytree(runs[0], tmp_path / "photos")
    config, summary = (json.loads((photos / name).read_text()) for name in ("config.json", "records/paper-ig.json"))
    (photos / "config.json").write_text(json.dumps({**config, "dataset": "my data/photos"}))
    columns = {**summary["columns"], **dict.fromkeys(("topk", "kendall"))}
    file = photos / "records" / "paper-ig.json"
    file.write_text(json.dumps({**summary, "dataset": "photos", "columns": columns, "curves": {}}))
    lines = [json.loads(line) for line in file.with_suffix(".jsonl").read_text().splitlines()]
    rows = ({**line, "topk": None, "kendall": None} for line in lines)
    file.with_suffix(".jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    written = write_figures(read_runs([photos, runs[1]]), tmp_path / "f", formats=("png",), rows=1)
    assert [path.name for path in written if "photos" in path.name] == [
        "figure1-my-data-photos-paper-ig.png",
        "training-my-data-photos.png",
    ]


def test_files_are_reproducible(runs: list[Path], tmp_path: Path) -> None:
    first, second = (write_figures(read_runs(runs), tmp_path / d, formats=("svg", "pdf"), rows=1) for d in "ab")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_figure_1_shows_the_usual_case_of_different_classes(runs: list[Path]) -> None:
    evaluation = read_runs(runs)[0].evaluations[0]
    ids = [r["id"] for r in evaluation.records if r["topk"] is not None]
    chosen = _telling(ids, evaluation, 3)
    by_id = {r["id"]: r for r in evaluation.records}
    assert {by_id[i]["label"] for i in chosen} == {0, 1, 2}
    middle = sorted(by_id[i]["topk"] for i in ids)[len(ids) // 2]
    assert all(abs(by_id[i]["topk"] - middle) < 0.05 for i in chosen)


def test_commands(runs: list[Path], tmp_path: Path) -> None:
    paths = [str(run) for run in runs]
    page, folder = tmp_path / "deep" / "page.html", tmp_path / "figures"
    result = CliRunner().invoke(app, ["report", *paths, "-o", str(page)], catch_exceptions=False)
    assert result.exit_code == 0
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    result = CliRunner().invoke(app, ["figures", *paths, "-o", str(folder), "--formats", "svg"], catch_exceptions=False)
    assert result.exit_code == 0
    assert sorted(path.suffix for path in folder.iterdir()) == [".csv", ".md", *[".svg"] * 4, ".tex"]


def test_an_unknown_format_is_refused(runs: list[Path]) -> None:
    result = CliRunner().invoke(app, ["figures", str(runs[0]), "--formats", "pgn"])
    assert "did you mean 'png'" in str(result.exception)


@pytest.mark.parametrize(
    "words",
    [("report", "-o", "afile/x.html"), ("report", "-o", "afile/x.md"), ("figures", "-o", "afile"),
     ("record", "-o", "afile")],
)  # fmt: skip
def test_an_output_that_cannot_be_made_is_one_line(
    runs: list[Path], words, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("afile").touch()
    monkeypatch.setattr("sys.argv", ["robattr", *words, str(runs[0])])
    with pytest.raises(SystemExit) as ended:
        cli.run()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("robattr: cannot read or write afile")
    assert "choose another --out" in said
    assert said.count("\n") == 1


def test_a_page_of_another_kind_and_no_format_are_refused(runs: list[Path], tmp_path: Path) -> None:
    for words, says in (
        (("report", "-o", str(tmp_path / "x.pdf")), r"ends in .html, .htm, .md, got"),
        (("report", "-o", str(tmp_path / "x")), r"ends in .html, .htm, .md, got"),
        (("figures", "-o", str(tmp_path / "f"), "--formats", ""), "at least one format, got ''"),
        (("figures", "-o", str(tmp_path / "f"), "--formats", " ,"), "at least one format"),
    ):
        refused = CliRunner().invoke(app, [*words, str(runs[0])]).exception
        assert isinstance(refused, InvalidInput)
        assert says in str(refused)
    assert not any(tmp_path.iterdir())
