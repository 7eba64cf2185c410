"""Curves, hidden gradients and alarms."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from evaluation_fixtures import IG, TOY
from robattr.attacks import IFIA, integrated_gradients, simple_gradient
from robattr.evaluation import evaluate
from robattr.evaluation.diagnostics import completeness_gap, random_search, score_against_eps


def test_curves_fall(plain) -> None:
    curves = plain.summary["curves"]
    for curve, axis in (("score_vs_iterations", "iterations"), ("score_vs_eps", "eps")):
        assert curves[curve][axis] == sorted(curves[curve][axis])
        for name in ("topk", "kendall"):
            assert curves[curve][name] == sorted(curves[curve][name], reverse=True)
            assert len(curves[curve][name]) == len(curves[curve][axis])
    over = curves["score_vs_eps"]
    for name in ("topk", "kendall"):
        ends = zip(over[f"{name}_low"], over[name], over[f"{name}_high"], strict=True)
        assert all(low <= mean <= high for low, mean, high in ends)
    assert curves["score_vs_eps"]["eps"][0] == 0
    assert curves["score_vs_eps"]["eps"][-1] <= 1


def test_the_curve_over_eps_reaches_a_black_background() -> None:
    """From x itself it would not: the gradient of |x_i·g_i| is zero where x_i = 0."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 3)).double()
    x = torch.rand(4, 1, 8, 8, dtype=torch.float64)
    x[:, :, 3:] = 0
    y = net(x).argmax(dim=1)
    attack = IFIA(net, 0.3, 0.03, 20, k=10, map=IG)
    from_x = attack(x, y)
    assert (from_x.perturbed[:, :, 3:] == 0).all()
    curve = score_against_eps(attack, x, y, ids=range(4))
    assert curve["eps"][2] == 0.3
    assert curve["kendall"][2] < from_x.score.mean() - 0.2
    alone = score_against_eps(attack, x[:1], y[:1], ids=[0])
    assert set(alone["kendall_low"][1:]) == {None}


class Rounded(nn.Module):
    """A defence that only hides gradients: the input is rounded, so that every derivative is zero."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net((x * 8).round() / 8)


class Saturated(nn.Module):
    """A defence that only hides the loss: logits so large that the softmax has no gradient in float32."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return 1e5 * self.net(x)


def test_hidden_gradients_raise_alarms(case) -> None:
    net, x, _ = case
    wide = replace(TOY, eps=0.3, alpha=0.1, pgd_alpha=0.1)
    rounded = Rounded(net)
    found = evaluate(rounded, x, rounded(x).argmax(dim=1), protocol=wide, map=IG).summary
    assert found["excluded"] == 12, "a map that is zero everywhere is counted, not scored"
    assert found["columns"]["kendall"]["n"] == 0
    assert any("constant or non-finite maps" in alarm for alarm in found["alarms"])
    assert any("without gradients" in alarm or "whole pixel range" in alarm for alarm in found["alarms"])
    saturated = Saturated(net)
    found = evaluate(saturated, x, saturated(x).argmax(dim=1), protocol=wide, map=IG).summary
    assert found["diagnostics"]["vanishing_loss"] > 0.5
    assert any("exactly zero" in alarm for alarm in found["alarms"])
    assert any("PGD on the margin" in alarm for alarm in found["alarms"])


def test_an_honest_net_raises_no_alarm(case) -> None:
    torch.manual_seed(4)
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 24), nn.Tanh(), nn.Linear(24, 3))
    with torch.no_grad():
        net[1].weight.mul_(3)
    _, x, _ = case
    longer = replace(TOY, eps=0.1, alpha=0.02, steps=15, pgd_alpha=0.02, pgd_steps=20)
    found = evaluate(net, x, net(x).argmax(dim=1), protocol=longer, map=simple_gradient()).summary
    assert found["alarms"] == []


def test_random_search_needs_no_gradient(case) -> None:
    net, x, _ = case
    rounded = Rounded(net)
    y = rounded(x).argmax(dim=1)
    found = random_search(rounded, x, y, eps=0.3, bounds=(0.0, 1.0), ids=range(12), queries=100)
    assert (found - x).abs().max() <= 0.3 + 1e-6
    assert found.min() >= 0
    assert (rounded(found).argmax(dim=1) != y).any()


def test_completeness_gap_shrinks_with_more_points(case) -> None:
    net, x, y = case
    coarse, fine = (completeness_gap(integrated_gradients(n), net, x, y).median() for n in (2, 64))
    assert fine < 0.1 * coarse or fine < 1e-3
