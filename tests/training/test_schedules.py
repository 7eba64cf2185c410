"""Learning rates and ramps are functions of the step."""

from __future__ import annotations

import math

import pytest
import torch

from robattr.training.config import TrainConfig
from robattr.training.schedules import cosine, linear, one_cycle, piecewise, ramp


def test_piecewise_boundary_belongs_to_the_piece_before_it():
    rates = [piecewise(t, (500, 60_000), (1e-3, 1e-2, 1e-3)) for t in (0, 500, 501, 60_000, 60_001, 70_000)]
    assert rates == [1e-3, 1e-3, 1e-2, 1e-2, 1e-3, 1e-3]


def test_linear_falls_to_zero_at_the_end():
    rates = [linear(t, 1.0, steps=100, warmup=10) for t in (0, 9, 10, 55, 100)]
    assert rates == pytest.approx([0.1, 1.0, 1.0, 0.5, 0.0])


def test_cosine_is_halfway_down_in_the_middle():
    rates = [cosine(t, 2.0, steps=100) for t in (0, 25, 50, 100)]
    assert rates == pytest.approx([2.0, 1 + math.cos(math.pi / 4), 1.0, 0.0])


def test_one_cycle_agrees_with_torch():
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    theirs = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=0.1, total_steps=101, pct_start=31 / 101, div_factor=25, final_div_factor=400
    )
    for step in range(100):
        assert one_cycle(step, 0.1, steps=100) == pytest.approx(theirs.get_last_lr()[0], rel=1e-6), step
        optimizer.step()
        theirs.step()


def test_ramp():
    assert ramp(7, ()) == 1.0
    assert [ramp(t, (10, 20)) for t in (0, 10, 15, 20, 99)] == [0.0, 0.0, 0.5, 1.0, 1.0]


def test_run_follows_its_ramps_and_scales_the_step_with_the_radius():
    run = TrainConfig(method="ig-norm", weight=2.0, eps=0.4, step_size=0.1, weight_ramp=(0, 10), eps_ramp=(0, 20))
    half = run.at(5)
    assert (half.weight, half.eps, half.step_size) == pytest.approx((1.0, 0.1, 0.025))
    assert run.at(20).eps == 0.4
    steady = TrainConfig()
    assert steady.at(5) is steady
