"""The loop: what a step does, what a run leaves, how it stops and continues."""

from __future__ import annotations

import json
import math
import shlex
import shutil
from contextlib import ExitStack
from dataclasses import replace
from typing import get_args

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from memory_fixtures import DEVICES, Memory
from robattr import load_model, models
from robattr.data import Batches, Dataset, Split, from_tensors
from robattr.engine.files import InUse, locked
from robattr.errors import CheckpointError, Diverged, InvalidInput
from robattr.formula import Distributional, skip_model_checks
from robattr.training import checkpoint, loop, setup
from robattr.training.loop import train
from robattr.training.methods import Method
from robattr.training.run_directory import RunDirectory, read_config
from robattr.training.setup import save_weights
from robattr.training.state import make_optimizer
from robattr.training.step import READ_EVERY, size_of_ig, train_step
from train_fixtures import QUICK, lines, tiny_data, tiny_net, weights

METHODS = get_args(Method)


def go(run, path, *, model=None, fresh=False):
    model = model or tiny_net()
    outcome = train(run, path, dataset=tiny_data(), model=model, device="cpu", fresh=fresh)
    return model, outcome


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_and_leaves_a_whole_run_directory(tmp_path, method):
    run = replace(QUICK, method=method, weight=0.1, budget=0.1, steps=20, lr=3e-2, log_every=5, seed=3)
    net = tiny_net()
    if method == "interval-bound":  # has no rule for softplus
        net[1] = nn.ReLU()
    model, outcome = go(run, tmp_path / "run", model=net)
    records = [record for record in lines(outcome.path) if "loss" in record]
    assert [record["step"] for record in records] == list(range(5, 21, 5))
    assert records[-1]["loss"] < records[0]["loss"]
    assert {"penalty", "value", "accuracy", "lr", "weight", "eps", "rate", "grad_norm"} <= records[0].keys()
    assert (records[-1]["penalty"] == 0) == (method == "natural")
    assert ("ig" in records[-1]) == (method in ("ig-norm", "ig-sum-norm", "input-gradient", "distributional-ig"))
    if method == "ig-norm":
        assert all(record["ig"] == pytest.approx(record["penalty"], rel=1e-5) for record in records)
    assert lines(outcome.path)[-1] == {"step": 20, "val_accuracy": outcome.val_accuracy}
    assert json.loads((outcome.path / "config.json").read_text())["method"] == method
    environment = json.loads((outcome.path / "environment.json").read_text())
    assert environment["versions"]["torch"] == torch.__version__
    stored = models.load_weights(tiny_net(), outcome.path / "model.safetensors")
    assert torch.equal(weights(stored), weights(model))


def test_the_command_of_a_run_can_be_typed_again(tmp_path, monkeypatch):
    words = ["train", "fashion-mini/natural", "--out", "runs/a b"]
    monkeypatch.setattr("sys.argv", ["robattr", *words])
    _, outcome = go(replace(QUICK, steps=1), tmp_path / "run")
    command = json.loads((outcome.path / "environment.json").read_text())["command"]
    assert shlex.split(command) == ["robattr", *words]
    monkeypatch.setattr("sys.argv", ["folder/my script.py", "a"])
    _, outcome = go(replace(QUICK, steps=1), tmp_path / "other")
    command = json.loads((outcome.path / "environment.json").read_text())["command"]
    assert shlex.split(command) == ["python", "my script.py", "a"]


def test_the_size_of_ig_is_told_apart_from_the_loss_it_is_added_to():
    """penalty = ℓ(x') − ℓ(x) + β‖IG‖₁, so ‖IG‖₁ is what remains of it, over β."""
    net, data = tiny_net().double(), tiny_data()
    x, y = data.pixels(data.train.images[:6]).double(), data.train.labels[:6]
    objective = replace(QUICK, method="ig-sum-norm", weight=0.3).objective()
    rho = objective(net, x, y)
    shift = F.cross_entropy(net(rho.worst), y, reduction="none") - F.cross_entropy(net(x), y, reduction="none")
    torch.testing.assert_close(size_of_ig(objective, net, x, rho.worst, y), ((rho.penalty - shift) / 0.3).detach())


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_heavy_ball_with_decay_inside_the_loss_is_the_papers_update(tmp_path, reduction):
    """v ← 0.9v + ∇(ρ + decay·½Σw²), w ← w − η_t·v, written out; kernels and matrices decay, biases do not."""
    run = replace(
        QUICK, method="natural", optimizer="momentum", decay=0.3, reduction=reduction, precision="fp64",
        schedule="piecewise", boundaries=(1, 3), rates=(0.01, 0.02, 0.005),
    )  # fmt: skip
    trained, _ = go(run, tmp_path / "run")

    model, batches = tiny_net().double(), Batches(tiny_data(), 8, seed=run.seed)
    velocity = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for step, rate in enumerate([0.01, 0.01, 0.02, 0.02, 0.005, 0.005]):
        x, y = batches.batch(step)
        loss = F.cross_entropy(model(x.double()), y, reduction=reduction)
        decayed = sum(p.square().sum() for name, p in model.named_parameters() if name.endswith("weight"))
        gradients = torch.autograd.grad(loss + 0.3 * 0.5 * decayed, list(model.parameters()))
        with torch.no_grad():
            for (name, p), g in zip(model.named_parameters(), gradients, strict=True):
                velocity[name] = 0.9 * velocity[name] + g
                p -= rate * velocity[name]
    assert torch.allclose(weights(trained), weights(model), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("q", [1.0, 1.1, 2.0, 3.0])
def test_input_gradient_is_the_q_norm_of_the_gradient_whatever_the_ramps_and_the_attack(q):
    """Black images: the bounds of valid pixels must not hold back what only measures a gradient."""
    model, y = tiny_net().double(), torch.arange(4) % 3
    run = replace(QUICK, method="input-gradient", power=q, weight=0.5, eps_ramp=(0, 10))
    x = torch.zeros(4, 1, 6, 6, dtype=torch.float64, requires_grad=True)
    (g,) = torch.autograd.grad(F.cross_entropy(model(x), y, reduction="sum"), x)
    rho = run.at(0).objective((0.0, 1.0))(model, x.detach(), y)
    torch.testing.assert_close(rho.weight * rho.penalty, 0.5 * g.abs().pow(q).flatten(1).sum(1), rtol=1e-6, atol=0)


def test_clipping_bounds_the_update(tmp_path):
    run = replace(QUICK, optimizer="momentum", momentum=0.0, lr=1.0, clip=1e-3, steps=1)
    model, _ = go(run, tmp_path / "run")
    assert lines(tmp_path / "run")[0]["grad_norm"] > 1e-3
    assert float((weights(model) - weights(tiny_net())).norm()) == pytest.approx(1e-3, rel=1e-3)


class Viewed(nn.Module):
    """A network that reshapes by `view`, which takes one layout of memory."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.stem, self.head = nn.Conv2d(1, 4, 3), nn.Linear(64, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(F.softplus(self.stem(x)).view(len(x), -1))


def test_a_network_that_views_keeps_its_layout_of_memory(tmp_path, monkeypatch):
    found = []
    for path in ("plain", "gpu"):
        model = Viewed()
        train(replace(QUICK, method="ig-norm"), tmp_path / path, dataset=tiny_data(), model=model, device="cpu")
        found.append(weights(model))
        monkeypatch.setattr(setup, "layout", lambda *_: torch.channels_last)  # as on a GPU
    assert model.stem.weight.is_contiguous()
    assert torch.equal(*found)


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_channels_last_trains_alike_under_a_fused_optimiser(tmp_path, monkeypatch, optimizer):
    """The layout of a run on a GPU; a fused optimiser needs gradients and its own state laid out like the weights."""
    run = replace(QUICK, method="ig-norm", optimizer=optimizer, average=0.5, steps=4)
    source = torch.Generator().manual_seed(2)
    data = from_tensors(torch.rand((60, 3, 6, 6), generator=source), torch.arange(60) % 3, validation=0.1, test=0.1)

    def net():
        torch.manual_seed(3)
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Softplus(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(16, 3))

    def trained(path, **change):
        model = net()
        train(replace(run, **change), tmp_path / path, dataset=data, model=model, device="cpu")
        return model

    plain = trained("plain")
    monkeypatch.setattr(setup, "layout", lambda *_: torch.channels_last)

    def fused(run, model):
        made = make_optimizer(run, model)
        for group in made.param_groups:
            group["fused"], group["foreach"] = True, False
        return made

    monkeypatch.setattr(setup, "make_optimizer", fused)
    heard = []
    step = type(fused(run, net())).step
    monkeypatch.setattr(
        type(fused(run, net())), "step",
        lambda self: (
            heard.extend(p.grad.stride() == p.stride() for g in self.param_groups for p in g["params"]), step(self)
        )[1],
    )  # fmt: skip
    trained("moved", steps=2)
    moved = trained("moved")
    assert moved[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert len(heard) == 4 * 6
    assert all(heard)
    torch.testing.assert_close(weights(moved), weights(plain), rtol=1e-4, atol=1e-6)


def test_averaged_weights_are_kept_and_change_nothing_on_the_way(tmp_path):
    """θ̄ from the weights in the checkpoints, by the formula; training itself goes as it would without."""
    run = replace(QUICK, steps=6, checkpoint_every=1, keep=9, validate_every=1, average=0.6)
    plain, _ = go(replace(run, average=0.0), tmp_path / "plain")
    model, outcome = go(run, tmp_path / "run")
    states = [
        checkpoint.unpack(checkpoint.load(kept, run)) for kept in checkpoint.listed(tmp_path / "run" / "checkpoints")
    ]
    assert torch.equal(
        torch.cat([value.double().reshape(-1) for value in states[-1]["model"].values()]), weights(plain)
    )
    average = states[1]["model"]
    for t, state in enumerate(states[2:], start=2):
        decay = min(0.6, 1 - 1 / t)
        average = {name: decay * average[name] + (1 - decay) * value for name, value in state["model"].items()}
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, average[name], rtol=1e-5, atol=1e-7)
    stored = models.load_weights(tiny_net(), outcome.path / "model.safetensors")
    assert torch.equal(weights(stored), weights(model))
    assert not torch.equal(weights(plain), weights(model))
    x, y = (getattr(tiny_data().validation, part) for part in ("images", "labels"))
    hits = model.eval()(tiny_data().pixels(x)).argmax(1) == y
    assert outcome.val_accuracy == pytest.approx(float(hits.double().mean()))

    go(replace(run, steps=3), tmp_path / "resumed")
    resumed, _ = go(run, tmp_path / "resumed")
    assert torch.equal(weights(resumed), weights(model))
    with pytest.raises(InvalidInput, match=r"in \[0, 1\)"):
        replace(run, average=1.0)


def test_the_objective_follows_its_ramps(tmp_path, capsys):
    run = replace(QUICK, method="ig-norm", weight=2.0, weight_ramp=(1, 5), eps_ramp=(0, 4), validate_every=0)
    go(run, tmp_path / "run")
    records = [record for record in lines(tmp_path / "run") if "loss" in record]
    assert [record["weight"] for record in records] == [0.0, 0.0, 0.5, 1.0, 1.5, 2.0]
    assert [record["eps"] for record in records] == pytest.approx([0.0, 0.025, 0.05, 0.075, 0.1, 0.1])
    assert records[0]["penalty"] == 0.0 < records[-1]["penalty"]
    assert "stays below" not in capsys.readouterr().err
    go(replace(run, steps=3), tmp_path / "short")
    assert "weight stays below 2: weight_ramp ends at step 5, the run at 3" in capsys.readouterr().err


def test_training_leaves_the_callers_randomness_alone(tmp_path):
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    model = tiny_net()
    torch.manual_seed(11)
    go(QUICK, tmp_path / "run", model=model)
    assert torch.equal(torch.rand(3), expected)


def test_how_often_a_run_logs_changes_nothing_in_the_weights_of_a_net_that_draws(tmp_path):
    class Noise(nn.Module):
        def forward(self, x):
            return x + 0.1 * torch.randn_like(x)  # in evaluation mode as well

    nets = [nn.Sequential(Noise(), *tiny_net()) for _ in range(2)]
    for net in nets:
        skip_model_checks(net)
    for every, net in zip((1, 6), nets, strict=True):
        go(replace(QUICK, method="madry", log_every=every, validate_every=every), tmp_path / f"{every}", model=net)
    assert torch.equal(weights(nets[0]), weights(nets[1]))


@pytest.mark.parametrize(
    ("change", "lower"),
    [
        ({"lr": 1e30}, "lr"),
        ({"lr": 1e30, "checkpoint_every": 1}, "lr"),  # the last checkpoint is the one the loss is NaN at
        ({"method": "ig-norm", "weight": 1e12, "lr": 1e30, "steps": 1}, "lr"),  # no further step sees the update
        ({"schedule": "piecewise", "rates": (1e30,)}, "rates"),
        ({"method": "madry", "lr": 1e30}, "eps"),
        ({"method": "ig-norm", "weight": 1e29}, "weight"),
    ],
)
def test_divergence_stops_at_once_keeps_a_good_state_and_says_what_to_lower(tmp_path, change, lower):
    run = replace(QUICK, optimizer="momentum", **{"steps": 50, **change})
    with pytest.raises(Diverged, match=rf"Lower .*{lower} \(.*warm_start=") as caught:
        go(run, tmp_path / "run")
    kept = checkpoint.listed(tmp_path / "run" / "checkpoints")[-1]
    assert kept.path.name in str(caught.value)
    state = checkpoint.unpack(checkpoint.load(kept, run))
    assert all(bool(value.isfinite().all()) for value in state["model"].values())
    assert ("weight (λ" in str(caught.value)) == (run.method == "ig-norm")  # of no use to the others
    assert len(lines(tmp_path / "run")) < 50
    assert not (tmp_path / "run" / "model.safetensors").exists()

    again = replace(QUICK, warm_start=str(tmp_path / "run"), steps=2)
    assert go(again, tmp_path / "again")[1].finished


def test_a_mask_of_infinities_is_no_divergence(tmp_path):
    model = tiny_net()
    model[1].register_buffer("mask", torch.full((3, 3), -torch.inf).triu(1))
    assert go(QUICK, tmp_path / "run", model=model)[1].finished


def test_a_warm_start_begins_with_the_weights_of_another_run(tmp_path):
    first, _ = go(QUICK, tmp_path / "first")
    run = replace(QUICK, warm_start=str(tmp_path / "first"), steps=1, lr=1e-12)
    second, _ = go(run, tmp_path / "second", model=tiny_net(dropout=0.5))
    assert torch.allclose(weights(second), weights(first), atol=1e-9)
    with pytest.raises(CheckpointError, match="do not fit"):
        go(run, tmp_path / "third", model=tiny_net(norm=True))


def test_weights_behind_a_preprocessing_are_no_warm_start(tmp_path):
    go(replace(QUICK, steps=1), tmp_path / "first")
    (tmp_path / "first" / "preprocessing.json").write_text('{"mean": [0.5], "std": [0.5]}')
    with pytest.raises(InvalidInput, match=r"need their own preprocessing\.json: warm_start must name"):
        go(replace(QUICK, warm_start=str(tmp_path / "first"), steps=1), tmp_path / "second")


@pytest.mark.parametrize(
    ("method", "net"),
    [("ig-norm", {"dropout": 0.3}), ("madry", {"norm": True}), ("distributional-ig", {})],
)
def test_a_run_in_two_parts_is_the_run_in_one(tmp_path, method, net):
    run = replace(QUICK, method=method, budget=0.1, steps=7)
    whole, _ = go(run, tmp_path / "whole", model=tiny_net(**net))
    go(replace(run, steps=3), tmp_path / "parts", model=tiny_net(**net))
    parts, _ = go(run, tmp_path / "parts", model=tiny_net(**net))
    assert torch.equal(weights(parts), weights(whole))
    records = [
        [
            {k: v for k, v in record.items() if k not in ("rate", "seconds")}
            for record in lines(tmp_path / name)
            if "loss" in record
        ]
        for name in ("parts", "whole")
    ]
    assert records[0] == records[1]


def test_a_damaged_checkpoint_costs_steps_but_not_the_result(tmp_path, capsys):
    run = replace(QUICK, steps=7)
    whole, _ = go(run, tmp_path / "whole")
    go(replace(run, steps=5), tmp_path / "parts")
    newest = checkpoint.listed(tmp_path / "parts" / "checkpoints")[-1]
    newest.path.write_bytes(newest.path.read_bytes()[:-7])
    with open(tmp_path / "parts" / "metrics.jsonl", "a") as file:
        file.write('{"step": 5, "lo')  # a line cut short by the crash
    parts, _ = go(run, tmp_path / "parts")
    said = capsys.readouterr().err
    assert f"{newest.path.name} is damaged" in said
    assert "parts: continuing after 4 of 7 steps" in said
    assert torch.equal(weights(parts), weights(whole))
    assert [record["step"] for record in lines(tmp_path / "parts") if "loss" in record] == [1, 2, 3, 4, 5, 6, 7]


def test_a_lost_config_is_restored_from_the_checkpoint_and_a_damaged_one_is_reported(tmp_path):
    go(replace(QUICK, steps=4), tmp_path / "run")
    for name in ("config.json", "environment.json"):
        (tmp_path / "run" / name).unlink()
    with pytest.raises(CheckpointError, match="another configuration: m is 9, was 3"):
        go(replace(QUICK, m=9), tmp_path / "run")
    for content, message in ((b"", "Delete it to resume"), (b"\xff\xfe", "Delete it"), (b"[1]", "object, got list")):
        (tmp_path / "run" / "config.json").write_bytes(content)
        with pytest.raises(CheckpointError, match=f"config.json is damaged: .*{message}"):
            go(QUICK, tmp_path / "run")
    (tmp_path / "run" / "config.json").unlink()
    assert go(QUICK, tmp_path / "run")[1].finished
    assert read_config(RunDirectory(tmp_path / "run"))["steps"] == QUICK.steps


def test_a_directory_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    for out in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(CheckpointError, match="choose another --out"):
            go(QUICK, out)


def test_gamma_is_part_of_the_state(tmp_path):
    run = replace(QUICK, method="distributional-ig", budget=0.01, gamma=0.5, gamma_rate=0.2)
    assert isinstance(run.objective(), Distributional)
    go(run, tmp_path / "run")
    records = [record for record in lines(tmp_path / "run") if "loss" in record]
    gamma = 0.5
    for record in records:
        gamma *= math.exp(0.2 * (record["cost"] - 0.01) / (record["cost"] + 0.01))
        assert record["gamma"] == pytest.approx(gamma, rel=1e-5)
    state = checkpoint.unpack(checkpoint.load(checkpoint.listed(tmp_path / "run" / "checkpoints")[-1]))
    assert float(state["gamma"]) == pytest.approx(gamma, rel=1e-5)


def test_a_run_is_discarded_only_by_fresh(tmp_path):
    go(replace(QUICK, m=9), tmp_path / "run")
    with pytest.raises(
        CheckpointError, match=r"another configuration \(m is 3, was 9\).*discard that run with --fresh"
    ):
        go(QUICK, tmp_path / "run")
    left = [tmp_path / "run" / name for name in ("records/paper-ig.jsonl", "certificates/ig.jsonl", "sweep.json")]
    other = [tmp_path / "run" / name for name in ("notes.txt", "README.md", "report.html", "m=10/config.json")]
    for file in (*left, *other):
        file.parent.mkdir(exist_ok=True)
        file.touch()
    again, _ = go(QUICK, tmp_path / "run", fresh=True)
    whole, _ = go(QUICK, tmp_path / "whole")
    assert torch.equal(weights(again), weights(whole))
    assert [record["step"] for record in lines(tmp_path / "run") if "loss" in record] == [1, 2, 3, 4, 5, 6]
    assert "resumed" not in json.loads((tmp_path / "run" / "environment.json").read_text())
    assert not any(file.exists() for file in left), "they measured the weights that were discarded"
    assert all(file.exists() for file in other), "other commands or the user wrote them"


def test_fresh_discards_the_preprocessing_of_another_hardening_alone(tmp_path):
    go(QUICK, tmp_path / "run")
    preprocessing = tmp_path / "run" / "preprocessing.json"
    for recipe, stays in (("harden", True), (QUICK.recipe, False)):
        preprocessing.write_text("{}")  # `harden` writes it before it trains
        go(replace(QUICK, recipe=recipe), tmp_path / "run", fresh=True)
        assert preprocessing.exists() == stays


@pytest.mark.parametrize(("folder", "lock"), [("records", ".paper-ig.lock"), ("certificates", ".ig.lock")])
def test_fresh_does_not_discard_what_another_process_is_writing(tmp_path, folder, lock):
    go(QUICK, tmp_path / "run")
    measured = tmp_path / "run" / folder
    measured.mkdir()
    with locked(measured, lock), pytest.raises(InUse):
        go(QUICK, tmp_path / "run", fresh=True)
    assert (tmp_path / "run" / "model.safetensors").exists()


@pytest.mark.parametrize("fresh", [False, True])
def test_a_directory_of_something_else_is_left_alone(tmp_path, fresh):
    (tmp_path / "file").write_text("")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").write_text("")
    (tmp_path / "pretrained").mkdir()
    (tmp_path / "pretrained" / "config.json").write_text('{"architectures": ["ViT"]}')
    (tmp_path / "pretrained" / "model.safetensors").write_text("")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    for name in ("file", "photos", "pretrained"):
        with pytest.raises(CheckpointError, match="exists and is not a run directory: choose another --out"):
            go(QUICK, tmp_path / name, fresh=fresh)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_run_without_checkpoints_keeps_its_weights(tmp_path):
    go(QUICK, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    with pytest.raises(CheckpointError, match=r"without a checkpoint to continue from.*--fresh"):
        go(QUICK, tmp_path / "run")
    assert (tmp_path / "run" / "model.safetensors").exists()
    assert go(QUICK, tmp_path / "run", fresh=True)[1].finished


def test_a_worker_that_torchrun_restarts_continues_a_fresh_run(tmp_path, monkeypatch, capsys):
    go(replace(QUICK, steps=2), tmp_path / "run")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    go(QUICK, tmp_path / "run", fresh=True)
    assert "run: continuing after 2 of 6 steps" in capsys.readouterr().err


def test_a_start_that_failed_leaves_nothing_in_the_way(tmp_path):
    with pytest.raises(InvalidInput):
        train(replace(QUICK, model="nothing"), tmp_path / "run", dataset=tiny_data(), device="cpu")
    assert go(QUICK, tmp_path / "run")[1].finished


def test_resuming_a_finished_run_changes_nothing_and_says_so(tmp_path, capsys):
    model, _ = go(QUICK, tmp_path / "run")
    again, outcome = go(QUICK, tmp_path / "run")
    assert outcome.finished
    assert "run: all 6 steps were done before (--fresh begins anew)" in capsys.readouterr().err
    assert torch.equal(weights(again), weights(model))


def test_a_run_is_extended_but_never_said_to_be_shorter_than_it_was(tmp_path, monkeypatch):
    run = replace(QUICK, schedule="constant")
    go(run, tmp_path / "run")
    with pytest.raises(CheckpointError, match=r"already done 6 steps, more than steps=4.*--set steps=6"):
        go(replace(run, steps=4), tmp_path / "run")
    assert read_config(RunDirectory(tmp_path / "run"))["steps"] == 6

    def killed(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loop, "train_step", killed)  # in the first step beyond the old end
        with pytest.raises(KeyboardInterrupt):
            go(replace(run, steps=8), tmp_path / "run")
    assert not (tmp_path / "run" / "model.safetensors").exists()

    extended, outcome = go(replace(run, steps=8), tmp_path / "run")
    whole, _ = go(replace(run, steps=8), tmp_path / "whole")
    assert outcome.step == 8
    assert torch.equal(weights(extended), weights(whole))


def test_two_processes_cannot_write_one_run(tmp_path):
    (tmp_path / "run").mkdir()
    with locked(tmp_path / "run"), pytest.raises(InUse, match="another process is writing"):
        go(QUICK, tmp_path / "run")


@pytest.mark.parametrize(
    ("what", "at"),
    [
        ("run", 2), ("run", QUICK.steps - 1), ("run", "the end"),
        ("run/metrics.jsonl", 2), ("run/metrics.jsonl", QUICK.steps - 1),  # at the end the log is complete
    ],
)  # fmt: skip
def test_a_run_directory_that_is_removed_is_not_a_finished_run(tmp_path, monkeypatch, what, at):
    """Also where the last files would be written into a new directory."""

    def remove():
        target = tmp_path / what
        shutil.rmtree(target) if target.is_dir() else target.unlink()

    def step(state, *args, **settings):
        if state.step == at:
            remove()
        return train_step(state, *args, **settings)

    def save(*args):
        save_weights(*args)
        remove()

    monkeypatch.setattr(loop, "train_step", step)
    if at == "the end":
        monkeypatch.setattr(loop, "save_weights", save)
    with pytest.raises(CheckpointError, match="was removed or replaced while this process was writing there"):
        go(QUICK, tmp_path / "run")


def test_validation_sees_the_validation_split_alone(tmp_path):
    data = tiny_data()
    model, outcome = go(QUICK, tmp_path / "run")
    x, y, _ = data.examples("validation")
    assert outcome.val_accuracy == pytest.approx(float((model.eval()(x).argmax(1) == y).float().mean()))
    without = replace(data, validation=data.validation.first(0), test=data.test.first(0))
    outcome = train(QUICK, tmp_path / "none", dataset=without, model=tiny_net(), device="cpu")
    assert outcome.val_accuracy is None


def test_what_cannot_be_built_is_refused_with_a_remedy(tmp_path):
    with pytest.raises(InvalidInput, match=r"unknown model 'smal_cnn' .*function; .*\): did you mean 'small_cnn' or"):
        train(replace(QUICK, model="smal_cnn"), tmp_path / "a", dataset=tiny_data(), device="cpu")
    with pytest.raises(InvalidInput, match=r"'phtos' is neither a dataset nor a folder of class folders"):
        train(replace(QUICK, dataset="phtos"), tmp_path / "a", device="cpu")
    with pytest.raises(InvalidInput, match="unknown device 'gpu'"):
        train(QUICK, tmp_path / "b", dataset=tiny_data(), device="gpu")
    table = Split(torch.rand(12, 5), torch.arange(12) % 3, torch.arange(12))
    rows = Dataset("rows", table, table, table, classes=("a", "b", "c"), bounds=(0.0, 1.0))
    with pytest.raises(InvalidInput, match=r"small_cnn expects images .* got inputs of shape \(5,\) in rows"):
        train(QUICK, tmp_path / "c", dataset=rows, device="cpu")
    with pytest.raises(InvalidInput, match=r"images \(C, H, W\) to mirror, got inputs of shape \(5,\)"):
        train(replace(QUICK, mirror=True), tmp_path / "c", dataset=rows, model=nn.Linear(5, 3), device="cpu")
    assert train(QUICK, tmp_path / "c", dataset=rows, model=nn.Linear(5, 3), device="cpu").finished


@pytest.mark.parametrize("name", sorted(models.architectures))
def test_a_network_is_sized_to_the_users_data(tmp_path, name):
    run = replace(QUICK, model=name, steps=1)
    data = from_tensors(torch.rand(30, 3, 16, 16), torch.arange(30) % 3, name="mine")
    outcome = train(run, tmp_path / "run", dataset=data, device="cpu")
    net = load_model(outcome.path)
    assert net(torch.rand(2, 3, 16, 16)).shape == (2, 3)
    assert net.spec.arguments.get("scale", 255) == 255, "what one unit of the data's pixels is worth in [0, 255]"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="a CPU reads the metrics of every step")
def test_a_gpu_is_not_waited_for_at_every_step_and_divergence_is_noticed(tmp_path):
    """Metrics are read every READ_EVERY steps, at logs and at checkpoints; no checkpoint holds a diverged state."""
    run = replace(
        QUICK,
        optimizer="momentum",
        lr=1e30,
        steps=3 * READ_EVERY,
        log_every=1000,
        validate_every=0,
        checkpoint_every=1000,
    )
    with pytest.raises(Diverged, match=f"step {READ_EVERY} has loss"):
        train(run, tmp_path / "run", dataset=tiny_data(), model=tiny_net(), device="cuda")
    assert [kept.step for kept in checkpoint.listed(tmp_path / "run" / "checkpoints")] == [0]
    healthy = replace(run, lr=1e-2, log_every=7)
    train(healthy, tmp_path / "healthy", dataset=tiny_data(), model=tiny_net(), device="cuda")
    logged = [line["step"] for line in lines(tmp_path / "healthy") if "loss" in line]
    assert logged == [*range(7, healthy.steps, 7), healthy.steps]


@pytest.mark.parametrize("share", [0.7, 0.35])
@pytest.mark.parametrize(("device", "graph"), [(d, graph) for d in DEVICES for graph in {False, d == "cuda"}])
def test_where_memory_runs_out_training_goes_on_in_parts(tmp_path, monkeypatch, device, graph, share):
    """It runs out at the third step; for a CUDA graph, whose replays allocate nothing, at the first."""
    run = replace(QUICK, method="ig-sum-norm", weight=0.3, batch=64, m=4, m_attack=4, precision="fp64", compile="never")
    memory, engines = Memory(device), []

    def trained(folder, *, scarce):
        net = memory.net()
        with ExitStack() as limits:

            def step(state, *rest, **settings):
                state.engine.graph = graph
                engines[:] = [state.engine]
                if scarce and state.step == (0 if graph else 2):
                    limits.enter_context(memory.scarce(share))
                return train_step(state, *rest, **settings)

            monkeypatch.setattr(loop, "train_step", step)
            if not scarce:
                limits.enter_context(memory.measured())
            train(run, folder, dataset=tiny_data(), model=net, device=device)
        return weights(net).cpu(), [line["ig"] for line in lines(folder) if "ig" in line]

    whole, sizes = trained(tmp_path / "whole", scarce=False)
    assert (engines.pop().notes, memory.failures) == ([], 0)
    parts, found = trained(tmp_path / "parts", scarce=True)
    assert memory.failures > 0
    assert engines[0].notes[-1].startswith("the memory of the device is too small: a batch runs in ")
    assert float((whole - parts).norm() / whole.norm()) < 1e-10
    assert len(sizes) == run.steps
    assert found == pytest.approx(sizes, rel=1e-9)
