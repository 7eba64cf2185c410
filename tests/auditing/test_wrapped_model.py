"""The user's model behind its preprocessing: logits in float32, in a copy where anything changes."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

from audit_fixtures import Plain, bars, taught
from robattr.auditing import Preprocessing, WrappedModel, wrap
from robattr.auditing.wrapped_model import logits
from robattr.errors import InvalidInput, UnsupportedModel


@pytest.fixture(scope="module")
def plain() -> nn.Module:
    torch.manual_seed(0)
    return taught(Plain(), *bars()).eval()


def test_logits_are_found_and_nothing_else_is_taken_for_them() -> None:
    z = torch.zeros(2, 3)
    for out in (z, SimpleNamespace(logits=z), {"logits": z}):
        assert logits(out) is z
    for out in ((z, z), None, SimpleNamespace(scores=z), {"z": z}):
        with pytest.raises(UnsupportedModel, match="expected logits"):
            logits(out)


def test_the_preprocessing_is_part_of_the_network(plain: nn.Module) -> None:
    x, _ = bars(4)
    made, notes = wrap(plain, preprocessing={"mean": [0.2], "std": [0.5], "axis": -3})
    with torch.no_grad():
        torch.testing.assert_close(made.eval()(x), plain((x - 0.2) / 0.5))
    assert not notes
    assert made.module is plain
    assert made.state_dict().keys() == {f"module.{name}" for name in plain.state_dict()}
    three = WrappedModel(nn.Identity(), Preprocessing((0.1, 0.2, 0.3), (1.0, 2.0, 4.0)))
    torch.testing.assert_close(three(torch.ones(1, 3, 2, 2))[0, :, 0, 0], torch.tensor([0.9, 0.4, 0.175]))
    torch.testing.assert_close(three(torch.ones(1, 3)), torch.tensor([[0.9, 0.4, 0.175]]))
    with pytest.raises(InvalidInput, match="expected 1 channels in mean"):
        three(torch.ones(1, 1, 2, 2))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"mean": math.nan}, "finite mean and positive std"),
        ({"mean": 0.5, "std": math.inf}, "finite mean and positive std"),
        ({"mean": 0.5, "std": 0.0}, "finite mean and positive std"),
        ({"avg": 1.0}, r"unknown preprocessing \['avg'\]"),
        ({"mean": 0.5, "axis": -1}, "channels on axis -3, got axis=-1"),
    ],
)
def test_a_wrong_preprocessing_is_refused(wrong: dict, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        wrap(Plain(), preprocessing=wrong)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_are_converted_in_a_copy(kind: torch.dtype) -> None:
    net = Plain().to(kind).eval()
    made, notes = wrap(net)
    assert notes[0].startswith(f"weights in {str(kind).removeprefix('torch.')} were converted to float32 in a copy")
    assert {p.dtype for p in net.parameters()} == {kind}
    assert {p.dtype for p in made.parameters()} == {torch.float32}
    x, _ = bars(2)
    assert made.eval()(x).dtype == torch.float32


def test_wrappers_come_off_and_sync_batch_norm_becomes_plain() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.SyncBatchNorm(2), nn.Flatten(), nn.Linear(72, 3))
    net[1].running_mean.fill_(0.3)
    for wrapped in (nn.DataParallel(net), torch.compile(net, backend="eager")):
        made, notes = wrap(wrapped, device="cpu")  # where there is one GPU, DataParallel moves the module there
        net.cpu()
        assert type(wrapped).__name__ in notes[0]
        assert "SyncBatchNorm" in notes[1]
        assert not [m for m in made.modules() if isinstance(m, nn.SyncBatchNorm)]
        x, _ = bars(2)
        with torch.no_grad():
            torch.testing.assert_close(made.eval()(x), net.eval()(x))
        net.train()
    assert isinstance(net[1], nn.SyncBatchNorm)
    with pytest.raises(UnsupportedModel, match=r"expected a torch\.nn\.Module, got function"):
        wrap(lambda x: x)  # type: ignore[arg-type]


def test_quantised_models_are_refused() -> None:
    class Linear(nn.Linear):  # as quantisation leaves it, whichever engine this machine has
        __module__ = "torch.ao.nn.quantized.dynamic.modules.linear"

    with pytest.raises(UnsupportedModel, match="quantised layer 1: pass the model from before quantisation"):
        wrap(nn.Sequential(nn.Linear(6, 6), Linear(6, 3)))


def test_models_without_weights_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match="got one on the meta device"):
        wrap(Plain().to("meta"), device="cpu")


def test_freezing_is_exact_and_checked(plain: nn.Module) -> None:
    made, _ = wrap(plain, copy=True)
    made.freeze(batch_norm="frozen", layers=["head"])
    made.train()
    assert made.module.drop.training
    assert not made.module.norm.training
    assert [name for name, p in made.named_parameters() if not p.requires_grad] == [
        "module.head.weight",
        "module.head.bias",
    ]
    thawed, _ = wrap(plain, copy=True)
    thawed.freeze(batch_norm="train", layers=["norm"])
    thawed.train()
    assert not thawed.module.norm.training  # a frozen layer keeps its statistics too
    net = nn.Sequential(nn.InstanceNorm2d(1, track_running_stats=True), spectral_norm(nn.Conv2d(1, 2, 3)), nn.Flatten())
    still, _ = wrap(net.append(nn.Linear(72, 3)))
    still.freeze(batch_norm="frozen", layers=["1"])
    still.train()
    before = {name: buffer.clone() for name, buffer in still.named_buffers()}
    still(torch.rand(2, 1, 8, 8))
    assert all(torch.equal(buffer, before[name]) for name, buffer in still.named_buffers())
    with pytest.raises(InvalidInput, match="batch_norm must be 'frozen' or 'train', got 'melt'"):
        made.freeze(batch_norm="melt")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="every parameter is frozen"):
        wrap(plain, copy=True)[0].freeze(batch_norm="train", layers=["stem", "norm", "head"])
    with pytest.raises(InvalidInput, match="did you mean 'head'"):
        made.freeze(batch_norm="train", layers=["heads"])
