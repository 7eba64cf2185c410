"""Where memory runs out, a batch runs in parts, with the same numbers."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from nets import assert_rounding, conv, images
from robattr import PGD, Best, LinfBall, RandomSigns, objectives
from robattr.engine import Step
from robattr.engine.compiled import traced
from robattr.engine.parts import Parts
from robattr.formula.objective import Robust


class Small(nn.Module):
    """A network on a device with memory for `rows` examples at a time."""

    def __init__(self, net: nn.Module, rows: int) -> None:
        super().__init__()
        self.net, self.rows = net, rows

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() and len(x) > self.rows:  # what a graph keeps is what does not fit
            raise torch.OutOfMemoryError(f"{len(x)} examples do not fit")
        out: Tensor = self.net(x)
        return out


RHO: dict[str, Robust] = {
    "natural": objectives.natural(),
    "ig_sum_norm": objectives.ig_sum_norm(0.1, LinfBall(0.2), PGD(2, 0.1), m=2, m_attack=2),
    "random signs": objectives.madry(LinfBall(0.2), RandomSigns(2, 0.1)),
    "restarts": objectives.madry(LinfBall(0.2), Best(PGD(2, 0.1), restarts=2)),
    "two adversaries": objectives.madry(LinfBall(0.1), PGD(1, 0.1)) + objectives.igr(0.5, LinfBall(0.2), PGD(1, 0.1)),
}


@pytest.mark.parametrize(
    ("name", "compiled"), [*((name, False) for name in RHO), ("ig_sum_norm", True), ("restarts", True)]
)
def test_a_step_in_parts_is_the_whole_step(name: str, compiled: bool) -> None:
    x, _, y = images(7)
    whole = conv(nn.ReLU()).double()
    small = Small(copy.deepcopy(whole), rows=4)
    found = []
    for net in (whole, small):
        step = Step(net, compiled=compiled, backend=traced)
        for p in net.parameters():
            p.grad = torch.ones_like(p)  # gradients add up
        torch.manual_seed(3)
        out = step(RHO[name], x, y)
        found.append(([out.loss, out.penalty, out.worst], [p.grad.clone() for p in net.parameters()]))
    assert step.notes[-1].startswith("the memory of the device is too small: a batch runs in ")
    for ours, theirs in zip(*found, strict=True):
        assert_rounding(ours, theirs)


def test_one_example_that_does_not_fit_is_an_error_and_leaves_the_gradients() -> None:
    x, _, y = images(4)
    net = Small(conv(nn.ReLU()).double(), rows=0)
    for p in net.parameters():
        p.grad = torch.full_like(p, 7.0)
    with pytest.raises(torch.OutOfMemoryError, match="1 examples do not fit"):
        Step(net)(objectives.natural(), x, y)
    assert all((p.grad == 7.0).all() for p in net.parameters())


def test_examples_that_depend_on_each_other_are_not_divided() -> None:
    x, _, y = images(4)
    net = Small(nn.Sequential(nn.BatchNorm2d(1), conv(nn.ReLU())).double(), rows=2).train()
    with pytest.raises(torch.OutOfMemoryError, match="4 examples do not fit"):
        Step(net)(objectives.natural(), x, y)


def test_a_batch_that_may_not_be_divided_runs_whole_or_not_at_all() -> None:
    parts, fits = Parts(), [10]

    def work(part: slice) -> int:
        if part.stop - part.start > fits[0]:
            raise torch.OutOfMemoryError
        return part.stop - part.start

    fits[0] = 5
    with pytest.raises(torch.OutOfMemoryError):
        parts(work, 10, divisible=lambda: False)
    fits[0] = 10
    assert parts(work, 10, divisible=lambda: False) == [10]  # the failure has divided nothing
    fits[0] = 5
    assert parts(work, 10) == [5, 5]
    fits[0] = 10
    assert parts(work, 10, divisible=lambda: False) == [10]  # nor has a batch that could be divided
    assert parts(work, 10) == [5, 5]


def test_the_number_of_parts_is_kept() -> None:
    parts, seen = Parts(), []

    def work(part: slice) -> int:
        seen.append(part.stop - part.start)
        if seen[-1] > 3:
            raise torch.OutOfMemoryError
        return seen[-1]

    assert parts(work, 10) == [3, 3, 3, 1]
    assert seen == [10, 5, 3, 3, 3, 1]
    assert parts(work, 10) == [3, 3, 3, 1]
    assert len(seen) == 10
