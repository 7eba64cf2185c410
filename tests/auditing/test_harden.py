"""Fine-tuning the user's model: from its weights, with any objective, with an audit before and after."""

from __future__ import annotations

import json
import signal
from copy import deepcopy

import pytest
import torch
from torch import nn

import robattr
from audit_fixtures import Plain, bars, taught
from robattr.auditing.as_dataset import as_dataset
from robattr.auditing.harden import _run
from robattr.auditing.record import Settings
from robattr.auditing.wrapped_model import check_preprocessing
from robattr.errors import CheckpointError, InvalidInput, UnsupportedModel
from robattr.formula import Distributional, Rho
from robattr.models import load_weights
from robattr.reporting.run_results import read_run
from robattr.training.config import Objective, TrainConfig
from robattr.training.run_directory import RunDirectory, read_config
from robattr.training.settings import change

QUICK = {
    "eps": 0.05, "steps": 2, "batch": 6, "lr": 1e-2, "audit_steps": 1, "points": 2, "examples": 4, "held_out": 0.2,
    "device": "cpu",
}  # fmt: skip
CHANGES = {"attack_steps": 1, "m": 2, "m_attack": 2}


@pytest.fixture
def plain() -> nn.Module:
    torch.manual_seed(0)
    return taught(Plain(), *bars())


def test_hardening_from_end_to_end(plain: nn.Module, tmp_path) -> None:
    plain.eval()
    before = deepcopy(plain.state_dict())
    call = {"objective": "ig-norm", "changes": CHANGES, "freeze": ["stem"], "out": tmp_path / "h", **QUICK}
    found = robattr.harden(plain, bars(), **call)
    assert all(torch.equal(value, before[name]) for name, value in plain.state_dict().items())
    assert found.outcome.finished
    assert type(found.model) is Plain
    assert not any(m.training for m in found.model.modules())
    new = found.model.state_dict()
    still = [name for name in new if torch.equal(new[name], before[name])]
    moved = [name for name in new if name not in still]
    assert {"stem.weight", "stem.bias", "norm.running_mean", "norm.running_var"} <= set(still)
    assert {"norm.weight", "head.weight", "head.bias"} <= set(moved)
    assert all(p.requires_grad for p in found.model.parameters())
    loaded = load_weights(Plain(), tmp_path / "h" / "hardened" / "model.safetensors").state_dict()
    assert all(torch.equal(loaded[name], new[name]) for name in new)

    assert {"nat_acc", "topk", "kendall"} <= found.difference.keys()
    text = (tmp_path / "h" / "report.html").read_text(encoding="utf-8")
    for words in ("<h2>After IG-NORM</h2>", "IG-NORM − Before", "Training", "Class by class"):
        assert words in text
    assert not (tmp_path / "h" / "hardened" / "preprocessing.json").exists()  # none was given
    config = json.loads((tmp_path / "h" / "hardened" / "config.json").read_text())
    assert (config["method"], config["m"], config["eps"], config["weight"]) == ("ig-norm", 2, 0.05, 1.0)

    again = robattr.harden(plain, bars(), **call)  # all is there already
    assert all(torch.equal(value, new[name]) for name, value in again.model.state_dict().items())
    assert again.after == found.after
    with pytest.raises(CheckpointError, match=r"hardening of another configuration .*--weights .*model.safetensors"):
        robattr.harden(plain, bars(), **{**call, "lr": 0.5})
    for other in ({"batch_norm": "train"}, {"freeze": []}):
        with pytest.raises(
            CheckpointError, match=r"\(training\): choose another folder with -o, or discard it with --fresh$"
        ):
            robattr.harden(plain, bars(), **{**call, **other})


@pytest.mark.parametrize(
    ("method", "weight"),
    [("ig-norm", 1.0), ("ig-sum-norm", 0.1), ("trades", 6.0), ("curvature", 1e-4), ("r2et", 0.01), ("sinha", 1.0)],
)
def test_a_method_has_the_weight_of_its_recipe(plain: nn.Module, method: str, weight: float) -> None:
    given, settings = as_dataset(bars(), model=plain, held_out=0.2), Settings(0.05, "ig", "paper", 4, 1, 2, 0)
    made = {"data": given, "settings": settings, "steps": 2, "batch": 6, "lr": 1e-2, "seed": 0}
    assert _run(method, **made, changes={}).weight == weight
    assert _run(method, **made, changes={"weight": 0.5}).weight == 0.5


def test_before_and_after_are_judged_by_the_same_maps(plain: nn.Module, tmp_path) -> None:
    found = robattr.harden(plain, bars(), objective="madry", maps="sg,ig", out=tmp_path / "h", **QUICK)
    assert found.after is not None
    assert "(sg maps, paper protocol)" in found.before.headline
    assert "(sg maps, paper protocol)" in found.after.headline


def test_batch_norm_moves_when_told_to(plain: nn.Module, tmp_path) -> None:
    found = robattr.harden(plain, bars(), objective="natural", batch_norm="train", out=tmp_path / "h", **QUICK)
    assert not torch.equal(found.model.norm.running_mean, plain.norm.running_mean)
    assert all(m.training for m in found.model.modules())  # as the user's own was


def test_any_objective_of_the_formula_and_tables(tmp_path) -> None:
    x = torch.rand(60, 5, generator=torch.Generator().manual_seed(1))
    y = (x[:, 0] > 0.5).long()
    net = taught(nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2)), x, y)
    ball, by = robattr.LinfBall(0.05), robattr.PGD(1, 0.05)
    rho = robattr.objectives.ig_sum_norm(0.1, ball, by, m=2, m_attack=2)
    found = robattr.harden(net, (x, y), objective=rho, out=tmp_path / "h", **QUICK)
    assert found.after is not None
    assert not torch.equal(found.model[0].weight, net[0].weight)
    config = json.loads((tmp_path / "h" / "hardened" / "config.json").read_text())
    assert config["method"] == "custom"
    assert "LinfBall(radius=0.05" in config["custom"]
    assert " at 0x" not in config["custom"]
    other = robattr.objectives.ig_sum_norm(0.2, ball, by, m=2, m_attack=2)
    with pytest.raises(CheckpointError, match="another configuration"):
        robattr.harden(net, (x, y), objective=other, out=tmp_path / "h", **QUICK)


class Leaning(Plain):
    """Keeps what a layer returned by a hook, on the module that its closure holds: a copy writes to the original."""

    def __init__(self) -> None:
        super().__init__()
        self.stem.register_forward_hook(lambda _module, _inputs, out: setattr(self, "seen", out.mean((1, 2, 3))))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + self.seen[:, None]


@pytest.mark.parametrize(("used", "words"), [(False, "copy fails"), (True, "copy returns other logits")])
def test_a_model_whose_copy_leans_on_it_is_refused(used: bool, words: str, tmp_path) -> None:
    net = Leaning().eval()
    if used:
        with torch.no_grad():  # what is seen then is copied along
            net(torch.zeros(1, 1, 8, 8))
    with pytest.raises(UnsupportedModel, match=words):
        robattr.harden(net, bars(), out=tmp_path / "h", **QUICK)


class _OwnRelu(torch.autograd.Function):
    """A ReLU that autograd refuses to differentiate twice."""

    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g: torch.Tensor) -> torch.Tensor:
        return g * (ctx.saved_tensors[0] > 0)


class OnceOnly(Plain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(_OwnRelu.apply(self.stem(x)).flatten(1))


def test_a_model_without_a_second_derivative_is_refused_where_it_needs_one(tmp_path) -> None:
    with pytest.raises(UnsupportedModel, match="differentiated twice, got one that cannot"):
        robattr.harden(OnceOnly(), bars(), objective="ig-norm", out=tmp_path / "h", **QUICK)
    assert not (tmp_path / "h").exists()


def test_the_preprocessing_is_saved_with_the_weights(plain: nn.Module, tmp_path) -> None:
    call = {"objective": "natural", "out": tmp_path / "h", **QUICK}
    found = robattr.harden(plain, bars(), preprocessing={"mean": 0.25, "std": 0.5}, **call)
    here = tmp_path / "h" / "hardened"
    assert json.loads((here / "preprocessing.json").read_text()) == {"mean": [0.25], "std": [0.5]}
    assert change(TrainConfig(), read_config(RunDirectory(here))).method == "natural"
    assert read_run(here).method == "natural"
    again = robattr.harden(plain, bars(), preprocessing={"mean": 0.25, "std": 0.5}, **call)
    assert again.after == found.after
    robattr.harden(plain, bars(), fresh=True, **call)
    assert not (here / "preprocessing.json").exists()
    with pytest.raises(InvalidInput, match="was hardened without preprocessing: leave --mean and --std away"):
        check_preprocessing({"mean": [0.25], "std": [0.5]}, here / "model.safetensors")
    check_preprocessing({}, here / "model.safetensors")


class Versioned(Plain):
    """Its state has more than tensors."""

    def get_extra_state(self) -> dict[str, int]:
        return {"version": 2}

    def set_extra_state(self, state: dict[str, int]) -> None:
        assert state["version"] == 2


def test_a_state_of_more_than_tensors_is_audited_but_not_hardened(tmp_path) -> None:
    net = taught(Versioned(), *bars())
    found = robattr.audit(net, bars(), protocol="paper", steps=1, points=1, examples=3, device="cpu")
    assert found.run.evaluations
    with pytest.raises(UnsupportedModel, match="state_dict of tensors only, got '_extra_state' of type dict"):
        robattr.harden(net, bars(), out=tmp_path, device="cpu")


@pytest.mark.parametrize(
    ("key", "value", "argument"), [("dataset", "mnist", "data"), ("eps", 0.3, "eps"), ("method", "madry", "objective")]
)
def test_changes_cannot_set_what_is_an_argument(plain, key: str, value: object, argument: str, tmp_path) -> None:
    with pytest.raises(InvalidInput, match=rf"{key} cannot be changed: use the argument `{argument}`"):
        robattr.harden(plain, bars(), out=tmp_path / "h", changes={key: value}, **QUICK)
    assert not (tmp_path / "h").exists()


def test_one_paired_example_has_a_difference_and_no_interval(plain: nn.Module, tmp_path) -> None:
    robattr.harden(plain, bars(), objective="natural", out=tmp_path / "h", **{**QUICK, "examples": 1})
    text = (tmp_path / "h" / "report.html").read_text()
    assert "nan" not in text.lower().replace("nano", "")


def test_a_model_that_has_forgotten_its_task_is_not_judged(tmp_path) -> None:
    """An objective that teaches the wrong answers leaves weights, and a sentence that says what happened."""
    y = torch.arange(40) % 2
    x = 0.4 * torch.rand(40, 5, generator=torch.Generator().manual_seed(1)) + 0.6 * y[:, None]
    net = taught(nn.Linear(5, 2), x, y)

    def wrong(model, x: torch.Tensor, y: torch.Tensor) -> Rho:
        loss = torch.nn.functional.cross_entropy(model(x), 1 - y, reduction="none")
        return Rho(loss, torch.zeros_like(loss), worst=x)

    call = {**QUICK, "steps": 30, "lr": 1.0, "objective": wrong, "out": tmp_path / "h"}
    with pytest.raises(InvalidInput, match=r"none of the \d held-out examples rightly.*lower lr.*hardened\)"):
        robattr.harden(net, (x, y), **call)
    assert (tmp_path / "h" / "hardened" / "model.safetensors").is_file()


def test_mistakes_are_refused(plain: nn.Module, tmp_path) -> None:
    for wrong, words in (
        ({"objective": "ig-nrm"}, "did you mean 'ig-norm'"),
        ({"held_out": 0.0}, "no held-out examples for the audits: raise held_out"),
        ({"changes": {"m": 0}}, "m must be at least 1, got 0"),
        ({"changes": {"mm": 1}}, "did you mean 'm'"),
    ):
        with pytest.raises(robattr.RobattrError, match=words):
            robattr.harden(plain, bars(), **{**QUICK, "out": tmp_path / "h", **wrong})
    robattr.harden(plain, bars(), objective="natural", **{**QUICK, "out": tmp_path / "h"})
    with pytest.raises(CheckpointError, match="is the directory of a run: choose another folder for the hardening"):
        robattr.harden(plain, bars(), **{**QUICK, "out": tmp_path / "h" / "hardened"})


def test_settings_without_effect_on_a_custom_objective_are_refused(plain: nn.Module, tmp_path) -> None:
    rho = robattr.objectives.natural()
    built = {"changes": {"norm": "l2", "m": 3}}
    for wrong, words in ((built, "m, norm would"), ({"chunk": 2}, "chunk")):
        with pytest.raises(InvalidInput, match=rf"{words}.*no effect on an objective of your own: build it with"):
            robattr.harden(plain, bars(), objective=rho, out=tmp_path / "h", **QUICK, **wrong)


class Stopping:
    """The cross-entropy; once armed, its n-th call from there on stops the process as a scheduler does."""

    def __init__(self) -> None:
        self.left = 0

    def arm(self, calls: int) -> None:
        self.left = calls

    def __call__(self, model, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.left -= 1
        if self.left == 0:
            signal.raise_signal(signal.SIGTERM)
        return robattr.cross_entropy(model, x, y)

    def __repr__(self) -> str:
        return "Stopping()"


@pytest.mark.parametrize("kind", ["natural", "distributional"])
def test_a_stopped_hardening_continues_to_the_same_weights(kind: str, tmp_path) -> None:
    torch.manual_seed(0)
    x = torch.rand(60, 5)
    y = (x[:, 0] > 0.5).long()
    net = taught(nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2)), x, y)
    loss, cost = Stopping(), robattr.power(robattr.l2, 2) @ robattr.displacement
    spread, by = robattr.objectives.spread(2), robattr.PGD(2, 0.1)
    rho: Objective = robattr.objectives.natural(loss=loss)
    if kind == "distributional":
        rho = robattr.objectives.distributional(spread, 0.1, cost, by, 0.1, loss=loss)
    call = {"objective": rho, **QUICK, "steps": 4}
    whole = robattr.harden(net, (x, y), out=tmp_path / "whole", **call)
    loss.arm(2)
    stopped = robattr.harden(net, (x, y), out=tmp_path / "h", **call)
    assert (stopped.outcome.finished, stopped.after, stopped.page) == (False, None, None)
    assert stopped.outcome.stopped_by == signal.SIGTERM
    assert 0 < stopped.outcome.step < 4
    continued = robattr.harden(net, (x, y), out=tmp_path / "h", **call)
    assert continued.outcome.finished
    pairs = zip(continued.model.parameters(), whole.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    if isinstance(rho, Distributional):
        assert float(rho.gamma) == 1.0  # the user's own, which is left alone
