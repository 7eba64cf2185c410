"""Records render like the runs they come from, are stable, and contain no paths of a machine."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from evaluation_fixtures import TOY
from fake_runs import METHODS, change, rescore, write_run
from robattr.attacks import integrated_gradients
from robattr.errors import CheckpointError, InvalidInput
from robattr.evaluation import OutputDir, evaluate, strict
from robattr.reporting import tables
from robattr.reporting.explorer import explorer
from robattr.reporting.export import portable, write_records
from robattr.reporting.figures import _figures
from robattr.reporting.groups import group_evaluations
from robattr.reporting.html import page
from robattr.reporting.record import read_record
from robattr.reporting.run_results import read_runs

NAME = "fashion-mini-{}-seed0-paper-ig.json"


def files(folder: Path) -> Mapping[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_files_are_named_by_dataset_variant_seed_protocol_and_map(records: Path) -> None:
    names = [NAME.format(variant) for variant in ("ig-norm-m10", "ig-sum-norm-m10", "madry", "natural")]
    assert [path.name for path in sorted(records.glob("*.json"))] == names
    assert [path.name for path in sorted(records.glob("*.npz"))] == [n.replace(".json", "-gallery.npz") for n in names]


def test_records_and_directories_give_the_same_table(runs: list[Path], records: Path) -> None:
    made = [
        tables.table(group_evaluations(read_runs(paths))) for paths in (runs, [records], sorted(records.glob("*.json")))
    ]
    assert made[0] == made[1] == made[2]


def test_scores_of_examples_agree_to_four_digits(runs: list[Path], records: Path) -> None:
    for whole, short in zip(read_runs(runs), read_runs([records]), strict=True):
        assert whole.config == short.config
        for key in ("topk", "kendall"):
            ours, theirs = whole.evaluations[0].scores(key), short.evaluations[0].scores(key)
            assert len(ours) > 100
            np.testing.assert_allclose(theirs, ours, atol=5.001e-5, rtol=0)
        for one, other in zip(whole.evaluations[0].records, short.evaluations[0].records, strict=True):
            assert {k: one[k] for k in ("id", "label", "kept", "correct")} == {
                k: other[k] for k in ("id", "label", "kept", "correct")
            }


def test_records_and_directories_give_the_same_figures(runs: list[Path], records: Path) -> None:
    """Maps and curves are equal; scores are rounded to four digits, logged values to six significant ones."""
    whole, short = (
        dict(_figures(read, group_evaluations(read), 1)) for read in (read_runs(runs), read_runs([records]))
    )
    assert whole.keys() == short.keys() == {"figure1", "figure2", "eps", "training"}
    shown = [
        [image.get_array() for axis in figures["figure1"].axes for image in axis.images] for figures in (whole, short)
    ]
    assert len(shown[0]) == 4 * len(METHODS)
    for one, other in zip(*shown, strict=True):
        np.testing.assert_array_equal(one, other)
    for name, rtol, atol in (("eps", 0, 0), ("figure2", 0, 5.001e-5), ("training", 5.001e-6, 0)):
        drawn = [[line.get_ydata() for axis in made[name].axes for line in axis.lines] for made in (whole, short)]
        assert drawn[0]
        for one, other in zip(*drawn, strict=True):
            np.testing.assert_allclose(np.asarray(other, float), np.asarray(one, float), rtol=rtol, atol=atol)


def test_a_page_of_records_has_an_explorer(runs: list[Path], records: Path) -> None:
    read = read_runs([records])
    assert page(read).startswith("<!doctype html>")
    packed = explorer(group_evaluations(read))[0]
    assert packed["models"] == [run.name for run in read_runs(runs)]
    assert len(packed["examples"]) == 8


def test_recording_again_changes_nothing(runs: list[Path], records: Path, tmp_path: Path) -> None:
    before = files(records)
    assert not any(new for _, new in write_records(read_runs(runs), records))
    write_records(read_runs(runs[::-1]), tmp_path)
    write_records(read_runs([records]), tmp_path / "again")
    again = files(tmp_path / "again")
    assert before == files(records) == {k: (tmp_path / k).read_bytes() for k in before}
    # A record of a record is the same record.
    assert again == before


def test_a_record_that_differs_is_replaced_only_by_force(tmp_path: Path) -> None:
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
    assert read_record(folder / NAME.format("natural"))["config"]["weight"] == 7.0
    assert not (folder / NAME.format("natural").replace(".json", "-gallery.npz")).exists()


def test_two_runs_of_one_name_in_one_command_are_refused(tmp_path: Path) -> None:
    paths = [write_run(tmp_path / str(m), "ig-norm", gallery=False) for m in (20, 30)]
    for path, m in zip(paths, (20, 30), strict=True):
        change(path / "config.json", m=m)
    folder = tmp_path / "results"
    assert len(write_records(read_runs(paths), folder)) == 2
    assert [run.name for run in read_runs([folder])] == ["IG-NORM, m = 20", "IG-NORM, m = 30"]
    change(paths[1] / "config.json", m=20, weight=9)
    with pytest.raises(CheckpointError, match=r"two of the runs would be .*another --name"):
        write_records(read_runs(paths), folder, force=True)


def test_what_each_attack_of_strict_found_is_recorded(tmp_path: Path) -> None:
    run = write_run(tmp_path, "natural")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 12), nn.Softplus(), nn.Linear(12, 3))
    x = torch.rand(4, 1, 6, 6, generator=torch.Generator().manual_seed(1))
    y = net(x).argmax(1)
    y[0] = (y[0] + 1) % 3  # an example that is not attacked
    evaluate(net, x, y, protocol=strict(TOY), map=integrated_gradients(4), out=OutputDir(run / "records"))
    write_records(read_runs([run]), tmp_path / "results")
    found = []
    for path in (run, tmp_path / "results"):
        evaluations = [e for read in read_runs([path]) for e in read.evaluations]
        (hard,) = [e for e in evaluations if e.protocol.startswith("strict")]
        found.append([r.get("attacks") for r in hard.records])
    assert found[0] == found[1]
    assert found[0][0] is None
    assert all({"paper", "random"} <= set(attacks) for attacks in found[0][1:])


def test_records_contain_no_absolute_paths(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("name", ["", "///", " "])
def test_a_name_without_a_letter_is_refused(runs: list[Path], name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="expected a --name with letters"):
        write_records(read_runs(runs), tmp_path / "results", name=name)
    assert not (tmp_path / "results").exists()


def test_a_summary_of_some_of_its_records(tmp_path: Path) -> None:
    """After an evaluation of more examples, whose records are still there."""
    run = write_run(tmp_path, "natural")
    rescore(run, examples=50)
    ((evaluation,),) = (each.evaluations for each in read_runs([run]))
    assert [record["id"] for record in evaluation.records] == list(range(50))


def test_a_record_of_another_dataset_names_both(tmp_path: Path) -> None:
    run = write_run(tmp_path, "natural", dataset="fashion-mnist", gallery=False)
    change(run / "config.json", dataset="fashion-mini", recipe="fashion-mini/natural")
    ((path, _),) = write_records(read_runs([run]), tmp_path / "kept")
    assert path.name == "fashion-mnist-natural-from-fashion-mini-seed0-paper-ig.json"
