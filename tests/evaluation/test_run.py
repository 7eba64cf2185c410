"""Whole evaluations: what they write, resume and leave unchanged."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from threading import Barrier, Lock

import pytest
import torch
from torch import nn

from evaluation_fixtures import IG, TOY
from memory_fixtures import DEVICES, Memory
from robattr._progress import silent
from robattr.attacks import integrated_gradients, simple_gradient
from robattr.engine.files import InUse, locked
from robattr.errors import CheckpointError, InvalidInput
from robattr.evaluation import OutputDir, evaluate, job
from robattr.evaluation.gallery import read_gallery
from robattr.evaluation.job import Job
from robattr.models import resnet

pytestmark = pytest.mark.usefixtures("quick_diagnostics")


def test_one_pass_instead_of_many_makes_larger_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory for 60 passes at once: of IG, ten nodes of 6 examples, so two parts make a batch of at least 8."""
    monkeypatch.setattr("robattr.evaluation.job.rows_that_fit", lambda model, x, passes, least: 60 // passes)
    protocol = replace(TOY, eps=8.0, bounds=(0.0, 255.0), N=100, repeats=3)
    x = 255 * torch.rand(12, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    flat = torch.full_like(x, 100.0)
    net, y, ids = resnet(3, 1, channels=1), torch.zeros(12).long(), list(range(12))
    sizes = [
        Job(net, map, images, y, ids, protocol, compiled=False).size
        for images in (x, flat)
        for map in (integrated_gradients(100), simple_gradient())
    ]
    assert sizes == [60, 60, 12, 60]


def test_inputs_that_are_no_images(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 3))
    x = torch.rand(6, 20)
    found = evaluate(net, x, net(x).argmax(dim=1), protocol=TOY, map=IG, out=OutputDir(tmp_path)).summary
    assert found["columns"]["kendall"]["n"] == 6
    assert found["columns"]["ssim"]["value"] is None
    assert not list(tmp_path.glob("*.npz"))


def test_a_device_without_float64_is_refused(case, monkeypatch: pytest.MonkeyPatch) -> None:
    net, x, y = case
    monkeypatch.setattr(Job, "device", torch.device("mps"))
    with pytest.raises(InvalidInput, match="got one on mps, which has no float64: use --device cpu"):
        evaluate(net, x, y, protocol=TOY, map=IG)


def test_the_model_is_left_as_it_was() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout(), nn.Flatten(), nn.Linear(48, 3))
    x = torch.rand(6, 1, 6, 6)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    y = net.eval()(x).argmax(dim=1)
    net.train()
    evaluate(net, x, y, protocol=TOY, map=IG)
    assert all(module.training for module in net.modules())
    assert all(p.requires_grad and p.grad is None for p in net.parameters())
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_settings_tell_the_points_of_the_map_that_was_used(case) -> None:
    net, x, y = case
    assert evaluate(net, x[:4], y[:4].byte(), protocol=TOY, map=integrated_gradients(3)).summary["settings"]["N"] == 3
    assert evaluate(net, x[:4], y[:4], protocol=TOY, map=simple_gradient()).summary["settings"]["N"] == TOY.N


def test_written_files(case, tmp_path: Path, plain) -> None:
    net, x, y = case
    found = evaluate(net, x, y, protocol=TOY, map=IG, out=OutputDir(tmp_path), metadata={"run": "toy"})
    assert found.records == plain.records
    assert json.loads((tmp_path / "paper-ig.json").read_text())["run"] == "toy"
    assert len((tmp_path / "paper-ig.jsonl").read_text().splitlines()) == 12
    gallery = read_gallery(tmp_path / "paper-ig-gallery.npz")
    assert gallery.image.shape == (sum(bool(r["kept"]) for r in found.records), 1, 6, 6)
    assert gallery.after.shape == (*gallery.perturbed.shape[:2], 6, 6)
    by_id = {r["id"]: r for r in found.records}
    for g, i in enumerate(gallery.id.tolist()):
        if by_id[i]["iterate"]:
            at = gallery.iterations.tolist().index(by_id[i]["iterate"])
            assert gallery.kendall[g, at] == pytest.approx(by_id[i]["kendall"], abs=1e-6)
            assert gallery.kept[g, at]
    again = evaluate(net, x, y, protocol=TOY, map=IG, out=OutputDir(tmp_path))
    assert again.records == found.records


def test_the_summary_of_a_finished_evaluation_is_kept(case, tmp_path: Path, monkeypatch) -> None:
    net, x, y = case

    def summary(command: str, n: int = 2) -> dict[str, object]:
        out = OutputDir(tmp_path)
        metadata = {"command": command}
        return evaluate(net, x[:n], y[:n], protocol=TOY, map=simple_gradient(), out=out, metadata=metadata).summary

    first = summary("first")
    stamp = (tmp_path / "paper-sg-gallery.npz").stat().st_mtime_ns
    assert summary("second") == first  # command and seconds are those of the evaluation that made the records
    assert (tmp_path / "paper-sg-gallery.npz").stat().st_mtime_ns == stamp
    fewer = summary("third", n=1)
    assert (fewer["examples"], fewer["command"]) == (1, "third")
    assert summary("fourth")["examples"] == 2
    (tmp_path / "paper-sg.json").unlink()  # killed before the summary
    assert summary("fifth")["command"] == "fifth"
    monkeypatch.setattr("robattr.evaluation.run.__version__", "99")
    assert summary("sixth")["command"] == "sixth"


def test_a_damaged_summary_is_written_again(case, tmp_path: Path) -> None:
    net, x, y = case
    words = {"protocol": TOY, "map": simple_gradient(), "out": OutputDir(tmp_path)}
    whole = evaluate(net, x[:2], y[:2], **words).summary
    for damage in ("{bad", "{}", "[1]"):
        (tmp_path / "paper-sg.json").write_text(damage, encoding="utf-8")
        again = evaluate(net, x[:2], y[:2], **words).summary
        assert again["columns"] == whole["columns"]
        assert json.loads((tmp_path / "paper-sg.json").read_text(encoding="utf-8")) == again


@pytest.fixture
def whole(case, tmp_path: Path, monkeypatch) -> Path:
    """The folder of an evaluation in six batches, by one process without a break."""
    monkeypatch.setattr(job, "BATCH", (2, 2))
    evaluate(*case, protocol=TOY, map=IG, out=OutputDir(tmp_path / "whole"))
    return tmp_path / "whole"


def check_equal(ours: Path, whole: Path, *, earlier: int) -> None:
    assert (ours / "paper-ig.jsonl").read_bytes() == (whole / "paper-ig.jsonl").read_bytes()
    mine, theirs = (json.loads((folder / "paper-ig.json").read_text()) for folder in (ours, whole))
    assert mine["columns"] == theirs["columns"]
    assert (mine["earlier"], theirs["earlier"]) == (earlier, 0)


def test_a_stopped_evaluation_resumes(case, tmp_path: Path, whole: Path) -> None:
    """What SIGKILL leaves on the disk is tested in test_records.py."""
    stopped = tmp_path / "stopped"

    def stop(_: str, done: int, total: int) -> None:
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(*case, protocol=TOY, map=IG, out=OutputDir(stopped), watch=stop)
    assert [len(part.read_text().splitlines()) for part in stopped.glob("paper-ig.from*.jsonl")] == [2, 2]
    assert not (stopped / "paper-ig.json").exists()
    evaluate(*case, protocol=TOY, map=IG, out=OutputDir(stopped))
    check_equal(stopped, whole, earlier=4)


def test_a_second_process_with_the_same_records_is_refused(case, tmp_path: Path) -> None:
    def again(_: str, done: int, total: int) -> None:
        evaluate(*case, protocol=TOY, map=IG, out=OutputDir(tmp_path))

    with pytest.raises(InUse, match=f"another process is writing to {tmp_path}: wait for it"):
        evaluate(*case, protocol=TOY, map=IG, out=OutputDir(tmp_path), watch=again)


def test_the_records_of_a_process_that_outlived_its_first_are_not_discarded(case, tmp_path: Path) -> None:
    """The second of two processes still writes after the first was killed."""
    shard = tmp_path / "paper-ig.from4.jsonl"
    with locked(tmp_path, ".paper-ig.lock", shared=True):
        shard.write_text('{"id": 4}\n')
        with pytest.raises(InUse, match="another process is writing"):
            evaluate(*case, protocol=TOY, map=IG, out=OutputDir(tmp_path, fresh=True))
    assert shard.exists()


def test_a_removed_folder_of_records_is_noticed(case, tmp_path: Path) -> None:
    folder = tmp_path / "records"

    def remove(*_: object, **unit: str) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()

    with pytest.raises(CheckpointError, match=r"removed|is missing"):
        evaluate(*case, protocol=TOY, map=IG, out=OutputDir(folder), watch=remove)


def test_two_processes_write_the_records_of_one(case, tmp_path: Path, whole: Path, monkeypatch) -> None:
    """Two ranks as threads that take turns: one runs until it waits for the other."""
    turn, both = Lock(), Barrier(2, timeout=120)

    def barrier() -> None:
        turn.release()
        try:
            both.wait()
        finally:
            turn.acquire()

    def rank(number: int) -> None:
        net, x, y = case
        with turn:
            try:
                out = OutputDir(tmp_path / "shared", rank=number, world=2)
                evaluate(copy.deepcopy(net), x, y, protocol=TOY, map=IG, out=out)
            except BaseException:
                both.abort()
                raise

    monkeypatch.setattr(torch.distributed, "barrier", barrier)
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(rank, number) for number in (0, 1)]:
            done.result()
    check_equal(tmp_path / "shared", whole, earlier=0)


@pytest.mark.parametrize("device", DEVICES)
def test_where_memory_runs_out_an_evaluation_goes_on_in_parts(device: str, tmp_path: Path, monkeypatch) -> None:
    """After the first of three batches, in all that follows: records, diagnostics and gallery."""
    monkeypatch.setattr(job, "BATCH", (16, 16))
    memory = Memory(device)
    net = memory.net()
    x = torch.rand(48, 1, 6, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = net(x.to(device)).argmax(dim=1).cpu()

    def found(name: str, watch=silent) -> list[float]:
        out = OutputDir(tmp_path / name)
        made = evaluate(net, x, y, protocol=TOY, map=IG, out=out, watch=watch)
        scores = [record[name] for record in made.records for name in ("topk", "kendall", "insertion")]
        shown = read_gallery(tmp_path / name / "paper-ig-gallery.npz")
        return [*scores, *made.summary["curves"]["score_vs_eps"]["kendall"], *shown.kendall.flatten().tolist()]

    def after_first_batch(enter: Callable[[], object]) -> Callable[..., None]:
        def watch(_: str, done: int, total: int, unit: str = "examples") -> None:
            if (done, unit) == (16, "examples"):
                enter()

        return watch

    with ExitStack() as rest:
        whole = found("whole", after_first_batch(lambda: rest.enter_context(memory.measured())))
    assert memory.failures == 0
    with ExitStack() as rest:
        parts = found("parts", after_first_batch(lambda: rest.enter_context(memory.scarce(0.3))))
    assert memory.failures > 0
    assert parts == pytest.approx(whole, abs=1e-9)
