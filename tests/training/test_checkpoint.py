"""Checkpoint files: whole or not there, and refused with a reason when they cannot be used."""

from __future__ import annotations

import io
import os
import resource
from dataclasses import replace

import pytest
import torch

from robattr.errors import CheckpointError
from robattr.training import checkpoint
from robattr.training.config import TrainConfig
from robattr.training.loop import train
from train_fixtures import QUICK, tiny_data, tiny_net

RUN = TrainConfig(method="ig-norm")


def write(folder, step, run=RUN, keep=2, **more):
    content = checkpoint.pack({"step": step, "model": {"w": torch.full((3,), float(step))}, **more}, run)
    return checkpoint.save(folder, content, step=step, keep=keep)


def step_of(content):
    return checkpoint.unpack(content)["step"]


def test_the_newest_is_loaded_and_old_ones_are_dropped(tmp_path):
    for step in (0, 10, 20, 30):
        write(tmp_path, step, keep=3)
    assert [found.step for found in checkpoint.listed(tmp_path)] == [10, 20, 30]
    content, refused = checkpoint.load_latest(tmp_path, RUN)
    assert step_of(content) == 30
    assert refused == []


def test_any_torch_can_read_it_without_running_code(tmp_path):
    state = torch.load(write(tmp_path, 7), weights_only=True)
    assert state["step"] == 7
    assert torch.equal(state["model"]["w"], torch.full((3,), 7.0))
    assert state["config"]["method"] == "ig-norm"


def test_what_a_killed_writer_left_is_ignored_and_swept_up(tmp_path):
    write(tmp_path, 10)
    (tmp_path / ".step-000000020-0123456789abcdef.pt.99.tmp").write_bytes(b"half")
    content, refused = checkpoint.load_latest(tmp_path, RUN)
    assert (step_of(content), refused) == (10, [])
    write(tmp_path, 20)
    assert sorted(path.name[:14] for path in tmp_path.iterdir()) == ["step-000000010", "step-000000020"]


def test_a_resumed_run_drops_what_a_kill_left_there(tmp_path):
    train(QUICK, tmp_path, dataset=tiny_data(), model=tiny_net())
    folder = tmp_path / "checkpoints"
    kept = sorted(folder.iterdir())
    for name in ("step-000000001-0123456789abcdef.pt", ".step-000000006-0123456789abcdef.pt.1.tmp"):
        (folder / name).write_bytes(b"left")
    train(QUICK, tmp_path, dataset=tiny_data(), model=tiny_net())
    assert sorted(folder.iterdir()) == kept


def test_an_empty_folder_has_none(tmp_path):
    assert checkpoint.load_latest(tmp_path / "nowhere", RUN) == (None, [])


@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
def test_a_damaged_one_is_passed_over_for_the_one_before(tmp_path, damage):
    write(tmp_path, 10)
    path = write(tmp_path, 20)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes({"flip": bytes(content), "cut": bytes(content[:-100]), "empty": b""}[damage])
    content, refused = checkpoint.load_latest(tmp_path, RUN)
    assert step_of(content) == 10
    assert len(refused) == 1
    assert f"{path.name} is damaged" in refused[0]


def test_when_all_are_damaged_each_is_named(tmp_path):
    for step in (10, 20):
        write(tmp_path, step).write_bytes(b"garbage")
    with pytest.raises(CheckpointError, match=r"step-000000020.*damaged.*step-000000010.*damaged"):
        checkpoint.load_latest(tmp_path, RUN)


def test_another_configuration_is_refused_and_the_keys_are_named(tmp_path):
    write(tmp_path, 10, run=replace(RUN, m=10))
    with pytest.raises(CheckpointError, match="another configuration: m is 50, was 10"):
        checkpoint.load_latest(tmp_path, RUN)


def test_bookkeeping_and_an_extension_are_no_other_configuration(tmp_path):
    write(tmp_path, 10)
    content, _ = checkpoint.load_latest(tmp_path, replace(RUN, steps=10**6, log_every=1, checkpoint_every=3))
    assert step_of(content) == 10


def test_a_newer_format_is_named_and_the_one_before_is_used(tmp_path):
    write(tmp_path, 10)
    write(tmp_path, 20, format=checkpoint.FORMAT + 1, version="99.0")
    content, refused = checkpoint.load_latest(tmp_path, RUN)
    assert step_of(content) == 10
    assert "written by robattr 99.0" in refused[0]
    assert "upgrade" in refused[0]


@pytest.mark.parametrize(
    "junk",
    [
        b"junk",
        {"step": 3},
        [1, 2],
        {"format": 1, "version": "1", "step": "three", "config": {}, "model": {}},
        {"format": 1, "version": "1", "step": 3, "config": {"model": []}, "model": {}},
    ],
    ids=repr,
)
def test_junk_with_the_right_hash_is_refused(tmp_path, junk):
    write(tmp_path, 10)
    buffer = io.BytesIO()
    torch.save(junk, buffer)
    checkpoint.save(tmp_path, junk if isinstance(junk, bytes) else buffer.getvalue(), step=20, keep=3)
    content, refused = checkpoint.load_latest(tmp_path, RUN)
    assert step_of(content) == 10
    assert "is damaged" in refused[0]


def test_pruning_never_counts_refused_newer_files(tmp_path):
    write(tmp_path, 10)
    for step in (30, 40):
        write(tmp_path, step, keep=9).write_bytes(b"garbage")
    write(tmp_path, 20)
    content, _ = checkpoint.load_latest(tmp_path, RUN)
    assert step_of(content) == 20


def test_a_disk_without_room_loses_nothing(tmp_path):
    """The kernel refuses the write (a real limit on file size): the old checkpoint stays, nothing half-written does."""
    kept = write(tmp_path, 10)
    content = checkpoint.pack({"step": 20, "model": {"w": torch.randn(100_000)}}, RUN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        with pytest.raises(CheckpointError, match="what was saved before is untouched"):
            checkpoint.save(tmp_path, content, step=20, keep=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert os.listdir(tmp_path) == [kept.name]
    content, _ = checkpoint.load_latest(tmp_path, RUN)
    assert step_of(content) == 10


def test_a_configuration_from_before_a_key_existed_may_be_continued():
    run = TrainConfig(dataset="mnist", m=10)
    older = {key: value for key, value in run.as_dict().items() if key != "average"}
    assert checkpoint.differences(run, older) == ""
    assert checkpoint.differences(replace(run, average=0.9), older) == "average is 0.9, was 0.0"
