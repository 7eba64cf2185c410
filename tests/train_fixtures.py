"""A tiny dataset, tiny networks and quick runs that the training tests share."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

from robattr import recipes
from robattr.data import Dataset, from_tensors
from robattr.evaluation import protocol
from robattr.reproduce import TARGETS
from robattr.training.config import TrainConfig

QUICK = TrainConfig(
    dataset="tiny", eps=0.1, attack_steps=2, step_size=0.05, m=3, m_attack=2, k=4, lr=1e-2, steps=6, batch=8,
    log_every=1, validate_every=3, checkpoint_every=2,
)  # fmt: skip


def tiny_data() -> Dataset:
    """90 images of 6×6 in three classes, told apart by which rows are bright."""
    generator = torch.Generator().manual_seed(1)
    y = torch.arange(90) % 3
    x = 0.5 * torch.rand((90, 1, 6, 6), generator=generator)
    for label in range(3):
        x[y == label, :, 2 * label : 2 * label + 2] += 0.4
    return from_tensors(x, y, validation=0.1, test=0.1, name="tiny")


def tiny_net(
    *, norm: bool = False, bias: bool | None = None, dropout: float = 0.0, relu: bool = False
) -> nn.Sequential:
    torch.manual_seed(5)
    middle: list[nn.Module] = [nn.BatchNorm2d(4)] if norm else []
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=not norm if bias is None else bias),
        *middle,
        nn.ReLU() if relu else nn.Softplus(),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(64, 3),
    )


def weights(model: nn.Module) -> torch.Tensor:
    """Every parameter and floating buffer, as one vector."""
    return torch.cat([value.detach().double().reshape(-1) for value in model.state_dict().values()])


def lines(path) -> list[dict]:
    """The records of a `metrics.jsonl`."""
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def shorten_recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut every recipe and the evaluation of fashion-mini to a few steps, and table 1 to two methods."""
    short = {"steps": 3, "batch": 25, "attack_steps": 1, "m": 1, "m_attack": 1, "log_every": 1, "validate_every": 0}
    real = recipes.get
    monkeypatch.setattr(recipes, "get", lambda name: replace(real(name), **short))
    quick = replace(protocol.paper("fashion-mini"), steps=1, pgd_steps=1, repeats=1, N=1)
    monkeypatch.setitem(protocol._PAPER, "fashion-mini", quick)
    monkeypatch.setitem(TARGETS, "table1", replace(TARGETS["table1"], methods=("natural", "ig-sum-norm")))


def chain_recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let IG-SUM-NORM of fashion-mini start from NATURAL of the same seed."""
    base = replace(recipes.get("fashion-mini/natural"), steps=1)

    def before(run: TrainConfig) -> TrainConfig | None:
        named = run.method == "ig-sum-norm" and not run.warm_start
        return replace(base, recipe="fashion-mini/first", seed=run.seed) if named else None

    monkeypatch.setattr(recipes, "before", before)
    monkeypatch.setitem(TARGETS, "table1", replace(TARGETS["table1"], methods=("ig-sum-norm",)))
