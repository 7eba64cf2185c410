"""Networks go to a folder of the Hub's form and come back the same, with the card of their run. Nothing is uploaded."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from robattr import TrainConfig, models, train
from robattr.errors import InvalidInput
from robattr.reporting import model_card
from train_fixtures import QUICK, tiny_data, tiny_net

hub = pytest.importorskip("huggingface_hub", reason="pip install huggingface_hub runs these tests")

from robattr.integrations import HubModel  # noqa: E402

SHORT = TrainConfig(dataset="fashion-mini", steps=1, batch=4, validate_every=0)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("hub") / "run"
    train(SHORT, path, device="cpu")
    return path


def test_a_run_is_saved_and_loaded_with_its_card(run, tmp_path):
    HubModel.from_run(run, license="mit").save_pretrained(tmp_path / "hub")
    net = HubModel.from_pretrained(tmp_path / "hub")
    x = torch.rand(3, 1, 28, 28)
    assert torch.equal(net(x), models.read_model(run / "model.safetensors").eval()(x))
    assert json.loads((tmp_path / "hub" / "config.json").read_text())["architecture"] == "small_cnn"
    card = hub.ModelCard.load(tmp_path / "hub" / "README.md")
    assert card.text.strip() == hub.ModelCard(model_card(run, license="mit")).text.strip()
    assert card.data.license == "mit"


def test_a_config_that_names_no_known_network_is_refused(run, tmp_path):
    HubModel.from_run(run).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "os.system", "arguments": {}}))
    with pytest.raises(InvalidInput, match=r"unknown architecture 'os\.system'"):
        HubModel.from_pretrained(tmp_path)


def test_a_missing_weight_is_an_error(run, tmp_path):
    """The Hub's default would leave it at its random start."""
    HubModel.from_run(run).save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights.pop("network.conv1.bias")
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(RuntimeError, match=r"network\.conv1\.bias"):
        HubModel.from_pretrained(tmp_path)


def test_a_network_of_the_users_brings_its_own_class(tmp_path):
    """The Hub's mixin on the user's class, the hardened weights, and the card of the run."""

    class Mine(nn.Module, hub.PyTorchModelHubMixin):
        def __init__(self) -> None:
            super().__init__()
            self.net = tiny_net()

        def forward(self, x):
            return self.net(x)

    path, x = tmp_path / "run", torch.rand(2, 1, 6, 6)
    train(QUICK, path, dataset=tiny_data(), model=Mine(), device="cpu")
    trained = models.load_weights(Mine(), path / "model.safetensors").eval()
    trained.save_pretrained(tmp_path / "hub")
    hub.ModelCard(model_card(path)).save(tmp_path / "hub" / "README.md")
    assert torch.equal(Mine.from_pretrained(tmp_path / "hub")(x), trained(x))
    assert "# NATURAL, tiny" in (tmp_path / "hub" / "README.md").read_text("utf-8")


def test_a_network_without_a_spec_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("robattr.integrations.hub.load_model", lambda run: tiny_net())
    with pytest.raises(InvalidInput, match="PyTorchModelHubMixin"):
        HubModel.from_run(tmp_path)
