"""A network that cannot be trained on the data, or cannot continue the run, is refused in words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor, nn

from robattr.errors import CheckpointError, UnsupportedModel
from robattr.training import checkpoint
from robattr.training.loop import train
from robattr.training.run_directory import RunDirectory, read_config
from train_fixtures import QUICK, tiny_data, tiny_net


class Twice(nn.Module):
    """Two answers at once, as networks with an auxiliary head give in training."""

    def __init__(self) -> None:
        super().__init__()
        self.net = tiny_net()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.net(x), self.net(x)


class Versioned(Twice):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return self.net(x)

    def get_extra_state(self) -> dict[str, int]:
        return {"version": 1}

    def set_extra_state(self, state: dict[str, int]) -> None:
        pass


class Picky(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        raise AssertionError(f"Wrong image height! Expected 224 but got {x.shape[2]}!")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(10, 3)), r"fails on inputs of tiny, of shape \(1, 6, 6\)"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 2)), "2 outputs, but tiny has 3 classes"),
        (Twice, r"expected logits of shape \(B, classes\), got tuple"),
        (lambda: Picky(36, 3), r"fails on inputs of tiny.*Wrong image height"),
        (lambda: tiny_net().requires_grad_(False), "no parameter of the network requires a gradient"),
        (Versioned, r"tensors only, got '_extra_state' of type dict"),
    ],
)
def test_a_network_that_does_not_fit(tmp_path, make: Callable[[], nn.Module], words: str) -> None:
    with pytest.raises(UnsupportedModel, match=words):
        train(QUICK, tmp_path / "run", dataset=tiny_data(), model=make(), device="cpu")
    assert not checkpoint.listed(tmp_path / "run" / "checkpoints")


def test_a_batch_of_more_than_there_are_is_announced(tmp_path, capsys) -> None:
    run = replace(QUICK, steps=1, batch=10_000)
    train(run, tmp_path / "run", dataset=tiny_data(), model=tiny_net(), device="cpu")
    assert "batch=10000 exceeds the training set: every step uses all" in "".join(capsys.readouterr())


@pytest.mark.parametrize("part", ["images", "labels", "classes"])
def test_other_data_than_those_that_a_run_began_with(tmp_path, part: str) -> None:
    run, data = replace(QUICK, steps=2), tiny_data()
    train(run, tmp_path / "run", dataset=data, model=tiny_net(), device="cpu")
    if part == "classes":
        other = replace(data, classes=data.classes[::-1])
    else:
        other = replace(data, train=replace(data.train, **{part: getattr(data.train, part).flip(0)}))
    with pytest.raises(CheckpointError, match=r"started on other data .* use those, or choose another --out"):
        train(replace(run, steps=4), tmp_path / "run", dataset=other, model=tiny_net(), device="cpu")
    assert train(replace(run, steps=4), tmp_path / "run", dataset=tiny_data(), model=tiny_net(), device="cpu").step == 4


def test_a_full_run_trains_on_the_validation_images_of_the_data_that_it_was_given(tmp_path) -> None:
    data = tiny_data()
    call = {"dataset": data, "device": "cpu"}
    held, full = (
        train(replace(QUICK, steps=3, full=full), tmp_path / str(full), model=tiny_net(), **call)
        for full in (False, True)
    )
    assert held.val_accuracy is not None
    assert full.val_accuracy is None


def test_a_run_is_of_the_data_that_it_was_given(tmp_path) -> None:
    run = replace(QUICK, steps=1, dataset="fashion-mini")
    made = train(run, tmp_path / "run", dataset=tiny_data(), model=tiny_net(), device="cpu")
    assert read_config(RunDirectory(made.path))["dataset"] == tiny_data().name == "tiny"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda net: net.append(nn.Linear(3, 3)), "5.weight"),
        (lambda net: setattr(net, "0", nn.Conv2d(1, 4, 3, bias=False)), "0.bias"),
        (lambda net: net[0].requires_grad_(False), "parameter group"),
    ],
)
def test_a_network_that_is_not_the_one_a_run_began_with(tmp_path, change: Callable[[Any], object], words: str) -> None:
    run = replace(QUICK, steps=2)
    train(run, tmp_path / "run", dataset=tiny_data(), model=tiny_net(), device="cpu")
    other = tiny_net()
    change(other)
    with pytest.raises(CheckpointError, match=f"started with another network .*{words}.*choose another --out"):
        train(replace(run, steps=4), tmp_path / "run", dataset=tiny_data(), model=other, device="cpu")


def test_weights_that_know_the_validation_images_are_announced(tmp_path, capsys) -> None:
    call = {"dataset": tiny_data(), "device": "cpu"}
    for full in (True, False):
        first = train(replace(QUICK, steps=1, full=full), tmp_path / f"first-{full}", model=tiny_net(), **call)
        capsys.readouterr()
        warm = replace(QUICK, steps=1, warm_start=str(first.path / "model.safetensors"))
        train(warm, tmp_path / f"warm-{full}", model=tiny_net(), **call)
        assert ("were trained on the validation images, too" in "".join(capsys.readouterr())) == full
