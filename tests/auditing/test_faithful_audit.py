"""An audit says that maps hold only where they explain something: not of a constant map, nor of an edge detector."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import robattr
from robattr.attacks import from_callable, gradient_input
from robattr.attacks.maps import AttributionMap
from robattr.metrics.faithfulness import edges


class Regions(nn.Module):
    """The class is the brightest of three bands; the frame of the image does not matter. Linear, so IG is exact."""

    def __init__(self) -> None:
        super().__init__()
        weight = torch.zeros(3, 12, 12)
        for label in range(3):
            weight[label, 2 + 3 * label : 4 + 3 * label, 2:10] = 1.0
        self.head = nn.Linear(144, 3, bias=False)
        self.head.weight.data = weight.flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(x.flatten(1))
        return logits


def images(n: int = 24) -> tuple[Tensor, Tensor]:
    """Bands of random pixels, the label's brighter; sharp squares in two corners are the strongest edges."""
    g, y = torch.Generator().manual_seed(0), torch.arange(n) % 3
    x = 0.1 * torch.rand(n, 1, 12, 12, generator=g)
    for b, label in enumerate(y.tolist()):
        x[b, 0, 2 + 3 * label : 4 + 3 * label, 2:10] += 0.85 * torch.rand(2, 8, generator=g) ** 2
    x[:, :, :2, :2] = x[:, :, -2:, -2:] = 1.0
    return x, y


def constant(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    rows = torch.arange(144.0).view(12, 12)
    return rows.to(x).expand(len(x), 12, 12)


def edge_detector(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return edges(x).to(x)


MAPS = {
    "good": (gradient_input(), "holds", ""),
    "constant": (from_callable(constant, name="constant", guide=gradient_input()), "vacuous", "hardly depend on"),
    "edges": (from_callable(edge_detector, name="edges", guide=gradient_input()), "vacuous", "better than the edges"),
}


@pytest.mark.parametrize(("map", "level", "reason"), MAPS.values(), ids=MAPS)
def test_a_map_holds_only_where_it_explains_something(map: AttributionMap, level: str, reason: str) -> None:
    found = robattr.audit(
        Regions(), images(), maps=map, protocol="paper", eps=0.01, steps=8, examples=24, device="cpu"
    ).verdict
    assert found.level == level, found
    assert reason in found.headline
    assert ("hold" in found.headline.split("(")[0]) == (level == "holds")
