"""Damaged files of every kind are read, or refused with a reason; nothing else. `make torture` tries many more."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from PIL import Image

from fake_runs import write_run
from robattr import data, models
from robattr.auditing.wrapped_model import check_preprocessing
from robattr.cli.train import resolve
from robattr.errors import RobattrError
from robattr.evaluation.gallery import read_gallery
from robattr.evaluation.records import read_settings
from robattr.models import small_cnn
from robattr.reporting import read_runs, write_records
from robattr.reporting.certified import read_certificates, rows, sentences
from robattr.reporting.groups import group_evaluations
from robattr.reporting.html import page
from robattr.reporting.tables import markdown, table
from robattr.training import checkpoint
from robattr.training.config import TrainConfig
from robattr.training.settings import to_toml
from robattr.training.sweep import _read as read_point
from torture.mutations import of

EACH = int(os.environ.get("TORTURE_EXAMPLES", "8"))  # of a kind


@dataclass(frozen=True)
class Door:
    """A kind of file: where it lies, and what reads it."""

    name: str
    file: str
    read: Callable[[Path], object]


def shown(path: Path) -> None:
    """A run as reports read and render it."""
    runs = read_runs([path])
    groups = group_evaluations(runs)
    markdown(table(groups))
    page(runs)


def unsealed(path: Path) -> None:
    """What was damaged by someone who removed the digests that would tell."""
    with suppress(ValueError, RecursionError):
        content = json.loads(path.read_bytes())
        for part in (content, content.get("summary")) if isinstance(content, dict) else ():
            for key in ("digest", "records", "file") if isinstance(part, dict) else ():
                part.pop(key, None)
        path.write_text(json.dumps(content), encoding="utf-8")
    shown(path if path.parent.name != "records" else path.parents[1])


def certified(path: Path) -> None:
    found = read_certificates(path.parent)
    rows(found)
    [sentences(each) for each in found]


def rehashed(path: Path) -> None:
    content = path.read_bytes()
    checkpoint.load(checkpoint.Checkpoint(path, 5, hashlib.sha256(content).hexdigest()[:16]))


DOORS = [
    *(
        Door(name, f"run/{name}", lambda path: shown(path.parent))
        for name in ("config.json", "environment.json", "metrics.jsonl")
    ),
    Door("summary", "run/records/paper-ig.json", lambda path: shown(path.parents[1])),
    Door("records", "run/records/paper-ig.jsonl", lambda path: shown(path.parents[1])),
    Door("gallery", "run/records/paper-ig-gallery.npz", lambda path: shown(path.parents[1])),
    Door("thinned gallery", "run/records/paper-ig-gallery.npz", read_gallery),
    Door("settings", "run/records/paper-ig.settings", read_settings),
    Door("published record", "published.json", shown),
    Door("summary without digest", "run/records/paper-ig.json", unsealed),
    Door("published record without digest", "published.json", unsealed),
    Door("certificates", "certificates/ig.json", certified),
    Door("TOML", "train.toml", lambda path: resolve(None, config=path, words=[])),
    Door("JSON", "train.json", lambda path: resolve(None, config=path, words=[])),
    Door("sweep", "sweep.json", read_point),
    Door("preprocessing", "preprocessing.json", lambda path: check_preprocessing({"mean": (0.5,)}, path)),
    Door("weights", "model.safetensors", models.read_model),
    Door("tensors", "weights.pt", lambda path: models.load_weights(small_cnn(), path)),
    Door("checkpoint", "step.pt", rehashed),
    Door("image", "images/a/0.png", lambda path: data.from_folder(path.parents[1])),
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one valid file of every kind."""
    place = tmp_path_factory.mktemp("whole")
    write_run(place, "natural", examples=2, steps=2).rename(place / "run")
    summary = place / "run/records/paper-ig.json"
    more = {
        "same_class_cosine": {"value": 0.5, "low": 0.4, "high": 0.6, "n": 2},
        "diagnostics": {"label_flips": 0.1, "accuracy_under": {"pgd": 0.5, "margin": 0.5}},
        "alarms": ["an alarm"], "flags": ["a flag"], "earlier": 0, "precision": "fp32", "run": "run",
    }  # fmt: skip
    summary.write_text(json.dumps({**json.loads(summary.read_bytes()), **more}))
    (place / "run/records/paper-ig.settings").write_text('{"settings": {"eps": 0.1, "weights": "ab"}}')
    (published, _), *_ = write_records(read_runs([place / "run"]), place / "results")
    published.rename(place / "published.json")
    run = TrainConfig(recipe="fashion-mini/natural")
    (place / "train.toml").write_text(to_toml(run))
    (place / "train.json").write_text('{"recipe": "fashion-mini/natural", "steps": 3, "lr": 0.1, "m": 5}')
    score = {"value": 0.5, "low": 0.4, "high": None, "n": 9, "excluded": 0}
    (place / "sweep.json").write_text(
        json.dumps({"point": {"lr": 0.1}, "scores": {"a": {"nat_acc": score}, "b": None}})
    )
    (place / "preprocessing.json").write_text('{"mean": [0.5], "std": [0.25]}')
    estimate = '{"value": 0.5, "low": 0.4, "high": 0.6, "n": 4}'
    (place / "certificates").mkdir()
    (place / "certificates/ig.json").write_text(
        '{"map": "ig", "settings": {"alpha": 0.001, "sigma": 0.25, "samples": 10}, "examples": 1, "k": 3, '
        '"shape": [1, 4, 4], "bounds": [0, 1], "columns": {}, "per_example": {"id": [0]}, "radii": [{"radius": 0.1, '
        + ", ".join(f'"{key}": {estimate}' for key in ("answer", "share", "inside", "overlap", "cosine"))
        + "}]}"
    )
    (place / "certificates/ig.jsonl").write_text('{"id": 0, "label": 1, "correct": true, "confidence": 0.5}\n')
    net = small_cnn()
    models.save_model(net, place / "model.safetensors")
    torch.save(net.state_dict(), place / "weights.pt")
    content = checkpoint.pack({"step": 5, "model": net.state_dict()}, run)
    (place / "step.pt").write_bytes(content)
    for name in ("a", "b"):
        (place / "images" / name).mkdir(parents=True)
        for number in range(5):
            Image.fromarray(np.full((8, 8, 3), 40 * number, np.uint8)).save(place / "images" / name / f"{number}.png")
    return place


@pytest.mark.usefixtures("undrawn")
@pytest.mark.filterwarnings("ignore:1 images in .* cannot be read")
@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.name)
def test_a_damaged_file_is_read_or_refused(door: Door, whole: Path, tmp_path: Path) -> None:
    top = door.file.partition("/")[0]
    source = whole / top
    target = tmp_path / top
    (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
    file = tmp_path / door.file
    content = file.read_bytes()
    door.read(file)

    @seed(0)
    @settings(
        max_examples=EACH,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def damage(draw: st.DataObject) -> None:
        file.write_bytes(draw.draw(of(file.name, content)))
        with suppress(RobattrError):
            door.read(file)

    damage()
