"""A small network, examples and protocol that the evaluation tests share."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from robattr.attacks import integrated_gradients
from robattr.evaluation import Protocol

TOY = Protocol("paper", "toy", 0.15, 0.05, 4, 6, 6, 0.05, 4, (0.0, 1.0), N=4, repeats=2)
IG = integrated_gradients(4)


def toy_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 16), nn.ReLU(), nn.Linear(16, 3)
    )


def toy_case() -> tuple[nn.Module, Tensor, Tensor]:
    """The network and 12 images of 6×6; examples 2 and 7 are misclassified."""
    net = toy_net()
    x = torch.rand(12, 1, 6, 6, generator=torch.Generator().manual_seed(1))
    x[:, :, 0] = 0
    y = net(x).argmax(dim=1)
    y[[2, 7]] = (y[[2, 7]] + 1) % 3
    return net, x, y


def shorten_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few queries of the searches without gradients, and one radius of the curve: tests/evaluation tests more."""
    for module in ("diagnostics", "suite"):
        monkeypatch.setattr(f"robattr.evaluation.{module}.QUERIES", 5)
    monkeypatch.setattr("robattr.evaluation.diagnostics.RADII", (1.0,))
