"""Estimates of cost: against counted passes and the memory that autograd keeps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import robattr
from audit_fixtures import Plain, bars
from robattr.auditing import Plan, cost, wrap
from robattr.evaluation import cost as evaluation
from robattr.evaluation import scaled, suite


class Slow(nn.Module):
    """Counts the rows that it sees."""

    rows = 0

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))

    def forward(self, x: Tensor) -> Tensor:
        Slow.rows += len(x)
        return self.net(x)


def test_the_estimated_passes_are_those_of_a_training_step() -> None:
    """The rows that go through the network in one step of IG-NORM, less those of the clean loss and the checks."""
    plan = Plan(m=4, m_attack=2, attack_steps=3, batch=2)
    x, y = bars(plan.batch)

    def rows(m: int, attack_steps: int) -> int:
        net, Slow.rows = Slow(), 0
        by = robattr.PGD(attack_steps, 0.05)
        rho = robattr.objectives.ig_norm(1.0, robattr.LinfBall(0.1), by, m=m, m_attack=plan.m_attack)
        rho(net, x, y).value.sum().backward()
        return Slow.rows

    base = rows(plan.m, plan.attack_steps)
    assert rows(plan.m + 1, plan.attack_steps) - base == plan.batch  # one pass per node
    assert rows(plan.m, plan.attack_steps + 1) - base == plan.batch * plan.m_attack
    assert plan.passes == plan.batch * (3 * 2 + 4)


def test_the_peak_is_the_weights_and_the_nodes_of_the_path() -> None:
    net, _ = wrap(Plain().eval())
    x, _ = bars(2)
    weights = sum(p.numel() * 4 for p in net.parameters())
    peak = [cost.peak_bytes(net, x, Plan(m=m, m_attack=2, batch=b)) - 4 * weights for m, b in ((4, 2), (8, 4))]
    assert peak[1] == 4 * peak[0] > 0
    kept = cost.bytes_per_row(net, x)
    assert peak[0] == kept * 2 * 4


def test_memory_decides_the_chunk(monkeypatch) -> None:
    net, _ = wrap(Plain().eval())
    x, _ = bars(2)
    kept = cost.bytes_per_row(net, x)
    monkeypatch.setattr(cost, "memory", lambda _: int(kept * 4 * 3.5 / cost.SHARE))  # 3.5 nodes of a batch of 4
    assert cost.chunk_that_fits(net, x, m=8, batch=4) == 3
    assert cost.chunk_that_fits(net, x, m=3, batch=4) is None
    monkeypatch.setattr(cost, "memory", lambda _: 1)
    assert cost.chunk_that_fits(net, x, m=8, batch=4) == 1


def test_the_time_of_an_audit_counts_its_passes(monkeypatch) -> None:
    monkeypatch.setattr("robattr.evaluation.diagnostics.RADII", (0.5, 1.0, 2.0, 4.0))  # shortened in conftest.py
    protocol = scaled("", pixels=10, bounds=(0.0, 1.0))
    paper, both = cost.audit_seconds(4.0, protocol, examples=10)  # a second for each pass
    screen, score = 2 * 10 + 1, 2 * 100 + 1
    first = 3 * (50 * 4 * 10 + 51 * screen + 5 * score)  # three restarts of 50 iterations, windows of 10
    once = 25 * 4 * 10 + 26 * screen + 3 * score  # one restart of half the iterations
    curve = 3 * 10 * once  # on each of the ten, at three radii beside the protocol's
    noise = 10 * score
    assert paper == pytest.approx(10 * (first + noise) + curve)
    climb = 4 * 10 + 2  # with the term that keeps the prediction
    long, short = (n * climb + -(-n // 10) * score + (n + 1) * screen for n in (50, 25))  # of so many iterations
    search = (suite.QUERIES + 2) * screen + -(-suite.QUERIES // 10) * score
    harder = 2 * 2 * long + search + 2 * short  # the long ones in two rounds
    assert both == pytest.approx(10 * (first + noise + harder) + 2 * curve)  # the noise, too, runs once
    net = Plain()  # compiled, on a GPU
    compilation, left = evaluation.COMPILATION * len(list(net.parameters())), 1 - evaluation.SAVED
    compiled = cost.audit_seconds(4.0, protocol, examples=10, on_gpu=net)
    assert compiled == (pytest.approx(compilation + left * paper), pytest.approx(2 * compilation + left * both))
    assert torch.cuda.is_available() or cost.memory(torch.device("cpu")) > 2**20
