"""A network that cannot be trained on the data is refused before anything is written."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from torch import nn

from robattr.errors import UnsupportedModel
from robattr.train import checkpoint
from robattr.train.loop import train
from train_fixtures import QUICK, tiny_data, tiny_net


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(10, 3)), r"fails at inputs of shape \(1, 6, 6\).*tiny"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 2)), "2 outputs, tiny 3 classes"),
        (lambda: tiny_net().requires_grad_(False), "no parameters that require a gradient"),
    ],
)
def test_a_network_that_does_not_fit(tmp_path, make: Callable[[], nn.Module], words: str) -> None:
    with pytest.raises(UnsupportedModel, match=words):
        train(QUICK, tmp_path / "run", dataset=tiny_data(), model=make(), device="cpu")
    assert not checkpoint.listed(tmp_path / "run" / "checkpoints")
