"""Groups of evaluations: what is compared with what."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fake_runs import change, write_run
from robattr.errors import CheckpointError
from robattr.reporting.explorer import explorer
from robattr.reporting.figures import map_grid
from robattr.reporting.groups import group_evaluations
from robattr.reporting.run_results import read_run, read_runs


def test_images_of_another_size_or_at_the_same_id_are_kept_apart(tmp_path: Path) -> None:
    small, large, other = (write_run(tmp_path / name, "natural") for name in ("small", "large", "other"))
    gallery = "records/paper-ig-gallery.npz"
    summary = json.loads((large / "records" / "paper-ig.json").read_text())
    settings = {**summary["settings"], "k": 150, "eval_k": 150}
    (large / "records" / "paper-ig.json").write_text(json.dumps({**summary, "settings": settings}))
    arrays = dict(np.load(other / gallery))
    np.savez_compressed(other / gallery, **{**arrays, "image": 255 - arrays["image"]})
    found = group_evaluations(read_runs([small, large, other]))
    assert [(g.k, len(g.members), g.title.split(" · ")[-1]) for g in found] == [
        (100, 2, "k = 100"),
        (150, 1, "k = 150"),
    ]
    assert len({g.key for g in found}) == 2
    shown, alone = explorer(found)
    assert len(shown["examples"]) == 2 * len(alone["examples"])  # no image stands for another
    assert all(sum(model is not None for model in example["models"]) == 1 for example in shown["examples"])
    assert map_grid(found[0]) is None
    assert map_grid(found[1]) is not None


def test_a_run_without_evaluation_is_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path, "natural", gallery=False)
    for file in (run / "records").iterdir():
        file.unlink()
    with pytest.raises(CheckpointError, match="robattr evaluate"):
        group_evaluations([read_run(run)])


@pytest.mark.parametrize("method", ["ig-norm", "igr", "custom"])
def test_of_several_m_of_a_method_one_is_kept_beside_others(tmp_path: Path, method: str) -> None:
    paths = [write_run(tmp_path / f"{method}{m}", method, gallery=False) for m in (3, 5, 9)]
    for path, m in zip(paths, (3, 5, 9), strict=True):
        change(path / "config.json", m=m, steps=1000 if m == 5 else 100, recipe="fashion-mini/my-rho")
    other = write_run(tmp_path / "other", "natural", gallery=False)
    again = write_run(tmp_path / "again", "natural", gallery=False)
    change(again / "config.json", m=77)  # without effect: NATURAL integrates nothing
    (group,) = group_evaluations(read_runs([*paths, other, again]))
    varying = [run for run, _ in group.members if run.m is not None]
    assert [run.m for run in varying] == [3, 5, 9]
    assert all(group.varies_m(run) == (run in varying) for run, _ in group.members)
    assert sorted(run.path for run, _ in group.with_one_m().members) == sorted([paths[1], other, again])
