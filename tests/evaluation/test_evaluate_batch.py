"""The attacks of each protocol, and records of a batch: strict against paper, failed attacks, maps without an order."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from evaluation_fixtures import IG, TOY
from nets import cancelling
from robattr.attacks import IFIA, integrated_gradients, simple_gradient
from robattr.engine import precision
from robattr.evaluation import evaluate, paper, scaled, strict
from robattr.evaluation.evaluate_batch import evaluate_batch
from robattr.evaluation.suite import attribution_attacks, prediction_attacks

pytestmark = pytest.mark.usefixtures("quick_diagnostics")


@pytest.mark.parametrize("map", [IG, simple_gradient()], ids=lambda m: m.name)
def test_strict_never_calls_a_model_more_robust(case, map) -> None:
    easy, hard = (evaluate(*case, protocol=p, map=map) for p in (TOY, strict(TOY)))
    lower = 0
    for a, b in zip(easy.records, hard.records, strict=True):
        assert b["adv_correct"] <= a["adv_correct"]
        if not b["correct"]:
            continue
        assert b["kept"] >= a["kept"]
        for name in ("topk", "kendall", "spearman", "cosine", "ssim"):
            assert b[name] is None or b[name] <= a[name]
        assert b["mass_center"] is None or b["mass_center"] >= a["mass_center"]
        lower += b["kendall"] is not None and b["kendall"] < a["kendall"]
    assert lower > 0, "strict must find more than paper on some example"
    for name in ("adv_acc", "topk", "kendall", "spearman", "cosine", "ssim"):
        assert hard.summary["columns"][name]["value"] <= easy.summary["columns"][name]["value"]


class Brittle(nn.Module):
    """Any step away from ½ changes the prediction."""

    def forward(self, x: Tensor) -> Tensor:
        own = (x.flatten(1) ** 2).sum(dim=1)
        return torch.stack([own, own + 50 * ((x - 0.5).flatten(1) ** 2).sum(dim=1) - 1e-6], dim=1)


def test_failures_count_as_one_in_paper_and_apart_in_strict() -> None:
    x, y = torch.full((3, 1, 6, 6), 0.5), torch.zeros(3, dtype=torch.long)
    x[:, :, 0, 0] = 0.50001  # so that the map has an order
    easy, hard = (evaluate(Brittle(), x, y, protocol=p, map=simple_gradient()) for p in (TOY, strict(TOY)))
    assert easy.summary["never_kept"] == hard.summary["never_kept"] == 1
    assert easy.summary["columns"]["topk"]["value"] == 1
    assert hard.summary["columns"]["topk"] == {"value": None, "low": None, "high": None, "n": 0, "excluded": 3}


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # what a CPU without bf16 units says
def test_predictions_are_in_fp32_whatever_the_precision_of_the_maps() -> None:
    net, x = cancelling(36), torch.rand(12, 1, 6, 6, generator=torch.Generator().manual_seed(3))
    y = net(x).argmax(dim=1)
    with precision("bf16", "cpu"):
        assert (net(x).argmax(dim=1) != y).any()
    exact, low = (evaluate(net, x, y, protocol=TOY, map=simple_gradient(), precision=p) for p in ("fp32", "bf16"))
    assert [r["correct"] for r in low.records] == [True] * 12
    assert [r["confidence"] for r in low.records] == pytest.approx([r["confidence"] for r in exact.records], abs=1e-3)
    noise = IFIA(net, 0.2, 0.2, 6, kind="random", map=simple_gradient(), start="ball")  # the same points in both
    wanted = noise(x, y)
    with precision("bf16", "cpu"):
        found = noise(x, y)
    assert 0 < float(wanted.flips.mean()) < 1
    torch.testing.assert_close(found.flips, wanted.flips, rtol=0, atol=0)
    assert torch.equal(found.kept, wanted.kept)


def test_constant_maps_are_counted_and_explained(case) -> None:
    class PartlyFlat(nn.Module):
        """Images that are dark on average get constant logits."""

        def forward(self, x: Tensor) -> Tensor:
            bright = (x.flatten(1).mean(dim=1) > 0.4).float()[:, None]
            out = F.pad(x.flatten(1).square().sum(dim=1, keepdim=True), (0, 1)) * bright
            return out + torch.tensor([1.0, 0.0])

    _, x, _ = case
    x = x.clone()
    x[:3] *= 0.3
    found = evaluate(PartlyFlat(), x, torch.zeros(12, dtype=torch.long), protocol=TOY, map=simple_gradient())
    assert found.summary["excluded"] == sum(r["excluded"] is not None for r in found.records) >= 3
    assert all("constant or not finite" in r["excluded"] for r in found.records[:3])
    assert found.summary["columns"]["kendall"]["n"] == 12 - found.summary["excluded"]


def test_strict_begins_with_the_papers_attacks() -> None:
    net, map = nn.Flatten(), simple_gradient()
    easy, hard = paper("mnist"), strict("mnist")
    first = attribution_attacks(easy, net, map, images=True)
    more = attribution_attacks(hard, net, map, images=True)
    same = ("eps", "alpha", "steps", "kind", "k", "restarts", "map", "beta", "bounds", "start", "keep", "seed")
    assert [getattr(first[0], f) for f in same] == [getattr(more[0], f) for f in same]
    climbing = [a for a in more[1:] if a.kind not in ("random", "score")]
    assert all(a.start == "ball" and a.adaptive and a.keep > 0 and a.relative for a in climbing)
    planned = [
        (a.seed, s.round) for a, s in zip(more[1:], hard.attacks, strict=True) if a.kind in ("soft_topk", "rank")
    ]
    assert len(planned) > 4
    assert all(seed == 1 + number for seed, number in planned), "each round from its own starts"
    assert {a.kind for a in more[1:]} >= {"random", "score", "soft_topk", "rank"}
    assert prediction_attacks(easy, net) == prediction_attacks(hard, net)[:1]
    assert prediction_attacks(hard, net)[1].restarts >= 3


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
    protocol = replace(scaled("mine", pixels=64, bounds=(0.0, 1.0), eps=0.1), steps=20, pgd_steps=2, repeats=1)

    def score(model: nn.Module, by: str) -> float:
        p = protocol if by == "paper" else strict(protocol)
        records = evaluate_batch(model, x, y, ids=range(6), protocol=p, map=integrated_gradients(8)).records
        return sum(r["topk"] for r in records) / len(records)

    scores = {by: [score(model, by) for model in (net, hidden)] for by in ("paper", "strict")}
    assert scores["strict"][1] == pytest.approx(scores["strict"][0], abs=1e-9)
    assert abs(scores["paper"][1] - scores["paper"][0]) > 0.01
    assert max(scores["strict"]) < min(scores["paper"]) - 0.05
