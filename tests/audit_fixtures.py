"""Small data and models of a user: bars of 8×8 pixels in three classes, and networks that classify them."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F


def bars(n: int = 30, *, channels: int = 1, seed: int = 1) -> tuple[Tensor, Tensor]:
    """n images (n, channels, 8, 8) in [0, 1] and their labels: which rows are bright."""
    y = torch.arange(n) % 3
    x = 0.4 * torch.rand((n, channels, 8, 8), generator=torch.Generator().manual_seed(seed))
    for label in range(3):
        x[y == label, :, 2 * label : 2 * label + 2] += 0.5
    return x, y


class Plain(nn.Module):
    """Convolution, batch norm, an in-place activation, dropout."""

    def __init__(self, channels: int = 1) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(channels, 6, 3, stride=2), nn.BatchNorm2d(6)
        self.drop, self.head = nn.Dropout(0.2), nn.Linear(54, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(F.relu(self.norm(self.stem(x)), inplace=True).flatten(1)))


class Attentive(nn.Module):
    """Rows as tokens, GELU and attention; returns an object with .logits, like Hugging Face's models."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, activation="gelu", batch_first=True)
        self.head = nn.Linear(64, 3)

    def forward(self, pixel_values: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.head(self.encoder(pixel_values[:, 0]).flatten(1)))


def taught(net: nn.Module, x: Tensor, y: Tensor, *, steps: int = 25) -> nn.Module:
    """The network after a few steps of ordinary training."""
    optimizer = torch.optim.Adam(net.parameters(), 2e-2)
    for _ in range(steps):
        out = net(x)
        optimizer.zero_grad()
        F.cross_entropy(getattr(out, "logits", out), y).backward()
        optimizer.step()
    return net


def factory() -> nn.Module:
    """For `audit_fixtures:factory`: the same network in every process, and the same random state after it."""
    net = deepcopy(_factory())
    torch.manual_seed(3)
    return net


@cache
def _factory() -> nn.Module:
    torch.manual_seed(3)
    return taught(Plain(3), *bars(60, channels=3))


def folder(top: Path, names: tuple[str, ...] = ("a", "b", "c"), *, each: int = 8) -> Path:
    """A folder of class folders of the bars as PNG files."""
    x, y = bars(3 * each, channels=3)
    for label, name in enumerate(names):
        (top / name).mkdir(parents=True)
        for number, image in enumerate(x[y == label]):
            pixels = (255 * image).round().to(torch.uint8).permute(1, 2, 0).numpy()
            Image.fromarray(np.ascontiguousarray(pixels)).save(top / name / f"{number}.png")
    return top


def blank() -> nn.Module:
    """The factory's network, untrained."""
    return Plain(3)


def probable() -> nn.Module:
    """Returns probabilities."""
    return nn.Sequential(Plain(3), nn.Softmax(1))
