"""Fixtures of the tests that fetch, and of those that evaluate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from download_fixtures import server as server
from download_fixtures import tiny_mnist as tiny_mnist
from robattr import data
from robattr.evaluation import Protocol
from robattr.models import save_model, small_cnn
from robattr.training.config import TrainConfig

TINY = Protocol("paper", "fashion-mini", 0.1, 0.05, 2, 50, 50, 0.05, 2, (0.0, 1.0), N=2, repeats=2)


@pytest.fixture
def tiny_protocol(monkeypatch, undrawn) -> None:
    """Two steps of two repeats; short diagnostics."""
    monkeypatch.setattr("robattr.evaluation.for_dataset", lambda data: TINY)
    monkeypatch.setattr("robattr.evaluation.diagnostics.RADII", (1.0,))
    monkeypatch.setattr("robattr.evaluation.diagnostics.QUERIES", 3)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> list[Path]:
    """Two run directories of small nets that saw fashion-mini for a moment."""
    x, y, _ = data.load("fashion-mini").examples("train", 800)
    made = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        net = small_cnn()
        optimizer = torch.optim.Adam(net.parameters(), 3e-3)
        for batch in torch.randperm(len(x)).split(50):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(x[batch]), y[batch]).backward()
            optimizer.step()
        folder = tmp_path_factory.mktemp(f"run{seed}")
        save_model(net, folder / "model.safetensors")
        config = {**TrainConfig().as_dict(), "dataset": "fashion-mini", "seed": seed}
        (folder / "config.json").write_text(json.dumps(config))
        made.append(folder)
    return made
