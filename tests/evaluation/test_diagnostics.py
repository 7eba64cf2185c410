"""Curves, hidden gradients and alarms."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from statistics import fmean

import pytest
import torch
from torch import Tensor, nn

from evaluation_fixtures import IG, TOY
from robattr.attacks import IFIA, from_callable, integrated_gradients, simple_gradient
from robattr.evaluation import evaluate, paper, strict
from robattr.evaluation.diagnostics import completeness_gap, curve_passes, random_search, score_against_eps
from robattr.evaluation.suite import attribution_attacks
from robattr.metrics import kendall, topk_intersection


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


@pytest.mark.parametrize("protocol", [TOY, strict(TOY)], ids=["paper", "strict"])
def test_the_curve_over_eps_has_the_recorded_scores_at_the_protocols_radius(case, protocol) -> None:
    """Under `strict`, those of the paper's attack: the other attacks do not run at other radii."""
    found = evaluate(*case, protocol=protocol, map=IG)
    scored = [r for r in found.records if r["kept"] is not None]
    over = found.summary["curves"]["score_vs_eps"]
    assert over["eps"][:4] == [0.0, 0.075, 0.15, 0.3]
    for at, name in enumerate(("topk", "kendall")):
        recorded = [r["attacks"]["paper"][at] if protocol.strict else r[name] for r in scored]
        assert over[name][2] == pytest.approx(fmean(recorded), abs=1e-12)
    if not protocol.strict:
        assert over["kendall"][2] == pytest.approx(found.summary["columns"]["kendall"]["value"], abs=1e-12)


def test_the_curve_over_eps_reaches_a_black_background() -> None:
    """From x itself it would not: the gradient of |x_i·g_i| is zero where x_i = 0."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 3)).double()
    x = torch.rand(4, 1, 8, 8, dtype=torch.float64)
    x[:, :, 3:] = 0
    y = net(x).argmax(dim=1)
    measures = {"kendall": kendall, "topk": partial(topk_intersection, k=10)}
    attack = IFIA(net, 0.15, 0.03, 20, k=10, map=IG, measures=measures)
    from_x = replace(attack, eps=0.3)(x, y)
    assert (from_x.perturbed[:, :, 3:] == 0).all()
    high = [{"id": i, "kept": True, "topk": 0.99, "kendall": 0.98} for i in range(4)]
    curve = score_against_eps(attack, x, y, high)
    assert curve["eps"][3] == 0.3
    assert curve["kendall"][3] < from_x.score.mean() - 0.2
    assert curve["kendall"][1] == curve["kendall"][2] == pytest.approx(0.98), "no smaller ball has a lower score"
    assert curve["topk"][1] >= curve["topk"][2] == pytest.approx(0.99)
    alone = score_against_eps(attack, x[:1], y[:1], high[:1])
    assert set(alone["kendall_low"][1:]) == {None}
    low = [{**r, "topk": 0.0, "kendall": -1.0} for r in high]
    curve = score_against_eps(attack, x, y, low)
    assert curve["eps"] == [0.0, 0.075, 0.15, 0.3], "a curve ends where it no longer falls"
    assert curve["kendall"][2:] == [-1.0, -1.0]
    assert curve["kendall"][1] > -1


@pytest.mark.parametrize("dataset", ["mnist", "fashion-mnist", "gtsrb", "flower", "fashion-mini"])
def test_the_curve_over_eps_takes_about_half_the_passes_of_the_attack(dataset: str) -> None:
    protocol = paper(dataset)
    for nodes in (1, protocol.N):
        (attack,) = attribution_attacks(protocol, nn.Flatten(), integrated_gradients(nodes), images=True)
        assert curve_passes(attack) < 0.6 * attack.cost


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
    nothing = from_callable(lambda model, x, y: 0 * x)
    assert (completeness_gap(nothing, net, x, y) == 1).all(), "relative to the change of the logit"
