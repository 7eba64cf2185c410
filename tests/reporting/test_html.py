"""The page without a browser: charts against matplotlib's own statistics, packed galleries, escaping, findings."""

from __future__ import annotations

import base64
import json
import re
import zlib
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from matplotlib.cbook import boxplot_stats

from fake_runs import METHODS, write_run
from robattr.errors import CheckpointError, InvalidInput
from robattr.reporting import svg
from robattr.reporting.explorer import explorer
from robattr.reporting.export import write_records
from robattr.reporting.figures import grid
from robattr.reporting.findings import finding, unlike
from robattr.reporting.gallery import read_gallery, top_k
from robattr.reporting.html import _commands, embedded, page, write_page
from robattr.reporting.runs import groups, read_runs

HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("runs")
    return [write_run(root, method) for method in METHODS]


def test_a_folder_is_no_place_for_a_page(runs: list[Path], tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"report\.html"):
        write_page(read_runs(runs[:1]), tmp_path)


def test_models_that_were_not_measured_alike_are_not_compared(tmp_path: Path) -> None:
    runs = [write_run(tmp_path, method) for method in ("natural", "ig-norm")]
    file = runs[1] / "records" / "paper-ig.json"
    summary = json.loads(file.read_text())
    for eps, compared in ((summary["settings"]["eps"], True), (0.25, False)):
        file.write_text(json.dumps({**summary, "settings": {**summary["settings"], "eps": eps}}))
        said = finding(groups(read_runs(runs))[0]).headline
        assert ("those of the IG-NORM model" in said) == compared
    assert re.search(r"not measured alike \(eps [\d.]+ and 0\.25\)", said)


def test_a_model_measured_on_another_dataset_has_its_place_on_the_page(tmp_path: Path) -> None:
    runs = [write_run(tmp_path, method) for method in ("natural", "madry")]
    file = runs[0] / "records" / "paper-ig.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "dataset": "mnist"}))
    written = page(read_runs(runs))
    legends = re.findall(r'<p class="legend">(.*?)</p>', written)
    named = [re.findall(r"</i>([^<]*)</span>", legend) for legend in legends]
    assert named == [["NATURAL, trained on fashion-mini"], ["Madry et al."], ["NATURAL", "Madry et al."]]


def test_trainings_on_several_datasets_have_charts_of_their_own(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, "natural", dataset=name, gallery=False) for name in ("mnist", "gtsrb")]
    written = page(read_runs(runs))
    trained = written[written.index('id="training-title"') : written.index('id="settings-title"')]
    assert re.findall(r"<h3>(.*?)</h3>", trained) == ["gtsrb", "mnist"]
    assert trained.count('<polyline class="line s0"') == 6  # of each its loss, regulariser and accuracy
    assert trained.count("<polyline") == 6


def test_a_run_that_is_named_twice_is_shown_once(runs: list[Path]) -> None:
    assert [run.name for run in read_runs([runs[0], runs[1], runs[0]])] == ["NATURAL", "Madry et al."]


def test_the_command_on_a_page_of_records_names_files_that_are_there(runs: list[Path], tmp_path: Path) -> None:
    write_records(read_runs(runs[:2]), tmp_path)
    read = read_runs([tmp_path, runs[2]])
    (line,) = (line for line in _commands(read) if line.startswith("robattr report"))
    records = ["fashion-mini-natural-seed0-paper-ig.json", "fashion-mini-madry-seed0-paper-ig.json"]
    assert line.split()[2:-2] == [*records, "ig-norm"]
    assert all((tmp_path / record).is_file() for record in records)


def test_a_page_to_send_says_nothing_of_the_folders_above_the_runs(tmp_path: Path) -> None:
    for number, method in enumerate(("natural", "madry")):
        run = write_run(tmp_path / "secret" / "runs", method, gallery=False)
        for name, key in (("config", "warm_start"), ("environment", "command"), ("records/paper-ig", "command")):
            file = run / f"{name}.json"
            words = f"robattr evaluate {run} --seed {number}" if key == "command" else str(run)
            file.write_text(json.dumps({**json.loads(file.read_text()), key: words}))
    written = page(read_runs(sorted((tmp_path / "secret" / "runs").iterdir())))
    assert "secret" not in written
    assert "robattr evaluate runs/natural --seed 0" in written


def test_box_is_tukeys() -> None:
    values = np.random.default_rng(0).standard_t(2, 300)
    ours, theirs = svg.box_of(values), boxplot_stats(values)[0]
    assert ours is not None
    assert (ours.low, ours.q1, ours.median, ours.q3, ours.high) == pytest.approx(
        [theirs[key] for key in ("whislo", "q1", "med", "q3", "whishi")]
    )
    np.testing.assert_allclose(ours.beyond, np.sort(theirs["fliers"]))
    assert svg.box_of([float("nan")]) is None


@pytest.mark.parametrize(
    ("low", "high", "log", "expected"),
    [
        (0.0, 1.0, False, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (-0.2, 1.0, False, [0, 0.25, 0.5, 0.75, 1.0]),
        (0.5, 4.0, True, [0.5, 1, 2]),
        (1e-4, 1e1, True, [1e-4, 1e-2, 1]),
    ],
)
def test_axes_have_round_ticks_inside_the_range(low: float, high: float, log: bool, expected: list[float]) -> None:
    axis = svg.Axis(low, high, 0, 100, log=log)
    assert axis.ticks() == pytest.approx(expected)
    assert (axis(low), axis(high)) == pytest.approx((0, 100))


def test_charts_leave_out_what_cannot_be_drawn_and_escape_names() -> None:
    series = svg.Series("<b>", [0, 1, 2, 3], [float("nan"), 0.0, 2.0, 3.0], 0)
    drawn = svg.line_chart([series], x_label="x", y_label="y", log=True)
    assert len(re.search(r'points="([^"]*)"', drawn).group(1).split()) == 2  # type: ignore[union-attr]
    assert "<b>" not in drawn
    assert svg.line_chart([], x_label="x", y_label="y") == ""
    assert "no scores" in svg.box_plot([("a", [], 0)], label="l", low=0, high=1)


def test_names_in_parts_and_long_numbers_stay_inside_the_chart() -> None:
    drawn = svg.box_plot([("IG-SUM-NORM, avgpool_cnn, seed = 1", [0.1, 0.2], 0)], label="l", low=0, high=1)
    texts = {text: float(y) for y, text in re.findall(r'<text[^>]* x="112" y="([\d.]+)"[^>]*>([^<]*)<', drawn)}
    assert list(texts) == ["IG-SUM-NORM", "avgpool_cnn", "seed = 1"]
    assert len(set(texts.values())) == 3
    steps = svg.line_chart([svg.Series("a", [0, 250_000], [0, 1], 0)], x_label="x", y_label="y")
    middle = float(re.search(r'x="([\d.]+)" y="[\d.]+" text-anchor="middle">250,000<', steps).group(1))  # type: ignore[union-attr]
    assert middle + len("250,000") / 2 * 7 <= svg.WIDTH


def test_a_second_run_of_a_method_has_its_colour_and_a_dash_of_its_own() -> None:
    assert [svg.look(shade) for shade in (3, 3 + svg.SHADES, 3 + 2 * svg.SHADES)] == ["s3", "s3 d1", "s3 d2"]
    style = (Path(svg.__file__).parent / "page" / "page.css").read_text(encoding="utf-8")
    for dash in range(1, svg.DASHES):
        assert f".line.d{dash} " in style
        assert f".swatch.d{dash} " in style


@pytest.mark.parametrize("colour", [False, True])
def test_a_packed_example_unpacks_to_the_gallery(tmp_path: Path, colour: bool) -> None:
    run = write_run(tmp_path, "natural", colour=colour, steps=4)
    gallery = read_gallery(run / "records" / "paper-ig-gallery.npz")
    packed = explorer(groups(read_runs([run])))[0]
    example = packed["examples"][2]
    height, width, channels = packed["shape"]
    image = np.frombuffer(zlib.decompress(base64.b64decode(example["image"])), np.uint8)
    np.testing.assert_array_equal(image.reshape(height, width, channels), np.moveaxis(gallery.image[2], 0, -1))
    blob = np.frombuffer(zlib.decompress(base64.b64decode(example["models"][0]["blob"])), np.uint8)
    size, steps = height * width, 4
    assert blob.size == steps * size * channels + (steps + 1) * size + (steps + 1) * ((size + 7) // 8)
    change = blob[: steps * size * channels].reshape(steps, height, width, channels).astype(int) - 128
    np.testing.assert_array_equal(
        np.moveaxis(gallery.image[2], 0, -1) + change, np.moveaxis(gallery.perturbed[2], 1, -1)
    )
    packed_map = (size + 7) // 8
    bits = np.unpackbits(blob[-packed_map:])[:size].astype(bool)
    np.testing.assert_array_equal(bits.reshape(height, width), top_k(gallery.after[2, -1], packed["k"]))


def test_top_k_takes_exactly_k_and_the_lower_index_of_equals() -> None:
    mask = top_k(np.array([[0.0, 3.0, 1.0], [1.0, 0.0, 1.0]]), 3)
    np.testing.assert_array_equal(mask, [[False, True, True], [True, False, False]])
    assert top_k(np.zeros((2, 2)), 100).all()


def test_the_explorer_keeps_to_its_budget(runs: list[Path]) -> None:
    everything = explorer(groups(read_runs(runs)))[0]["examples"]
    half = len(json.dumps(everything)) // 2
    fewer = explorer(groups(read_runs(runs)), budget=half)[0]["examples"]
    assert 1 <= len(fewer) < len(everything)
    assert len(json.dumps(fewer)) <= half


def test_a_damaged_gallery_is_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path, "natural")
    path = run / "records" / "paper-ig-gallery.npz"
    np.savez(path, id=np.arange(3))
    with pytest.raises(CheckpointError, match="lacks label"):
        read_gallery(path)
    np.savez(path, id=np.array([{}], dtype=object))
    pickled = path.read_bytes()
    np.save(path.with_suffix(".npy"), np.arange(3))
    for content in (b"nonsense", b"", pickled, pickled[:-30], path.with_suffix(".npy").read_bytes()):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"is damaged.*robattr evaluate RUN … --fresh") as refused:
            read_gallery(path)
        assert "pickle" not in str(refused.value)
    path.unlink()
    with pytest.raises(CheckpointError, match="No such file"):
        read_gallery(path)


def test_a_damaged_log_is_named_by_its_line(tmp_path: Path) -> None:
    run = write_run(tmp_path, "natural")
    log = run / "metrics.jsonl"
    whole = log.read_bytes()
    for line in (b"[1, 2]", b"\xff\xfe", b"nonsense"):
        log.write_bytes(b"\n" + line + b"\n" + whole)
        with pytest.raises(CheckpointError, match=rf"{log}, line 2.*the file is damaged: delete that line"):
            read_runs([run])
    log.write_bytes(whole + b"7\n")
    with pytest.raises(CheckpointError, match="expected a JSON object, got int"):
        read_runs([run])
    log.write_bytes(whole + '{"note": "ε'.encode()[:-1])  # cut within a letter, while it is being written
    assert len(read_runs([run])[0].metrics) == len(whole.splitlines())


class Elements(HTMLParser):
    """Collects tags with their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_the_page_refers_to_nothing_outside_itself(runs: list[Path]) -> None:
    parser = Elements()
    parser.feed(page(read_runs(runs)))
    addresses = [a[k] for _, a in parser.found for k in ("src", "href", "action", "srcset") if k in a]
    assert addresses
    assert all(address and address.startswith(("#", "data:")) for address in addresses)
    assert sum(tag == "script" for tag, _ in parser.found) == 2
    assert not [name for _, a in parser.found for name in a if name.startswith("on")]


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    run = write_run(tmp_path, "natural", classes=(HOSTILE, "b", "c"))
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, "method": HOSTILE, "note": HOSTILE}))
    html = page(read_runs([run]), title=HOSTILE)
    parser = Elements()
    parser.feed(html)
    assert sum(tag == "script" for tag, _ in parser.found) == 2
    assert not any(tag == "img" for tag, _ in parser.found)
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)
    assert data is not None
    assert json.loads(data.group(1))["groups"][0]["classes"][0] == HOSTILE


def test_embedded_json_cannot_leave_its_element_and_has_no_nan() -> None:
    value = {"a": "</script><!--\u2028&", "b": [float("nan"), float("inf"), 1.5]}
    text = embedded(value)
    assert not set("<>&") & set(text)
    assert json.loads(text) == {"a": value["a"], "b": [None, None, 1.5]}


def test_the_headline_is_computed_from_the_summaries(runs: list[Path]) -> None:
    said = finding(groups(read_runs(runs))[0])
    moved = {}
    for run in (runs[0], runs[-1]):
        columns = json.loads((run / "records" / "paper-ig.json").read_text())["columns"]
        moved[run.name] = f"{100 * (1 - columns['topk']['value']):.0f}%"
    assert said.headline.startswith(f"On fashion-mini, the attack replaced {moved['natural']} of the 100")
    assert f"{moved['ig-sum-norm']} of those of the IG-SUM-NORM model" in said.headline
    assert "1.9 points lower" in said.headline
    assert said.cautions == (
        "The two models' intervals of accuracy overlap: this many examples do not settle the difference.",
        "NATURAL: on 3% of the examples no attack step kept the prediction; those count as unmoved, which flatters "
        "this model.",
    )


def test_an_undecided_comparison_says_so(tmp_path: Path) -> None:
    paths = [write_run(tmp_path, method, gallery=False) for method in ("natural", "madry")]
    for path in paths:
        file = path / "records" / "paper-ig.json"
        summary = json.loads(file.read_text())
        summary["columns"]["topk"] |= {"low": 0.0, "high": 1.0}
        file.write_text(json.dumps(summary))
    assert "intervals of pixels kept and of accuracy overlap" in finding(groups(read_runs(paths))[0]).cautions[0]


def test_the_headline_names_the_highest_mean_and_says_who_is_as_good(tmp_path: Path) -> None:
    paths = [write_run(tmp_path, method, gallery=False) for method in ("natural", "madry", "ig-sum-norm")]
    for path, value in zip(paths, (0.3, 0.75, 0.74), strict=True):
        file = path / "records" / "paper-ig.json"
        summary = json.loads(file.read_text())
        summary["columns"]["topk"] |= {"value": value, "low": value - 0.02, "high": value + 0.02}
        file.write_text(json.dumps(summary))
    said = finding(groups(read_runs(paths))[0])
    assert (
        "70% of the 100 most important pixels of the NATURAL model, and 25% of those of the Madry et al."
        in said.headline
    )
    assert "Whether Madry et al. keeps more than IG-SUM-NORM is not settled: their intervals overlap." in said.cautions


def test_images_of_another_size_and_other_images_of_the_same_number_are_kept_apart(tmp_path: Path) -> None:
    small, large, other = (write_run(tmp_path / name, "natural") for name in ("small", "large", "other"))
    gallery = "records/paper-ig-gallery.npz"
    summary = json.loads((large / "records" / "paper-ig.json").read_text())
    settings = {**summary["settings"], "k": 150, "eval_k": 150}
    (large / "records" / "paper-ig.json").write_text(json.dumps({**summary, "settings": settings}))
    arrays = dict(np.load(other / gallery))
    np.savez_compressed(other / gallery, **{**arrays, "image": 255 - arrays["image"]})
    found = groups(read_runs([small, large, other]))
    assert [(g.k, len(g.members), g.title.split(" · ")[-1]) for g in found] == [
        (100, 2, "k = 100"),
        (150, 1, "k = 150"),
    ]
    assert len({g.key for g in found}) == 2
    shown, alone = explorer(found)
    assert len(shown["examples"]) == 2 * len(alone["examples"])  # no image stands for another
    assert all(sum(model is not None for model in example["models"]) == 1 for example in shown["examples"])
    assert grid(found[0]) is None
    assert grid(found[1]) is not None


def test_as_many_other_examples_are_not_measured_alike(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, "natural") for name in "ab"]
    for run, digest in zip(runs, ("one", "two"), strict=True):
        config = json.loads((run / "config.json").read_text())
        (run / "config.json").write_text(json.dumps({**config, "examples": digest}))
    (group,) = groups(read_runs(runs))
    assert unlike(group) == ["other examples"]
    assert "not measured alike (other examples)" in finding(group).headline
