"""Estimates of an evaluation's time: from counted passes, said before the attack begins."""

from __future__ import annotations

import time
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

from robattr.attacks import integrated_gradients
from robattr.evaluation import OutputDir, Protocol, cost, evaluate, scaled, strict
from robattr.evaluation.suite import attribution_attacks

TINY = replace(scaled("", pixels=64, bounds=(0.0, 1.0)), steps=2, pgd_steps=1, N=3)


class Counted(nn.Module):
    """Counts the rows that it sees."""

    rows = 0

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Softplus(), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        Counted.rows += len(x)
        return self.net(x)


def examples(n: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.rand(n, 1, 8, 8), torch.arange(n) % 3


def test_the_time_of_a_pass_is_per_example_and_node() -> None:
    """The clock counts rows."""
    Counted.rows = 0
    with patch.object(time, "perf_counter", lambda: float(Counted.rows)):
        assert cost.seconds_per_pass(Counted(), *examples(2)) == 1.0


def passes(protocol: Protocol, *, rounds: tuple[int, ...]) -> int:
    """Of the attacks of some rounds on one example; the paper's own is of round 0."""
    attacks = attribution_attacks(protocol, Counted(), integrated_gradients(3), images=True)
    numbers = [0, *(attack.round for attack in protocol.attacks)]
    return sum(attack.cost for attack, number in zip(attacks, numbers, strict=True) if number in rounds)


def test_the_estimate_counts_the_passes_of_the_first_round() -> None:
    for protocol in (TINY, strict(TINY)):
        attacks = attribution_attacks(protocol, Counted(), integrated_gradients(3), images=True)
        told = cost.evaluation_seconds(4.0, protocol, attacks, examples=5, images=True)
        assert told == 5 * passes(protocol, rounds=(0,))
    assert passes(strict(TINY), rounds=(0, 1, 2)) > passes(strict(TINY), rounds=(0,)) > passes(TINY, rounds=(0,))


def test_the_estimate_comes_before_the_attack_and_is_of_what_is_left(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("robattr.evaluation.job.seconds_per_pass", lambda *_: 1.0)
    net, (x, _) = Counted().eval(), examples(6)
    y = net(x).argmax(1)
    each = passes(TINY, rounds=(0,)) / cost.SECOND_ORDER
    for n, left in ((4, 4), (6, 2), (6, 0)):
        told: list[tuple[float, object]] = []
        evaluate(
            net, x[:n], y[:n], protocol=TINY, map=integrated_gradients(3), out=OutputDir(tmp_path),
            progress=lambda done, total, told=told: told.append((done, total)),
            expect=lambda seconds, what, told=told: told.append((seconds, what)),
        )  # fmt: skip
        assert told[0] == (n - left, n)
        if left:
            assert told[1:3] == [(pytest.approx(left * each), f"{left} examples"), (n, n)]
            assert [what for _, what in told[3:]] == ["the curve over ε"]
        else:
            assert told[1:] == []
