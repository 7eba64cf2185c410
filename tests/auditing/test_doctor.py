"""The doctor: broken models fail with a remedy, as `evaluate` refuses them; healthy ones pass."""

from __future__ import annotations

from importlib import import_module
from inspect import signature

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import robattr
from audit_fixtures import Attentive, Plain, bars, folder, taught
from nets import NETS
from robattr.attacks import simple_gradient
from robattr.auditing import Check, Diagnosis, Plan, cost
from robattr.evaluation import evaluate, scaled


def levels(diagnosis: Diagnosis) -> dict[str, str]:
    return {check.name: check.level for check in diagnosis.checks}


def finding(diagnosis: Diagnosis, name: str) -> Check:
    return next(check for check in diagnosis.checks if check.name == name)


class Layer(nn.Module):
    """A linear model of six features, spoilt by `how`."""

    def __init__(self, how) -> None:
        super().__init__()
        self.linear, self.how = nn.Linear(6, 3), how

    def forward(self, x: Tensor) -> Tensor:
        return self.how(self.linear, x)


class Layer255(nn.Module):
    """Scales bytes to [0, 1]."""

    def forward(self, x: Tensor) -> Tensor:
        return x / 255


class _Once(torch.autograd.Function):
    """Differentiable once only."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx, g: Tensor) -> Tensor:
        raise RuntimeError("this layer has no derivative of any use")


class _OwnRelu(torch.autograd.Function):
    """A ReLU whose derivative autograd refuses to differentiate, but only where a backward pass comes by."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g: Tensor) -> Tensor:
        return g * (ctx.saved_tensors[0] > 0)


@pytest.mark.parametrize("name", NETS)
def test_healthy_networks_pass(name: str) -> None:
    found = robattr.doctor(NETS[name](), shape=(1, 8, 8))
    assert found.healthy, str(found)
    assert finding(found, "derivatives").level == "ok"
    assert finding(found, "curvature").level == "ok"
    assert ("twin" in finding(found, "curvature").finding) == (name not in ("softplus", "transformer"))
    assert levels(found)["in place"] == ("warn" if "in place" in name or name == "residual with batch norm" else "ok")
    assert ("attention" in levels(found)) == (name == "transformer")


SPOILT = [
    (lambda f, x: f(x)[:, 0], "output", "(1,)"),
    (lambda f, x: f(x)[:, :1], "output", "at least two classes"),
    (lambda f, x: f(x).mean(0, keepdim=True), "output", "(4, 3), got (1, 3)"),
    (lambda f, x: f(x[:, :5]), "output", "cannot be multiplied"),
    (lambda f, x: f(x.mul_(0.5)), "input", "overwrites its input"),
    (lambda f, x: f(x) / 0.0, "finite", "NaN or infinite"),
    (lambda f, x: f(x) / 0.0 * 0.0, "finite", "NaN or infinite"),
    (lambda f, x: f(F.dropout(x)), "determinism", "two calls"),
    (lambda f, x: f(x - x.mean(0)), "independence", "batch"),
    (lambda f, x: f(x).softmax(1), "logits", "probabilities"),
    (lambda f, x: f(x.detach()), "derivatives", "cannot be differentiated in the input"),
    (lambda f, x: f(_Once.apply(x)), "derivatives", "no derivative of any use"),
    (lambda f, x: _OwnRelu.apply(f(x)) + f(x), "derivatives", "once_differentiable"),
    (lambda f, x: f((x - x).sqrt() + x), "derivatives", "NaN"),
]


@pytest.mark.parametrize(("how", "name", "words"), SPOILT)
def test_a_failed_check_is_what_evaluate_raises(how, name: str, words: str) -> None:
    net, x = Layer(how), torch.rand(4, 6, generator=torch.Generator().manual_seed(1))
    y = net.linear(x).argmax(1)
    for found in (robattr.doctor(net, shape=(6,), device="cpu"), robattr.doctor(net, (x, y), device="cpu")):
        failed = next(check for check in found.checks if check.level == "fail")
        assert (failed.name, words in failed.finding) == (name, True), str(found)
        assert failed.remedy
    with pytest.raises(robattr.RobattrError) as refusal:
        evaluate(net, x, y, protocol=scaled("", pixels=6, bounds=(0.0, 1.0)), map=simple_gradient())
    assert str(refusal.value) == f"{failed.finding}: {failed.remedy}"


def test_examples_that_evaluate_refuses_fail() -> None:
    """The same list again, for what is wrong with the examples rather than with the model."""
    net = nn.Linear(6, 3)
    x = torch.rand(4, 6, generator=torch.Generator().manual_seed(1))
    right = net(x).argmax(1)
    for inputs, labels, name in ((3 * x, right, "range"), (x, right + 3, "labels"), (x, (right + 1) % 3, "labels")):
        found = finding(robattr.doctor(net, (inputs, labels), device="cpu"), name)
        assert found.level == "fail"
        with pytest.raises(robattr.RobattrError) as refusal:
            evaluate(net, inputs, labels, protocol=scaled("", pixels=6, bounds=(0.0, 1.0)), map=simple_gradient())
        assert str(refusal.value) == f"{found.finding}: {found.remedy}"


def test_a_layer_without_a_gradient_is_a_warning_because_evaluate_reports_it() -> None:
    said = finding(robattr.doctor(Layer(lambda f, x: f(x.round())), shape=(6,), device="cpu"), "derivatives")
    assert (said.level, "exactly 0" in said.finding) == ("warn", True)


def test_what_works_but_should_be_known_is_a_warning() -> None:
    said = finding(robattr.doctor(Layer(lambda f, x: f(x).log_softmax(1)), shape=(6,)), "logits")
    assert (said.level, "log-probabilities" in said.finding) == ("warn", True)
    said = finding(robattr.doctor(Layer(lambda f, x: f(x).sigmoid()), shape=(6,)), "logits")
    assert (said.level, "sigmoid" in said.finding) == ("warn", True)
    assert finding(robattr.doctor(Layer(lambda f, x: f(x)), shape=(6,)), "curvature").level == "warn"
    hidden = nn.Sequential(nn.Linear(6, 8), Layer(lambda f, x: x.clamp(min=0)), nn.Linear(8, 3))
    assert "clamp" in finding(robattr.doctor(hidden, shape=(6,)), "curvature").finding
    assert levels(robattr.doctor(Plain(), shape=(1, 8, 8)))["modes"] == "warn"
    assert levels(robattr.doctor(Plain().eval(), shape=(1, 8, 8)))["modes"] == "ok"
    for odd in (
        nn.Linear(6, 3).half(),
        nn.DataParallel(nn.Linear(6, 3)),
        torch.compile(nn.Linear(6, 3), backend="eager"),
    ):
        found = robattr.doctor(odd, shape=(6,))
        assert finding(found, "form").level == "warn"
        assert found.healthy
    synced = nn.Sequential(nn.Conv2d(3, 2, 3), nn.SyncBatchNorm(2), nn.GELU(), nn.Flatten(), nn.Linear(72, 2))
    assert "SyncBatchNorm" in finding(robattr.doctor(synced, shape=(3, 8, 8)), "form").finding


def test_the_shape_is_guessed_where_it_can_be() -> None:
    assert robattr.doctor(nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2))).healthy
    pooled = nn.Sequential(nn.Conv2d(4, 3, 3), nn.GELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2))
    assert robattr.doctor(pooled).healthy
    unknown = robattr.doctor(Plain())  # takes 8×8 alone
    assert finding(unknown, "input").level == "fail"
    assert "shape" in finding(unknown, "input").finding


def test_data_are_held_against_bounds_labels_and_preprocessing() -> None:
    torch.manual_seed(0)
    x, y = bars()
    net = taught(Plain(), x, y)
    good = robattr.doctor(net, (x, y))
    assert good.healthy
    assert finding(good, "labels").finding.startswith("100%")
    assert levels(robattr.doctor(net, (255 * x, y)))["range"] == "fail"
    standardised = finding(robattr.doctor(net, (x - 0.5, y)), "range")
    assert (standardised.level, "standardised" in standardised.remedy) == ("fail", True)
    assert levels(robattr.doctor(net, (x, y), bounds=(0.0, 255.0)))["range"] == "warn"
    beyond = levels(robattr.doctor(net, (x, y + 1)))
    assert (beyond["labels"], beyond["derivatives"]) == ("fail", "ok")  # the layers are checked all the same
    wrong = y.clone()
    wrong[y == 0] = 1
    wrong[y == 1] = 0
    assert levels(robattr.doctor(net, (x, wrong)))["labels"] == "warn"  # a third is right: no better than chance
    units = robattr.doctor(net, (255 * x, y), bounds=(0.0, 255.0), preprocessing={"mean": 0.5, "std": 0.2})
    assert levels(units)["preprocessing"] == "warn"
    swapped = robattr.doctor(net, (x, y), preprocessing={"mean": 127.5, "std": 64.0})
    assert levels(swapped)["preprocessing"] == "warn"
    bare = robattr.doctor(net, (255 * x, y), bounds=(0.0, 255.0))
    assert levels(bare)["preprocessing"] == "warn"
    assert robattr.doctor(taught(Attentive(), x, y), (x, y)).healthy


def test_a_dataset_is_held_against_its_own_bounds() -> None:
    x, y = bars()
    net = nn.Sequential(Layer255(), taught(Plain(), x, y))
    own = robattr.data.from_tensors(255 * x, y, bounds=(0.0, 255.0))
    found = robattr.doctor(net, own)
    assert found.healthy, str(found)
    assert "the bounds are 0 to 255" in finding(found, "range").finding
    said = finding(robattr.doctor(net, own, bounds=(-300.0, 300.0)), "input")
    assert (said.level, "leave bounds out" in said.finding) == ("fail", True)


def test_costs_are_reported_with_a_remedy(monkeypatch) -> None:
    monkeypatch.setattr("robattr.evaluation.diagnostics.RADII", (0.5, 1.0, 2.0, 4.0))  # shortened in conftest.py
    monkeypatch.setattr(import_module("robattr.auditing.doctor"), "seconds_per_pass", lambda *_: 1.0)
    monkeypatch.setattr("robattr.evaluation.cost.seconds_per_pass", None)  # it is timed once
    for module in (cost, import_module("robattr.auditing.doctor")):
        monkeypatch.setattr(module, "memory", lambda _: 10**5)
    found = robattr.doctor(Plain().eval(), shape=(1, 8, 8), plan=Plan(m=8, batch=4), device="cpu")
    warned = finding(found, "cost")
    assert (warned.level, "chunk=" in warned.remedy) == ("warn", True)
    # 100 examples of 14,238 passes and 16 · 3 radii of 2,149 (tests/auditing/test_cost.py), of which four take a second
    assert "4.4 days (paper)" in finding(found, "audit").finding
    assert "GPU" in finding(found, "audit").remedy


def test_the_time_of_an_audit_is_that_of_the_datasets_protocol(monkeypatch) -> None:
    """15 iterations and 10 points on fashion-mini instead of 50 and 100: 3 restarts of 15 · 40 + 15 · 21 passes.

    And ten maps under noise.
    """
    monkeypatch.setattr("robattr.evaluation.diagnostics.RADII", (0.5, 1.0, 2.0, 4.0))  # shortened in conftest.py
    monkeypatch.setattr(import_module("robattr.auditing.doctor"), "seconds_per_pass", lambda *_: 4e-3)
    found = robattr.doctor(robattr.models.small_cnn(), "fashion-mini", device="cpu")
    curve = 16 * 3 * (8 * 40 + 8 * 21)  # half the iterations, at three radii beside the protocol's
    passes = 100 * (3 * (15 * 40 + 15 * 21) + 10 * 21) + curve
    assert f"{passes / 1000 / 60:.1f} min (paper)" in finding(found, "audit").finding


def test_the_doctor_uses_the_device_of_an_audit(monkeypatch) -> None:
    defaults = [signature(f).parameters["device"].default for f in (robattr.doctor, robattr.audit, robattr.harden)]
    assert defaults == ["auto"] * 3


def test_the_doctor_leaves_the_model_as_it_was(monkeypatch) -> None:
    monkeypatch.setattr(
        "robattr.auditing.arithmetic.REDUCED", {"cpu": {"tf32": 0.01}}
    )  # as on a GPU: two precisions are compared
    net = Plain()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    robattr.doctor(net, bars())
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(m.training for m in net.modules())
    assert all(p.grad is None and p.requires_grad for p in net.parameters())


def test_a_folder_that_is_none_is_a_finding(tmp_path) -> None:
    assert not robattr.doctor(Plain(), tmp_path / "nowhere").healthy
    top = folder(tmp_path / "images", each=2)
    assert robattr.doctor(taught(Plain(3), *bars(channels=3)), top).healthy
