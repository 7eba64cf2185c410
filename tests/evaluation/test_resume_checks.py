"""A resumed evaluation rejects other examples, models, maps, weights and precisions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from scipy.ndimage import center_of_mass
from torch import Tensor, nn

from evaluation_fixtures import IG, TOY, toy_net
from robattr.attacks import from_callable, gradient_input, simple_gradient
from robattr.errors import CheckpointError
from robattr.evaluation import OutputDir, evaluate
from robattr.evaluation.records import discard

pytestmark = pytest.mark.usefixtures("quick_diagnostics")


def test_records_of_other_images_or_other_code_are_not_mixed_in(case, tmp_path: Path) -> None:
    class Dimmed(nn.Module):
        """The same weights behind other code."""

        def __init__(self, net: nn.Sequential) -> None:
            super().__init__()
            for name, part in net.named_children():
                self.add_module(name, part)

        def forward(self, x: Tensor) -> Tensor:
            x = 0.2 * x
            for part in self.children():
                x = part(x)
            return x

    net, x, y = case
    out = OutputDir(tmp_path)
    whole = evaluate(*case, protocol=TOY, map=IG, out=out)
    for model, images in ((Dimmed(net), x), (net, x.flip(0))):
        with pytest.raises(CheckpointError, match=r"the model and the examples .* got others .* --fresh"):
            evaluate(model, images, y, protocol=TOY, map=IG, out=out)
    other = y.clone()
    other[5] = (y[5] + 1) % 3
    with pytest.raises(CheckpointError, match="example 5: label"):
        evaluate(net, x, other, protocol=TOY, map=IG, out=out)
    assert evaluate(*case, protocol=TOY, map=IG, out=out).records == whole.records


def test_records_of_another_map_of_the_same_name_are_not_mixed_in(case, tmp_path: Path) -> None:
    """Also where the map is the same and the attack would follow another."""

    def own(attribute, guide=None):
        return from_callable(attribute, name="own", guide=guide or gradient_input())

    net, x, y = case
    whole = evaluate(*case, protocol=TOY, map=own(lambda model, x, y: x), out=OutputDir(tmp_path))
    followed = gradient_input()(net, x[:1], y[:1])[0].detach()
    expected = [at / 5 for map in (x[0, 0], followed) for at in center_of_mass(map.double().numpy())]
    assert whole.records[0]["centre"] == pytest.approx(expected, abs=1e-4)
    assert whole.records[2]["centre"] is None  # misclassified
    others = (
        own(lambda model, x, y: 1 - x),
        own(lambda model, x, y: x.flip(-1)),
        own(lambda model, x, y: x, guide=simple_gradient()),
        replace(own(lambda model, x, y: x), guide=None),
    )
    for other in others:
        with pytest.raises(CheckpointError, match=r"the map 'own' .* another of that name .* another name.*--fresh"):
            evaluate(*case, protocol=TOY, map=other, out=OutputDir(tmp_path))
    again = evaluate(*case, protocol=TOY, map=own(lambda model, x, y: x.clone()), out=OutputDir(tmp_path))
    assert again.records == whole.records


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # what a CPU without bf16 units says
def test_records_of_another_precision_are_not_mixed_in(case, tmp_path: Path) -> None:
    net, x, y = case
    first = evaluate(net, x, y, protocol=TOY, map=IG, out=OutputDir(tmp_path)).summary
    assert first["precision"] == "fp32"
    with pytest.raises(CheckpointError, match="precision 'fp32' → 'bf16'"):
        evaluate(net, x, y, protocol=TOY, map=IG, out=OutputDir(tmp_path), precision="bf16")
    again = evaluate(net, x, y, protocol=TOY, map=IG, out=OutputDir(tmp_path), precision="tf32")  # on a CPU, the same
    assert again.summary == first
    low = evaluate(net, x, y, protocol=TOY, map=IG, precision="bf16").summary
    assert low["precision"] == "bf16"
    assert low["columns"]["kendall"] != first["columns"]["kendall"]


def test_records_of_other_weights_are_not_mixed_in(case, tmp_path: Path) -> None:
    net, x, y = case
    evaluate(net, x[:4], y[:4], protocol=TOY, map=IG, out=OutputDir(tmp_path))
    other = toy_net()
    with torch.no_grad():
        other[0].weight.mul_(1.1)
    with pytest.raises(CheckpointError, match=r"got others \(weights '"):
        evaluate(other, x[:4], y[:4], protocol=TOY, map=IG, out=OutputDir(tmp_path))
    discard(tmp_path / "paper-ig.jsonl")
    assert not list(tmp_path.glob("paper*"))
