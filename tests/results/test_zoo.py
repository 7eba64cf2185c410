"""Publishing a network: half precision, and its entry in the zoo."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from results.zoo import add, cards, half
from robattr import load_model
from robattr.errors import CheckpointError
from robattr.models import (
    gtsrb_resnet,
    read_metadata,
    save_model,
    zoo,
)


def test_from_a_finished_network_to_the_zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = gtsrb_resnet()
    path = save_model(net, tmp_path / "run" / "model.safetensors", {"note": "kept"})
    size = path.stat().st_size
    assert 0 < half(path.parent) < 2**-10
    assert path.stat().st_size < 0.6 * size
    assert read_metadata(path)["note"] == "kept"
    rounded = load_model(path)
    assert torch.equal(rounded.fc.weight, net.fc.weight.half().float())
    assert half(path.parent) == 0.0  # nothing is lost a second time

    (tmp_path / "index.json").write_text("{}")
    monkeypatch.setattr(zoo, "FOLDER", tmp_path)
    add("gtsrb/madry", path.parent, "results/b.json")
    entry = add("gtsrb/ig-sum-norm", path.parent, "results/a.json")
    assert zoo.entries()["gtsrb/ig-sum-norm"] == entry
    assert list(zoo.entries()) == ["gtsrb/ig-sum-norm", "gtsrb/madry"]
    assert torch.equal(load_model("gtsrb/ig-sum-norm").fc.weight, rounded.fc.weight)


def test_the_shipped_cards_are_up_to_date() -> None:
    made = cards()
    assert {file: file.read_text(encoding="utf-8") for file in made} == made
    for entry in zoo.entries().values():
        text = made[entry.card]
        assert f"- `{entry.file}`: SHA-256 `{entry.sha256}`" in text
        assert Path(entry.record).name in text


@pytest.mark.parametrize("value", [1e6, float("inf"), float("nan")])
def test_weights_beyond_half_precision_are_left_alone(value: float, tmp_path: Path) -> None:
    net = gtsrb_resnet()
    with torch.no_grad():
        net.fc.bias[0] = value
    path = save_model(net, tmp_path / "model.safetensors")
    before = path.read_bytes()
    with pytest.raises(CheckpointError, match="does not fit half precision"):
        half(path.parent)
    assert path.read_bytes() == before
