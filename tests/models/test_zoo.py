"""The zoo: names, hashes, and the shipped weights."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch

from robattr import load_model
from robattr.errors import CheckpointError
from robattr.evaluation.resume_checks import digest_of_weights
from robattr.models import (
    gtsrb_resnet,
    save_model,
    zoo,
)


def test_zoo_names_are_checked_by_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = gtsrb_resnet()
    path = save_model(net.half(), tmp_path / "gtsrb.safetensors")
    entry = {
        "file": path.name,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "licence": "Apache-2.0",
        "record": "none",
    }
    (tmp_path / "index.json").write_text(json.dumps({"gtsrb/ig-sum-norm": entry, "gtsrb/gone": {**entry, "file": "x"}}))
    monkeypatch.setattr(zoo, "FOLDER", tmp_path)
    assert torch.equal(load_model("gtsrb/ig-sum-norm").fc.weight, net.fc.weight.float())
    with pytest.raises(CheckpointError, match="did you mean 'gtsrb/ig-sum-norm'"):
        load_model("gtsrb/ig-sumnorm")
    with pytest.raises(CheckpointError, match="not installed"):
        load_model("gtsrb/gone")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="damaged"):
        load_model("gtsrb/ig-sum-norm")


def test_the_shipped_zoo_is_whole() -> None:
    """Every network loads, and the record that vouches for it is of these very weights."""
    results = Path(__file__).parents[2]
    for name, entry in zoo.entries().items():
        net = load_model(name)
        assert net.spec is not None
        record = json.loads((results / entry.record).read_text(encoding="utf-8"))
        assert record["weights"] == digest_of_weights(net)
        assert record["config"]["recipe"] == name, "one name, one model"
        assert record["summary"]["dataset"] == name.partition("/")[0]
    assert sum(file.stat().st_size for file in zoo.FOLDER.glob("*.safetensors")) < 40e6
