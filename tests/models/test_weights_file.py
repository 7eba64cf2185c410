"""Networks on disk and by name: round trips, and files that are damaged, foreign or hostile."""

from __future__ import annotations

import os
import pickle
import struct
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from robattr import load_model
from robattr.errors import CheckpointError
from robattr.models import (
    Spec,
    architecture,
    architectures,
    gtsrb_resnet,
    load_weights,
    paper_cnn,
    read_metadata,
    resnet,
    save_model,
    small_cnn,
)


def same(a: nn.Module, b: nn.Module) -> bool:
    left, right = a.state_dict(), b.state_dict()
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


# --- save_model and load_model -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [lambda: paper_cnn(7), lambda: small_cnn(3, channels=3, size=32), gtsrb_resnet, lambda: resnet(5, 1, channels=1)],
    ids=["paper_cnn", "small_cnn", "gtsrb_resnet", "resnet"],
)
def test_a_file_alone_is_enough(make, tmp_path: Path) -> None:
    net = make()
    path = save_model(net, tmp_path / "deep" / "model.safetensors", {"recipe": "x/y"})
    state = torch.get_rng_state()
    read = load_model(path)
    assert torch.equal(torch.get_rng_state(), state)
    assert same(read, net)
    assert read.spec == net.spec
    assert all(p.requires_grad and p.dtype == torch.float32 and p.device.type == "cpu" for p in read.parameters())
    assert same(load_model(str(path.parent)), net)  # a run directory
    assert read_metadata(path)["recipe"] == "x/y"
    assert [p.name for p in path.parent.iterdir()] == ["model.safetensors"]  # no partial file is left
    side = net.spec.arguments.get("size", 32)
    read(torch.rand(2, net.spec.arguments["channels"], side, side)).sum().backward()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_are_read_as_float32(dtype: torch.dtype, tmp_path: Path) -> None:
    net = small_cnn()
    path = save_model(net.to(dtype), tmp_path / "m.safetensors")
    assert load_file(path)["fc1.weight"].dtype == dtype
    read = load_model(path)
    assert all(p.dtype == torch.float32 for p in read.parameters())
    assert torch.equal(read.fc1.weight, net.fc1.weight.float())


def test_saving_replaces_whole_and_leaves_the_model_alone(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_model(small_cnn(), path)
    net = small_cnn().eval()
    save_model(net, path)
    assert same(load_model(path), net)
    assert not net.training
    with pytest.raises(TypeError, match="metadata"):
        save_model(net, path, {"steps": 3})  # type: ignore[dict-item]
    assert same(load_model(path), net)


def test_tied_and_strided_weights(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Conv2d(1, 2, 3).to(memory_format=torch.channels_last))
    net[1].weight = net[0].weight
    path = save_model(net, tmp_path / "m.safetensors")
    other = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Conv2d(1, 2, 3))
    assert same(load_weights(other, path), net)
    with pytest.raises(CheckpointError, match="load_weights"):
        load_model(path)


def test_a_users_architecture_is_loaded_like_ours(tmp_path: Path) -> None:
    @architecture
    def wide_linear(features: int, *, classes: int = 2) -> nn.Linear:
        return nn.Linear(features, classes)

    try:
        net = wide_linear(4)
        assert net.spec == Spec("wide_linear", {"features": 4, "classes": 2})
        path = save_model(net, tmp_path / "m.safetensors")
        assert same(load_model(path), net)
    finally:
        del architectures["wide_linear"]
    with pytest.raises(CheckpointError, match="unknown architecture 'wide_linear'"):
        load_model(path)


class Tied(nn.Module):
    """Weights that are tied, a buffer that is not saved, and a tensor that is no buffer."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False), nn.Linear(4, classes)
        self.b.weight = self.a.weight
        self.register_buffer("mean", torch.full((4,), 0.5), persistent=False)
        self.shift = torch.ones(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.b(self.a(x - self.mean).relu() + self.shift).relu())


def test_a_loaded_network_is_tied_and_whole_as_it_was_built(tmp_path: Path) -> None:
    @architecture
    def tied(classes: int = 3) -> Tied:
        return Tied(classes)

    try:
        net = tied()
        state = torch.get_rng_state()
        found = load_model(save_model(net, tmp_path / "m.safetensors"))
        assert torch.equal(torch.get_rng_state(), state)
    finally:
        del architectures["tied"]
    assert found.a.weight is found.b.weight
    x = torch.rand(2, 4)
    assert torch.equal(found(x), net(x))


def test_damaged_and_foreign_files(tmp_path: Path) -> None:
    good = save_model(small_cnn(), tmp_path / "good.safetensors").read_bytes()
    damaged = {
        "empty": b"",
        "short": good[:1000],
        "cut": good[:-100],
        "text": b"hello, this is not a weight file",
        "huge header": struct.pack("<Q", 2**60) + good[8:],
    }
    for name, content in damaged.items():
        path = tmp_path / f"{name}.safetensors"
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match="not a whole safetensors file"):
            load_model(path)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ('{"name": "small_cn", "arguments": {}}', "did you mean 'small_cnn'"),
        ('{"name": "os.system", "arguments": {"command": "true"}}', "unknown architecture"),
        ('{"name": "small_cnn", "arguments": {"layers": 3}}', "does not take"),
        ('{"name": "small_cnn", "arguments": {"classes": "ten"}}', "positive whole number"),
        ('{"name": "resnet", "arguments": {"classes": 10, "units": 1000000}}', "at most 100"),
        ('{"name": "small_cnn", "arguments": {"classes": 1000000000}}', "other shape: fc2.weight"),
        ("nonsense", "network spec"),
    ],
)
def test_forged_specs(spec: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_file(small_cnn().state_dict(), path, metadata={"robattr.spec": spec})
    with pytest.raises(CheckpointError, match=words):
        load_model(path)


def test_references_that_lead_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "net.pt").write_bytes(b"")
    for ref, words in {
        "missing.safetensors": "expected a .safetensors file, .* got 'missing.safetensors'",
        str(tmp_path / "nowhere"): "expected a .safetensors file, .*nowhere'",
        "run": r"a run directory with model\.safetensors .* got 'run'",
        "net.pt": r"got net.pt: .* robattr audit my_nets:make --weights net.pt, in Python load_weights\(module, path\)",
        "gtsrb/no-such": "a model of the zoo, got 'gtsrb/no-such': did you mean",
    }.items():
        with pytest.raises(CheckpointError, match=words):
            load_model(ref)


# --- load_weights ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".pt", ".pth"])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda s: s,
        lambda s: {"state_dict": s, "epoch": 3},
        lambda s: {"model": s},
        lambda s: {f"module.{k}": v for k, v in s.items()},
        lambda s: {f"module._orig_mod.{k}": v for k, v in s.items()},
    ],
    ids=["plain", "state_dict", "model", "DataParallel", "both prefixes"],
)
def test_torch_files_of_tensors(wrap, suffix: str, tmp_path: Path) -> None:
    net, path = small_cnn(), tmp_path / f"w{suffix}"
    torch.save(wrap(net.state_dict()), path)
    target = small_cnn()
    assert load_weights(target, path) is target
    assert same(target, net)


@pytest.mark.parametrize("before", ["", "module.", "_orig_mod.", "_orig_mod.module."])
def test_a_module_with_a_child_called_module_is_told_from_a_wrapped_one(before: str, tmp_path: Path) -> None:
    net, target = (nn.Sequential(OrderedDict(module=nn.Sequential(OrderedDict(module=nn.Linear(3, 2))))) for _ in "ab")
    torch.save({f"{before}{name}": value for name, value in net.state_dict().items()}, tmp_path / "w.pt")
    assert same(load_weights(target, tmp_path / "w.pt"), net)


def test_weights_are_cast_to_the_modules_precision(tmp_path: Path) -> None:
    torch.save(small_cnn().half().state_dict(), tmp_path / "w.pt")
    assert all(p.dtype == torch.float64 for p in load_weights(small_cnn().double(), tmp_path / "w.pt").parameters())


def test_weights_that_do_not_fit_are_listed_and_nothing_is_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = small_cnn(classes=11).state_dict()
    state["extra.weight"] = state.pop("conv1.weight")
    path = tmp_path / "w.safetensors"
    save_file(state, path)
    target = small_cnn()
    before = {name: value.clone() for name, value in target.state_dict().items()}
    with pytest.raises(CheckpointError) as caught:
        load_weights(target, path)
    message = str(caught.value)
    assert "missing: conv1.weight" in message
    assert "unexpected: extra.weight" in message
    assert "fc2.weight (expected (10, 64), got (11, 64))" in message
    assert all(torch.equal(value, before[name]) for name, value in target.state_dict().items())
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(CheckpointError, match="expected a state dict"):
        load_weights(target, tmp_path / "list.pt")
    (tmp_path / "text.pt").write_text("hello", encoding="utf-8")
    for path, words in (
        (tmp_path / "none.pt", "no such weight file"), (tmp_path, "a folder: .*model.safetensors"),
        (tmp_path / "text.pt", "text.pt was refused: it is not a torch file"),
    ):  # fmt: skip
        with pytest.raises(CheckpointError, match=words):
            load_weights(target, path)

    def unreadable(*_: object, **__: object) -> None:
        raise PermissionError("not yours")

    monkeypatch.setattr(torch, "load", unreadable)
    with pytest.raises(CheckpointError, match=r"was refused: .*\(not yours\)"):
        load_weights(target, tmp_path / "text.pt")


class Hostile:
    """A pickle that makes a folder when it is read."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return os.mkdir, (str(self.trace),)


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".bin", ".ckpt", ".safetensors", ".pkl", ""])
@pytest.mark.parametrize("protocol", [2, 4, None], ids=["pickle 2", "pickle 4", "torch file"])
def test_a_hostile_pickle_is_refused_and_not_run(protocol: int | None, suffix: str, tmp_path: Path) -> None:
    trace, path = tmp_path / "trace", tmp_path / f"w{suffix}"
    poison = {"fc2.bias": Hostile(trace)}
    if protocol:
        path.write_bytes(pickle.dumps(poison, protocol))
    else:
        torch.save(poison, path)
    for load in (lambda: load_weights(small_cnn(), path), lambda: load_model(path), lambda: read_metadata(path)):
        with pytest.raises(CheckpointError, match=r"refused|not a whole safetensors|expected a \.safetensors"):
            load()
    assert not trace.exists()
    pickle.loads(pickle.dumps(Hostile(trace)))
    assert trace.exists()  # the poison does work when it is unpickled


def test_torch_files_that_are_damaged_or_foreign(tmp_path: Path) -> None:
    torch.save(small_cnn().state_dict(), tmp_path / "good.pt")
    good = (tmp_path / "good.pt").read_bytes()
    noise = torch.Generator().manual_seed(0)
    junk = [bytes(torch.randint(256, (200,), generator=noise).tolist()) for _ in range(20)]
    for content in (b"", b"text", good[:500], good[:-500], *junk):
        (tmp_path / "bad.pt").write_bytes(content)
        with pytest.raises(CheckpointError, match="was refused"):
            load_weights(small_cnn(), tmp_path / "bad.pt")


def test_a_pickled_module_is_refused_with_advice(tmp_path: Path) -> None:
    torch.save(small_cnn(), tmp_path / "module.pt")
    with pytest.raises(CheckpointError, match=r"Unsupported global.*Sequential.*state_dict") as caught:
        load_weights(small_cnn(), tmp_path / "module.pt")
    assert "can still be loaded" not in str(caught.value)  # torch's advice on how to run the code in it
    assert str(caught.value).isprintable()
