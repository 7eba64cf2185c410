"""Records of a batch: strict against paper, failed attacks, maps without an order."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from evaluation_fixtures import IG, TOY
from robattr.attacks import simple_gradient
from robattr.evaluation import evaluate, strict

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
