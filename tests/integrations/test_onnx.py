"""ONNX files give the logits of torch, up to a rounding that is derived, for every batch size."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from audit_fixtures import Attentive
from nets import Residual
from robattr.auditing import wrap
from robattr.errors import InvalidInput, UnsupportedModel
from robattr.integrations import onnx as integration
from robattr.integrations.onnx import export_onnx, rounding, run_onnx

for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package, reason="pip install onnx onnxscript onnxruntime runs these tests")

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's exporter about itself


class Both(nn.Module):
    """Convolutions with batch norm beside attention, in one network: an export takes seconds. Returns .logits."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Residual(), Attentive()

    def forward(self, x: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.first(x) + self.second(x).logits)


def test_onnxruntime_gives_the_logits_of_torch(tmp_path):
    net, x = Both(), torch.rand(7, 1, 8, 8)
    path = export_onnx(net, tmp_path / "net.onnx", torch.rand(3, 1, 8, 8), preprocessing={"mean": 0.3, "std": 2.0})
    assert net.training
    wrapped = wrap(net.eval(), preprocessing={"mean": 0.3, "std": 2.0})[0]
    tolerance = rounding(wrapped, x)
    with torch.no_grad():
        expected = net.double()((x.double() - 0.3) / 2.0).logits
    assert float((run_onnx(path, x).double() - expected).abs().max()) <= tolerance


def test_the_tolerance_tells_rounding_from_a_wrong_weight():
    """One weight in a thousand changed by 1% is found; the order of a sum is not."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(1000, 64), nn.ReLU(), nn.Linear(64, 3)).eval()
    x = torch.rand(5, 10, 100)
    tolerance, expected = rounding(net, x), net(x).detach()
    order = torch.randperm(1000)
    other = nn.Sequential(nn.Flatten(), nn.Linear(1000, 64), nn.ReLU(), net[3])
    with torch.no_grad():
        other[1].weight.copy_(net[1].weight[:, order])
        other[1].bias.copy_(net[1].bias)
        reordered = other(x.flatten(1)[:, order])
        net[1].weight[:, 0] *= 1.01
        wrong = net(x)
    assert 0 < float((reordered - expected).abs().max()) <= tolerance
    assert float((wrong - expected).abs().max()) > tolerance


def test_a_file_with_other_logits_is_not_written(tmp_path, monkeypatch):
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    program = SimpleNamespace(model_proto=SimpleNamespace(SerializeToString=lambda: b""))
    monkeypatch.setattr(torch.onnx, "export", lambda *args, **settings: program)
    monkeypatch.setattr(integration, "run_onnx", lambda _, x: net(x).detach() + 1e-3)
    with pytest.raises(UnsupportedModel, match=r"the rounding of float32, got a difference of 0.001"):
        export_onnx(net, tmp_path / "net.onnx", torch.rand(2, 4))
    assert not (tmp_path / "net.onnx").exists()


def test_one_input_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match=r"a batch of two or more inputs to export with, got \(1, 4\)"):
        export_onnx(nn.Linear(4, 3), tmp_path / "net.onnx", torch.rand(1, 4))
