"""The settings of the protocols, and what `strict` adds."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from math import inf

import pytest
import torch
from torch import nn

from robattr.attacks import integrated_gradients, simple_gradient
from robattr.auditing.record import Settings
from robattr.data import from_tensors
from robattr.errors import InvalidInput
from robattr.evaluation import for_dataset, paper, scaled, strict
from robattr.evaluation.protocol_attacks import attribution_attacks, prediction_attacks
from robattr.evaluation.run import evaluate

TABLE = {  # ε, α, P, attack k, eval k, PGD step, PGD steps: sections 4 and 5 of the reference
    "mnist": (0.3, 0.01, 100, 200, 100, 0.01, 100),
    "fashion-mnist": (0.1, 0.01, 100, 100, 100, 0.01, 100),
    "gtsrb": (8, 1, 50, 100, 100, 2, 40),
    "flower": (8, 1, 100, 1000, 1000, 2, 40),
}


@pytest.mark.parametrize("dataset", TABLE)
def test_the_papers_settings(dataset: str) -> None:
    p = paper(dataset)
    assert (p.eps, p.alpha, p.steps, p.k, p.eval_k, p.pgd_alpha, p.pgd_steps) == TABLE[dataset]
    assert (p.N, p.repeats, p.strict) == (100, 3, False)
    assert p.bounds == ((0, 255) if dataset in {"gtsrb", "flower"} else (0, 1))


def test_the_papers_radius_is_that_of_its_range() -> None:
    """A dataset of that name in another range has ε = 8/255 of it, not 8."""
    x, y = torch.rand(30, 3, 32, 32), torch.arange(30) % 3
    for bounds, eps in (((0.0, 1.0), 8 / 255), ((-1.0, 1.0), 16 / 255), ((0.0, 255.0), 8)):
        low, high = bounds
        given = from_tensors(low + (high - low) * x, y, name="gtsrb", bounds=bounds)
        assert for_dataset(given).eps == pytest.approx(eps)
        assert Settings().base(given).eps == pytest.approx(eps)
        assert for_dataset(given).bounds == bounds


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


def test_another_radius_scales_the_steps_and_the_name() -> None:
    wide = paper("gtsrb").with_eps(16)
    assert (wide.name, wide.eps, wide.alpha, wide.pgd_alpha, wide.steps) == ("paper@16", 16, 2, 4, 50)
    assert strict(wide).name == "strict@16"
    longer = paper("gtsrb").with_steps(300)
    assert (longer.name, longer.steps, longer.alpha) == ("paper@300steps", 300, 1)
    with pytest.raises(InvalidInput, match="above 0"):
        wide.with_eps(0)
    with pytest.raises(InvalidInput, match="0 to 255, in its units, got 256: choose a smaller"):
        wide.with_eps(256)


def test_settings_for_other_data() -> None:
    p = scaled("mine", pixels=640, bounds=(-1.0, 1.0))
    assert p.eps == pytest.approx(16 / 255)
    assert (p.k, p.eval_k) == (64, 64)
    assert scaled("mine", pixels=5, bounds=(0.0, 1.0), eps=0.2).k == 1


def test_settings_are_plain_json() -> None:
    text = json.dumps(strict("mnist").settings(), allow_nan=False)
    assert json.loads(text)["sweep"][-1] == ["inf", 1]
    assert torch.tensor(json.loads(text)["bounds"]).tolist() == [0, 1]


def test_an_unknown_dataset_is_refused() -> None:
    with pytest.raises(InvalidInput, match="did you mean 'mnist'"):
        paper("minst")


def test_strict_does_not_see_how_the_weights_are_scaled() -> None:
    """Tiny activations make the plain twin linear, and the paper's attack another; the network is the same function."""
    torch.manual_seed(3)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 3)).double().eval()
    hidden = copy.deepcopy(net)
    with torch.no_grad():
        for value in hidden[1].parameters():
            value *= 1e-3
        hidden[3].weight *= 1e3
    x = 0.2 + 0.6 * torch.rand(12, 1, 8, 8, dtype=torch.float64)
    y = net(x).argmax(dim=1)
    p = replace(scaled("mine", pixels=64, bounds=(0.0, 1.0), eps=0.1), steps=8, N=8, pgd_steps=2, repeats=1)
    scores = {
        name: [float(evaluate(each, x, y, protocol=by, map=integrated_gradients(8)).summary["columns"]["topk"]["value"])
               for each in (net, hidden)]
        for name, by in (("paper", p), ("strict", strict(p)))
    }  # fmt: skip
    assert scores["strict"][1] == pytest.approx(scores["strict"][0], abs=1e-9)
    assert abs(scores["paper"][1] - scores["paper"][0]) > 0.01
    assert max(scores["strict"]) < min(scores["paper"]) - 0.05
