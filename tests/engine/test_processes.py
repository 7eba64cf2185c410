"""The same global batch on one process and on two gives the same weights; a lost worker's run continues by itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch
from typer.testing import CliRunner

from forked import robattr, signalled, start, torchrun
from memory_fixtures import needs_gpu
from robattr import load_model
from robattr.cli import app
from robattr.data.batches import AUGMENTATION, MIRROR, ORDER, generator
from robattr.engine.processes import World, join
from robattr.errors import InvalidInput
from robattr.formula import Rho, cross_entropy
from robattr.training.checkpoint import listed
from robattr.training.config import TrainConfig
from robattr.training.loop import train
from robattr.training.methods import Method
from train_fixtures import QUICK, lines, tiny_data, tiny_net, weights

# The batch of 9 does not divide by two: one process takes 4 examples, the other 5.
BASE = replace(
    QUICK, batch=9, steps=2, validate_every=2, lr=1e-3, weight=0.3, budget=0.05, checkpoint_every=100, clip=5.0
)
PAPER = get_args(Method)[:8]
CASES: dict[str, tuple[TrainConfig, dict[str, bool]]] = {
    f"{method} fp64{' batch-norm' if norm else ''}": (
        replace(BASE, method=method, precision="fp64", reduction="sum" if method == "madry" else "mean"),
        {"norm": norm},
    )
    for norm in (False, True)
    for method in PAPER
}
# A bias before batch norm. NATURAL is left out: the batch mean cancels that bias, so its gradient is rounding noise,
# which Adam turns into full steps (docs/scaling.md). In the other objectives the frozen path gives it a real gradient.
CASES |= {
    f"{method} fp32 batch-norm": (
        replace(CASES[f"{method} fp64"][0], precision="fp32"),
        {"norm": True, "bias": method != "natural"},
    )
    for method in PAPER
}
CASES |= {
    f"{method} fp64 batch-norm": (replace(BASE, method=method, precision="fp64"), {"norm": True})
    for method in get_args(Method)
    if method not in (*PAPER, "interval-bound")
}
CASES["interval-bound fp64"] = replace(BASE, method="interval-bound", precision="fp64"), {"relu": True}


def own_objective(model, x, y, *, rand):
    """An objective of the user's: the loss at a random point near x."""
    loss = cross_entropy(model, x + 0.1 * rand(x), y)
    return Rho(loss, 0 * loss, x)


CASES["madry bf16 batch-norm"] = replace(BASE, method="madry", precision="bf16"), {"norm": True}
CASES["own fp64"] = replace(BASE, precision="fp64").with_objective(own_objective), {"norm": True}
GROUP = replace(BASE, method="ig-sum-norm", precision="fp64")
TOLERANCE = {"fp64": 1e-10, "fp32": 1e-4, "bf16": 0.05}


def work(folder: Path) -> None:
    """What each of the two processes does: one run by itself, a look at the threads it leaves, and every case."""
    torch.ones(1, requires_grad=True).backward()  # with a GPU, torch's first backward pass starts threads of its own
    rank, before = os.environ["RANK"], threads()
    train(BASE, folder / "run", dataset=tiny_data(), model=tiny_net(), device="cpu")
    ended = time.monotonic() + 1  # a thread that was joined is listed until the system has removed it
    while threads() > before and time.monotonic() < ended:
        time.sleep(0.01)
    (folder / rank).write_text(f"{before} {threads()}")
    for number in range(8):  # one call after another under one torchrun
        with join("cpu") as world:
            assert world.total(torch.full((3,), float(number))).tolist() == [2.0 * number] * 3
    torch.distributed.init_process_group("gloo")
    for name, (run, net) in CASES.items():
        model = tiny_net(**net)
        train(run, folder / name, dataset=tiny_data(), model=model, device="cpu")
        torch.save(weights(model), folder / f"{name} {rank}.pt")
    torch.distributed.destroy_process_group()


def alone(folder: Path, device: str) -> None:
    """A run by one process of a group on the backend of the device, through every collective operation."""
    torch.distributed.init_process_group("nccl" if device == "cuda" else "gloo")
    for name in ("total", "wait", "from_leader"):
        collective = getattr(World, name)
        setattr(World, name, lambda self, *values, call=collective: call(replace(self, size=2), *values))
    model = tiny_net()
    train(GROUP, folder / "run", dataset=tiny_data(), model=model, device=device)
    torch.save((weights(model).cpu(), torch.distributed.get_backend()), folder / "weights.pt")
    torch.distributed.destroy_process_group()


def threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("pair")
    launcher = start(torchrun, work, folder, log=folder / "log")
    launcher.join(timeout=600)
    assert launcher.exitcode == 0, (folder / "log").read_text()[-4000:]
    return folder


@needs_gpu
def test_one_process_on_nccl_makes_the_weights_of_one_without_a_group(tmp_path):
    paths = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1", __file__]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    done = subprocess.run([*command, tmp_path, "cuda"], env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    found, backend = torch.load(tmp_path / "weights.pt")
    assert backend == "nccl"
    model = tiny_net()
    train(GROUP, tmp_path / "alone", dataset=tiny_data(), model=model, device="cuda")
    one = weights(model).cpu()
    assert float((found - one).norm() / one.norm()) < TOLERANCE["fp64"]


@pytest.mark.parametrize("name", CASES)
def test_two_processes_make_the_weights_of_one(pair, tmp_path, name):
    run, net = CASES[name]
    model = tiny_net(**net)
    before = weights(model)
    train(run, tmp_path / "run", dataset=tiny_data(), model=model, device="cpu")
    one = weights(model)
    first, second = (torch.load(pair / f"{name} {rank}.pt") for rank in (0, 1))
    assert torch.equal(first, second)
    assert float((one - before).norm()) > 1e-2
    assert float((first - one).norm() / one.norm()) < TOLERANCE[run.precision]


def test_random_starts_are_a_stream_of_their_own() -> None:
    drawn = World(0, 1, torch.device("cpu")).rand(5, seed=7, step=3)(torch.zeros(5, 4)).flatten()
    for stream in (ORDER, AUGMENTATION, MIRROR):
        assert not torch.equal(torch.rand(20, generator=generator(7, stream, 3)), drawn)


def test_slices_cover_the_batch_and_cut_one_noise():
    x = torch.zeros(7, 2, 3)
    whole = World(0, 1, torch.device("cpu")).rand(7, seed=3, step=5)(x)
    parts = [World(rank, 3, torch.device("cpu")) for rank in range(3)]
    cut = [world.rand(7, seed=3, step=5)(x[world.share(7)]) for world in parts]
    assert torch.equal(torch.cat(cut), whole)
    other = World(0, 1, torch.device("cpu")).rand(7, seed=3, step=6)(x)
    assert not torch.equal(other, whole)
    assert 0 <= whole.min() < whole.max() < 1


def test_more_processes_than_examples_are_refused():
    with pytest.raises(InvalidInput, match="a batch of 2 cannot be shared among 3 processes"):
        World(0, 3, torch.device("cpu")).share(2)


def test_a_worker_leaves_no_thread_that_could_wake_while_python_ends(pair):
    for rank in "01":
        before, after = map(int, (pair / rank).read_text().split())
        assert after <= before


def words(out: Path, *settings: str) -> list[str]:
    given = ("batch=8", "log_every=1", "validate_every=0", *settings)
    return ["train", "fashion-mini/natural", "--device=cpu", "--out", str(out), *(f"--set={word}" for word in given)]


def loses_a_worker(*words: str) -> None:
    first = (os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]) == ("1", "0")
    signalled(signal.SIGKILL, 12 if first else None, *words)


def test_a_killed_worker_is_restarted_and_resumes(tmp_path):
    out, log = tmp_path / "run", tmp_path / "log"
    settings = ("steps=40", "checkpoint_every=5", "schedule=constant", "precision=fp64")
    launcher = start(torchrun, loses_a_worker, *words(out, *settings), log=log)
    launcher.join(timeout=600)
    assert launcher.exitcode == 0, log.read_text()[-4000:]
    assert "run: continuing after 10 of 40 steps" in log.read_text()

    assert CliRunner().invoke(app, words(tmp_path / "alone", *settings)).exit_code == 0
    one, two = (weights(load_model(path)) for path in (tmp_path / "alone", out))
    assert float((one - two).norm() / one.norm()) < 1e-6  # the file has float32


def test_processes_stop_together_when_asked(tmp_path):
    out, log = tmp_path / "run", tmp_path / "log"
    launcher = start(torchrun, robattr, *words(out, "steps=5000"), log=log)
    while not ((out / "metrics.jsonl").exists() and (out / "metrics.jsonl").read_text()):
        assert launcher.is_alive(), log.read_text()
        time.sleep(0.02)
    launcher.terminate()
    launcher.join(timeout=120)
    assert "stopped by SIGTERM after step" in log.read_text()
    assert lines(out)[-1]["step"] == listed(out / "checkpoints")[-1].step


def children(parent: int) -> list[int]:
    """The processes that `parent` started."""
    listed = Path(f"/proc/{parent}/task/{parent}/children").read_text()
    return [int(word) for word in listed.split()]


if __name__ == "__main__":
    alone(Path(sys.argv[1]), sys.argv[2])
