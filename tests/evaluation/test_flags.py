"""Flags of summaries, and of networks made to deserve them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from evaluation_fixtures import IG, TOY
from robattr.attacks import simple_gradient
from robattr.evaluation import evaluate, strict
from robattr.evaluation.diagnostics import twin_cosine
from robattr.evaluation.flags import alarms, flags

FINE = {
    "vanishing_loss": 0.0,
    "vanishing_map": 0.0,
    "still_falling": 0.001,
    "accuracy_under": {"pgd": 0.5, "margin": 0.5, "search": 0.6, "unbounded": 0.0},
}


def summary(**diagnostics) -> dict:
    columns = {"kendall": {"value": 0.5}, "noise_kendall": {"value": 0.7}}
    return {"columns": columns, "diagnostics": {**FINE, **diagnostics}, "never_kept": 0.0, "excluded": 0}


@pytest.mark.parametrize(
    ("diagnostics", "flag"),
    [
        ({}, None),
        ({"vanishing_map": 0.2}, "zero gradients"),
        ({"vanishing_loss": 0.2}, "zero gradients"),
        ({"accuracy_under": {"pgd": 0.9, "margin": 0.5, "search": 0.6, "unbounded": 0.0}}, "masked gradients"),
        ({"search_advantage": 0.02}, "masked gradients"),
        ({"noise_advantage": 0.02}, "noise stronger"),
        ({"noise_advantage": 0.005, "search_advantage": None}, None),
        ({"twin_cosine": 0.5}, "twin far"),
        ({"twin_cosine": 0.99}, None),
        ({"still_falling": 0.02, "converged": 0.5}, "not converged"),
    ],
    ids=str,
)
def test_each_doubt_has_its_flag(diagnostics, flag: str | None) -> None:
    made = summary(**diagnostics)
    assert flags(made) == ([flag] if flag else [])
    assert len(alarms(made)) >= len(flags(made))


def test_labels_that_no_iterate_keeps_are_flagged() -> None:
    assert flags({**summary(), "never_kept": 0.05}) == ["label not kept"]
    assert flags({**summary(), "excluded": 2}) == ["no map"]


def test_the_twin_of_a_smooth_network_is_the_network(case) -> None:
    net, x, y = case
    torch.manual_seed(0)
    smooth = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.Tanh(), nn.Linear(8, 3))
    assert twin_cosine(IG, smooth, x, y, beta=1.0).tolist() == pytest.approx([1.0] * len(x))
    blunt, sharp = (twin_cosine(IG, net, x, y, beta=beta).mean() for beta in (1.0, 1000.0))
    assert blunt < sharp
    assert sharp > 0.99


class Staircase(nn.Module):
    """A net behind a steep staircase: its gradient in x is almost zero nearly everywhere, and misleads the attack."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x + 0.05 * torch.sin(400 * x))


@pytest.mark.usefixtures("quick_diagnostics")
def test_a_strict_summary_has_flags_cost_and_convergence(case) -> None:
    net, x, y = case
    protocol = strict(replace(TOY, repeats=1))
    found = evaluate(net, x[:4], y[:4], protocol=protocol, map=IG).summary
    about = found["diagnostics"]
    assert set(found["flags"]) <= {"noise stronger", "masked gradients", "not converged", "twin far", "label not kept"}
    assert about["passes"] > 0
    assert 0 <= about["converged"] <= 1
    assert about["twin_cosine"] > 0.9
    hidden = evaluate(Staircase(net), x[:4], y[:4], protocol=protocol, map=simple_gradient()).summary
    assert hidden["flags"], "waves hide the gradients of the map"
    plain = evaluate(net, x[:4], y[:4], protocol=replace(TOY, repeats=1), map=IG).summary
    assert "twin_cosine" not in plain["diagnostics"]
