"""The attacks of each protocol: what `strict` adds, and that it does not depend on the scale of the weights."""

from __future__ import annotations

import copy
from dataclasses import replace
from math import inf

import pytest
import torch
from torch import nn

from robattr.attacks import integrated_gradients, simple_gradient
from robattr.evaluation import paper, scaled, strict
from robattr.evaluation.evaluate_batch import evaluate_batch
from robattr.evaluation.protocol_attacks import attribution_attacks, prediction_attacks


def test_strict_begins_with_the_papers_attacks() -> None:
    net, map = nn.Flatten(), simple_gradient()
    easy, hard = paper("mnist"), strict("mnist")
    first = attribution_attacks(easy, net, map, images=True)
    more = attribution_attacks(hard, net, map, images=True)
    same = ("eps", "alpha", "steps", "kind", "k", "restarts", "map", "beta", "bounds", "start", "keep", "seed")
    assert [getattr(first[0], f) for f in same] == [getattr(more[0], f) for f in same]
    added = more[1:]
    assert sum(a.restarts for a in added) >= 5
    assert {a.beta for a in added} >= {1.0, inf}
    assert all(a.start == "ball" and a.adaptive and a.keep > 0 for a in added)
    assert len({a.seed for a in more}) == len(more)
    assert prediction_attacks(easy, net) == prediction_attacks(hard, net)[:1]
    assert prediction_attacks(hard, net)[1].restarts >= 5


def test_strict_does_not_depend_on_the_scale_of_the_weights() -> None:
    """Tiny activations make the plain twin linear, and so change the paper's attack, but not the network's function."""
    torch.manual_seed(3)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 3)).double().eval()
    hidden = copy.deepcopy(net)
    with torch.no_grad():
        for value in hidden[1].parameters():
            value *= 1e-3
        hidden[3].weight *= 1e3
    x = 0.2 + 0.6 * torch.rand(6, 1, 8, 8, dtype=torch.float64)
    y = net(x).argmax(dim=1)
    protocol = replace(scaled("mine", pixels=64, bounds=(0.0, 1.0), eps=0.1), steps=6, pgd_steps=2, repeats=1)

    def score(model: nn.Module, by: str) -> float:
        p = protocol if by == "paper" else strict(protocol)
        records = evaluate_batch(model, x, y, ids=range(6), protocol=p, map=integrated_gradients(8))
        return sum(r["topk"] for r in records) / len(records)

    scores = {by: [score(model, by) for model in (net, hidden)] for by in ("paper", "strict")}
    assert scores["strict"][1] == pytest.approx(scores["strict"][0], abs=1e-9)
    assert abs(scores["paper"][1] - scores["paper"][0]) > 0.01
    assert max(scores["strict"]) < min(scores["paper"]) - 0.05
