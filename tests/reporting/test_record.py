"""Records: what is distilled from a run renders like the run, is stable to the byte, and says nothing of a machine."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from fake_runs import METHODS, write_run
from robattr.cli import app
from robattr.errors import CheckpointError, InvalidInput
from robattr.reporting import tables
from robattr.reporting.explorer import explorer
from robattr.reporting.export import portable, write_records
from robattr.reporting.figures import write_figures
from robattr.reporting.gallery import Gallery, read_gallery, small
from robattr.reporting.html import page
from robattr.reporting.record import read_record, rows, variant
from robattr.reporting.runs import groups, read_runs
from robattr.reporting.training import curve, thinned, training

NAME = "fashion-mini-{}-seed0-paper-ig.json"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("runs")
    return [write_run(root, method, steps=4) for method in METHODS]


@pytest.fixture(scope="module")
def results(runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    write_records(read_runs(runs), folder)
    return folder


def change(path: Path, **keys: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))


def files(folder: Path) -> Mapping[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_files_are_named_by_dataset_variant_seed_protocol_and_map(results: Path) -> None:
    names = [NAME.format(variant) for variant in ("ig-norm-m10", "ig-sum-norm-m10", "madry", "natural")]
    assert [path.name for path in sorted(results.glob("*.json"))] == names
    assert [path.name for path in sorted(results.glob("*.npz"))] == [n.replace(".json", "-gallery.npz") for n in names]


def test_tables_from_records_are_those_from_directories(runs: list[Path], results: Path) -> None:
    made = [tables.table(groups(read_runs(paths))) for paths in (runs, [results], sorted(results.glob("*.json")))]
    assert made[0] == made[1] == made[2]


def test_scores_of_examples_agree_to_four_digits(runs: list[Path], results: Path) -> None:
    for whole, short in zip(read_runs(runs), read_runs([results]), strict=True):
        assert whole.config == short.config
        for key in ("topk", "kendall"):
            ours, theirs = whole.evaluations[0].scores(key), short.evaluations[0].scores(key)
            assert len(ours) > 100
            np.testing.assert_allclose(theirs, ours, atol=5.001e-5, rtol=0)
        for one, other in zip(whole.evaluations[0].records, short.evaluations[0].records, strict=True):
            assert {k: one[k] for k in ("id", "label", "kept", "correct")} == {
                k: other[k] for k in ("id", "label", "kept", "correct")
            }


def test_figures_from_records_are_those_from_directories(runs: list[Path], results: Path, tmp_path: Path) -> None:
    made = {}
    for name, paths in (("runs", runs), ("records", [results])):
        write_figures(read_runs(paths), tmp_path / name, formats=("png",), rows=3)
        made[name] = {path.name: path for path in (tmp_path / name).glob("*.png")}
    assert made["runs"].keys() == made["records"].keys() >= {"figure1.png", "figure2.png", "training.png"}
    # Maps and curves are kept as they are. Scores are rounded, which moves an outlier by a fraction of a pixel.
    for name in ("figure1.png", "eps.png"):
        assert made["runs"][name].read_bytes() == made["records"][name].read_bytes()
    for name in ("figure2.png", "training.png"):
        one, other = (np.asarray(Image.open(made[of][name]).convert("L"), dtype=int) for of in ("runs", "records"))
        assert (one != other).mean() < 0.01


def test_a_page_with_its_explorer_is_made_from_records(runs: list[Path], results: Path) -> None:
    read = read_runs([results])
    assert page(read).startswith("<!doctype html>")
    packed = explorer(groups(read))[0]
    assert packed["models"] == [run.name for run in read_runs(runs)]
    assert len(packed["examples"]) == 8


def test_recording_again_changes_nothing(runs: list[Path], results: Path, tmp_path: Path) -> None:
    before = files(results)
    assert not any(new for _, new in write_records(read_runs(runs), results))
    write_records(read_runs(runs[::-1]), tmp_path)
    write_records(read_runs([results]), tmp_path / "again")
    again = files(tmp_path / "again")
    assert before == files(results) == {k: (tmp_path / k).read_bytes() for k in before}
    # A record of a record is the same record.
    assert again == before


def test_another_run_of_the_same_name_needs_force(tmp_path: Path) -> None:
    run, folder = write_run(tmp_path, "natural"), tmp_path / "results"
    write_records(read_runs([run]), folder)
    before = files(folder)
    change(run / "config.json", weight=7.0)
    with pytest.raises(CheckpointError, match=r"config\.weight 0\.42 → 7\.0.*--force"):
        write_records(read_runs([run]), folder)
    assert files(folder) == before
    write_records(read_runs([run]), folder, name="natural (wide)")
    assert (folder / NAME.format("natural-wide")).is_file()
    assert [run.name for run in read_runs([folder])] == ["NATURAL", "NATURAL (natural-wide)"]
    (run / "records" / "paper-ig-gallery.npz").unlink()
    write_records(read_runs([run]), folder, force=True)
    assert read_record(folder / NAME.format("natural")).config["weight"] == 7.0
    assert not (folder / NAME.format("natural").replace(".json", "-gallery.npz")).exists()


def test_variants_do_not_collide_and_twins_in_one_command_do(tmp_path: Path) -> None:
    paths = [write_run(tmp_path / str(m), "ig-norm", gallery=False) for m in (20, 30)]
    for path, m in zip(paths, (20, 30), strict=True):
        change(path / "config.json", m=m)
    folder = tmp_path / "results"
    assert len(write_records(read_runs(paths), folder)) == 2
    assert [run.name for run in read_runs([folder])] == ["IG-NORM, m = 20", "IG-NORM, m = 30"]
    change(paths[1] / "config.json", m=20, weight=9)
    with pytest.raises(CheckpointError, match=r"two of the runs would be .*another --name"):
        write_records(read_runs(paths), folder, force=True)


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"recipe": "mnist/ig-norm-tuned", "method": "ig-norm", "m": 20}, "ig-norm-tuned-m20"),
        ({"recipe": "mnist/madry (tuned)", "method": "madry", "m": 50}, "madry-tuned"),
        ({"recipe": "custom", "method": "natural"}, "natural"),
        ({"recipe": "mnist/natural", "method": "ig-sum-norm", "m": 5}, "ig-sum-norm-m5"),
        ({"name": "My net"}, "My-net"),
    ],
)
def test_a_variant_is_the_recipe_and_its_m(config: dict[str, Any], name: str) -> None:
    assert variant(config) == name


def test_evaluations_of_one_run_are_one_run_again(tmp_path: Path) -> None:
    run = write_run(tmp_path, "natural")
    for suffix in (".json", ".jsonl"):
        source = run / "records" / f"paper-ig{suffix}"
        (run / "records" / f"strict-ig{suffix}").write_text(source.read_text())
    change(run / "records" / "strict-ig.json", protocol="strict")
    write_records(read_runs([run]), tmp_path / "results")
    (read,) = read_runs([tmp_path / "results"])
    assert [e.summary["protocol"] for e in read.evaluations] == ["paper", "strict"]
    assert [e.gallery is None for e in read.evaluations] == [False, True]
    change(tmp_path / "results" / NAME.format("natural").replace("paper", "strict"), environment={})
    with pytest.raises(CheckpointError, match="trained apart"):
        read_runs([tmp_path / "results"])


def test_galleries_among_the_paths_are_passed_over(results: Path) -> None:
    everything = sorted(results.iterdir())
    assert any(path.suffix == ".npz" for path in everything)
    assert read_runs(everything) == read_runs([results])
    with pytest.raises(CheckpointError, match="no run was given"):
        read_runs([path for path in everything if path.suffix == ".npz"])


def test_no_path_of_a_machine_gets_into_a_record(tmp_path: Path) -> None:
    run = write_run(tmp_path, "natural")
    change(run / "config.json", warm_start=f"{tmp_path}/runs/mnist/madry")
    resumed = [{"command": f"robattr train x --resume --out {run}", "platform": "Kernel"}]
    said = {"command": f"robattr train x --out {run} --data-dir=/srv/data", "platform": "Kernel", "resumed": resumed}
    change(run / "environment.json", **said)
    change(run / "records" / "paper-ig.json", run=str(run), command=f"robattr evaluate '{run}' --out ~/x -o/etc/y")
    write_records(read_runs([run]), tmp_path / "results")
    text = (tmp_path / "results" / NAME.format("natural")).read_text()
    assert not re.search(r"(?<![\w.])[/~]\w+/|Kernel|/etc", text)
    read = json.loads(text)
    assert read["config"]["warm_start"] == "runs/mnist/madry"
    assert read["environment"]["command"] == "robattr train x --out natural --data-dir=data"
    assert read["environment"]["resumed"] == [{"command": "robattr train x --resume --out natural"}]
    assert read["summary"]["command"] == "robattr evaluate 'natural' --out x -oy"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("--set eps=8/255 runs/a/b ../c a/b", "--set eps=8/255 runs/a/b ../c a/b"),
        ("see https://example.org/a/b", "see https://example.org/a/b"),
        ("PYTHONPATH=/opt/a:/opt/b x", "PYTHONPATH=a:b x"),
        ("file:///home/me/x", "x"),
        (r"C:\Users\me\runs\mnist", "runs/mnist"),
        ("robattr audit --data '/home/jane doe/Client (X)/images' -o x", "robattr audit --data 'images' -o x"),
        ("robattr audit '--data=/srv/a b/c d/images'", "robattr audit '--data=images'"),
        ("--data /srv/kunde,alpha/a=b/images --set a=/x/y,b=/z/w", "--data images --set a=y,b=w"),
        ("/home/jane doe/my images", "my images"),
        ("T-shirt/top, ratio s(IG)/ℓ, 3 / 4", "T-shirt/top, ratio s(IG)/ℓ, 3 / 4"),
    ],
)
def test_only_absolute_paths_are_shortened(text: str, left: str) -> None:
    assert portable({"a": [text]}) == {"a": [left]}
    assert portable(float("nan")) is None


def test_a_damaged_or_foreign_file_is_refused(results: Path, tmp_path: Path) -> None:
    whole = json.loads((results / NAME.format("natural")).read_text())
    cases = {
        "not JSON": ('{"schema": 1, "conf', "could not be read as JSON"),
        "a summary": ('{"protocol": "paper"}', "not a record.*robattr record"),
        "later": (json.dumps({**whole, "schema": 99}), "another version"),
        "less": (json.dumps({k: v for k, v in whole.items() if k != "summary"}), "damaged .summary missing"),
        "torn": (json.dumps({**whole, "examples": {"id": [1, 2], "topk": [0.5]}}), "damaged .its columns"),
        "wrong": (json.dumps({**whole, "config": []}), "damaged .its columns or objects"),
    }
    for number, (text, message) in enumerate(cases.values()):
        file = tmp_path / f"{number}.json"
        file.write_text(text)
        with pytest.raises(CheckpointError, match=message):
            read_runs([file])


@pytest.mark.parametrize("name", ["", "///", " "])
def test_a_name_without_a_letter_is_refused(runs: list[Path], name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="expected a --name with letters"):
        write_records(read_runs(runs), tmp_path / "results", name=name)
    assert not (tmp_path / "results").exists()


def test_a_summary_of_other_examples_is_not_recorded(tmp_path: Path) -> None:
    run = write_run(tmp_path, "natural")
    change(run / "records" / "paper-ig.json", examples=50)  # after an evaluation of more, whose records are still there
    ((evaluation,),) = (each.evaluations for each in read_runs([run]))
    assert [record["id"] for record in evaluation.records] == list(range(50))
    change(run / "records" / "paper-ig.json", examples=150)
    with pytest.raises(CheckpointError, match="sums up 150 examples, but 120"):
        write_records(read_runs([run]), tmp_path / "results")
    (run / "records" / "paper-ig.jsonl").unlink()
    with pytest.raises(CheckpointError, match="but 0 are recorded beside it: evaluate again, with --examples 150"):
        write_records(read_runs([run]), tmp_path / "results")
    assert not (tmp_path / "results").exists()


def test_the_end_of_training_is_a_mean_over_its_last_lines() -> None:
    lines = [{"step": 10 * i, "loss": 1 / i, "penalty": float(i), "rate": 5.0} for i in range(1, 201)]
    lines.insert(50, {"step": 500, "val_accuracy": 0.5})
    lines.append({"step": 2000, "val_accuracy": 0.9})
    found = training(lines)
    assert (found.steps, found.lines, found.val_accuracy) == (2000, 10, 0.9)
    assert found.loss == pytest.approx(np.mean([1 / i for i in range(191, 201)]), rel=1e-5)
    assert found.penalty == pytest.approx(195.5)
    assert found.seconds == pytest.approx(2000 / 5)
    assert training(lines[:3]).lines == 1
    assert training([]) == training([{"step": 0}][:0])
    points = curve(lines)
    assert len(points["logged"]["loss"]) == 60
    assert (points["logged"]["penalty"][-1], points["logged"]["step"][-1]) == (199.0, 1990.0)  # of the last three
    assert list(rows(points["validated"])) == [
        {"step": 500.0, "val_accuracy": 0.5},
        {"step": 2000.0, "val_accuracy": 0.9},
    ]
    np.testing.assert_array_equal(thinned([[1.0, 2.0], [3.0, 4.0]], 1), [[2.0, 3.0]])


def test_a_gallery_keeps_the_reported_iterates_and_its_budget(tmp_path: Path) -> None:
    whole = read_gallery(write_run(tmp_path, "natural", examples=12) / "records" / "paper-ig-gallery.npz")
    file = tmp_path / "small.npz"
    file.write_bytes(small(whole, most=8, budget=150_000))
    kept = read_gallery(file)
    assert len(kept) == 8
    assert kept.walks
    for g, i in enumerate(kept.id):
        where = int(np.flatnonzero(whole.id == i)[0])
        np.testing.assert_array_equal(kept.perturbed[g, 0], whole.perturbed[where, whole.reported(where)])
        np.testing.assert_allclose(kept.after[g, 0], whole.after[where, whole.reported(where)], rtol=1e-3)
    sizes = {budget: small(whole, most=8, budget=budget) for budget in (len(file.read_bytes()) - 1, 1)}
    for (_, content), (count, walks) in zip(sizes.items(), ((8, False), (3, False)), strict=True):
        file.write_bytes(content)
        found = read_gallery(file)
        assert (len(found), found.walks) == (count, walks)
    assert set(found.label) == {0, 1, 2}
    file.write_bytes(content[: len(content) // 2])
    with pytest.raises(CheckpointError, match="is damaged"):
        read_gallery(file)


def test_large_images_fit_nearly_into_the_budget() -> None:
    rng = np.random.default_rng(0)
    shape = (6, 3, 128, 128)
    noise = rng.integers(0, 256, shape, dtype=np.uint8)  # worse than any photograph
    gallery = Gallery(
        id=np.arange(6), label=np.arange(6), image=noise, perturbed=noise[:, None], before=rng.random((6, 128, 128)),
        after=rng.random((6, 1, 128, 128)), topk=np.ones((6, 1)), kendall=np.ones((6, 1)),
        kept=np.ones((6, 1), dtype=bool), iterations=np.array([100]),
    )  # fmt: skip
    assert len(small(gallery, most=8, budget=150_000)) < 400_000


def test_the_command(runs: list[Path], tmp_path: Path) -> None:
    folder = str(tmp_path / "results")
    first, second = (
        CliRunner().invoke(app, ["record", *map(str, runs), "-o", folder], catch_exceptions=False).output.splitlines()
        for _ in range(2)
    )
    assert len(first) == len(second) == 8
    assert all(line.startswith("wrote ") for line in first)
    assert all(line.startswith("unchanged ") for line in second)
