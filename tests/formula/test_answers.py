"""Objectives refuse the models that an audit refuses, once, without a trace in what they then compute."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from robattr import PGD, LinfBall, objectives
from robattr.engine import Step
from robattr.errors import InvalidInput, RobattrError, UnsupportedModel
from robattr.formula import skip_model_checks, squared_error
from robattr.formula.answers import ModelProbe, returns_logits
from robattr.formula.objective import Robust

BALL, BY = LinfBall(0.1), PGD(2, 0.05)
MADRY = objectives.madry(BALL, BY)
Y = torch.tensor([0, 1, 2, 0])


def x() -> Tensor:
    return torch.rand(4, 6, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """A small network whose outputs `answer` changes."""

    def __init__(self, answer=lambda z: z, before=lambda v: v) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
        self.answer, self.before, self.calls = answer, before, 0

    def forward(self, v: Tensor) -> Tensor:
        self.calls += 1
        return self.answer(self.last(torch.relu(self.first(self.before(v)))))


WRONG = {
    "probabilities": (Net(lambda z: z.softmax(1)), "got probabilities"),
    "nan": (Net(lambda z: z / 0 * 0), "got NaN or infinite ones"),
    "random": (Net(lambda z: F.dropout(z, 0.5, training=True)), "two calls in eval mode return different logits"),
    "batch": (Net(lambda z: z - z.mean(0, keepdim=True) * 3), "with the other examples in its batch"),
    "in place": (Net(before=lambda v: v.mul_(2)), "the model overwrites its input"),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("rho", [MADRY, objectives.natural(), MADRY + MADRY], ids=["robust", "natural", "joint"])
def test_an_objective_refuses_what_an_audit_refuses(name: str, rho) -> None:
    net, says = WRONG[name]
    v = x()
    with pytest.raises(InvalidInput, match=rf"{says}.*skip_model_checks\(model\)"):
        rho(net, v, Y)
    assert torch.equal(v, x())
    if isinstance(rho, Robust):
        with pytest.raises(InvalidInput, match=says):
            Step(net)(rho, v, Y)


@pytest.mark.parametrize("answer", [lambda z: z, torch.relu], ids=["logits", "none below 0"])
def test_logits_in_bf16_are_accepted_where_sums_of_them_are_in_float32(monkeypatch, answer) -> None:
    """As under the autocast of a GPU."""
    for name in ("sum", "logsumexp"):
        plain = getattr(Tensor, name)
        monkeypatch.setattr(
            Tensor,
            name,
            lambda t, *args, plain=plain, **how: plain(t.to(torch.promote_types(t.dtype, torch.float32)), *args, **how),
        )
    net = Net(lambda z: answer(9 * z).bfloat16())
    assert returns_logits(ModelProbe(net, x(), Y, (0.0, 1.0)))[0] == "ok"


@pytest.mark.parametrize("name", ["probabilities", "random", "batch"])
def test_a_user_may_accept_such_a_model(name: str) -> None:
    net = Net(WRONG[name][0].answer)
    skip_model_checks(net)
    assert MADRY(net, x(), Y).value.isfinite().all()


def test_probabilities_are_fine_for_a_loss_of_the_users() -> None:
    net, targets = Net(lambda z: z.softmax(1)), torch.eye(3)[Y]
    assert Robust(loss=squared_error)(net, x(), targets).value.shape == (4,)
    with pytest.raises(InvalidInput, match="got probabilities"):  # what has not been asked yet is asked now
        MADRY(net, x(), Y)


def test_a_model_is_asked_once_and_the_random_generator_keeps_its_state() -> None:
    net, other, drawing = Net(), Net(), Net(lambda z: F.dropout(z, 0.0, training=True))
    torch.manual_seed(7)
    state = torch.get_rng_state()
    skip_model_checks(other)
    values = []
    for each in (net, other):
        torch.set_rng_state(state)
        values.append(MADRY(each, x(), Y).value)
    assert torch.equal(*values)
    before = [net.calls, other.calls]
    for each in (net, other):
        MADRY(each, x(), Y)
    assert net.calls - before[0] == other.calls - before[1]
    torch.set_rng_state(state)
    objectives.natural()(drawing, x(), Y)
    first = torch.get_rng_state()
    torch.set_rng_state(state)
    objectives.natural()(drawing, x(), Y)
    assert torch.equal(first, torch.get_rng_state())


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_is_refused_where_it_has_no_gradient(reentrant: bool) -> None:
    class Checkpointed(Net):
        def forward(self, v: Tensor) -> Tensor:
            return checkpoint(super().forward, v, use_reentrant=reentrant)

    with pytest.raises(UnsupportedModel, match="switch activation checkpointing off"):
        MADRY(Checkpointed(), x(), Y)


def inference() -> Tensor:
    with torch.inference_mode():
        return torch.rand(4, 6)


@pytest.mark.parametrize(
    ("v", "says"),
    [
        (torch.rand(4, 6).to_sparse(), r"dense tensor, got torch.sparse_coo: use .to_dense\(\)"),
        (torch.rand(4, 6, device="meta"), "got a tensor on the meta device"),
        (torch.rand(4, 6, dtype=torch.complex64), "expected x to be a floating-point tensor"),
        (inference(), r"x was made in inference mode.*use x.clone\(\)"),
    ],
    ids=["sparse", "meta", "complex", "inference"],
)
def test_tensors_without_plain_values_are_refused(v: Tensor, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        MADRY(Net(), v, Y)


def test_models_without_plain_values_are_refused() -> None:
    with torch.inference_mode():
        made_there = Net()
    with torch.device("meta"):
        empty = Net()
    for net, says in (
        (nn.Sequential(nn.LazyLinear(3)), "a lazy layer has no shape yet: call the model once"),
        (empty, "on the meta device"),
        (made_there, "build the model outside torch.inference_mode"),
    ):
        with pytest.raises(RobattrError, match=says):
            MADRY(net, x(), Y)
