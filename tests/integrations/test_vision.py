"""Models of torchvision and timm, without pretrained weights: checked, trained with ρ, hardened and audited."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import robattr
from robattr import PGD, LinfBall, objectives


def needed(package: str) -> Any:
    """The package; torchvision fails in its own ways where it was built for another torch."""
    try:
        return pytest.importorskip(package, reason=f"pip install {package.partition('.')[0]} runs these tests")
    except RuntimeError as cause:
        pytest.skip(f"{package} does not fit this torch ({cause}): install the build of the same index")


def torchvision_vit() -> nn.Module:
    from torchvision.models import VisionTransformer

    net = VisionTransformer(32, 16, num_layers=1, num_heads=2, hidden_dim=16, mlp_dim=16, num_classes=3)
    nn.init.normal_(net.heads.head.weight)  # torchvision begins with zeros, which explain nothing
    return net


def from_torchvision(name: str) -> Callable[[], nn.Module]:
    return lambda: needed("torchvision.models").get_model(name, weights=None, num_classes=3)


def from_timm(name: str, **settings: Any) -> Callable[[], nn.Module]:
    return lambda: needed("timm").create_model(name, pretrained=False, num_classes=3, **settings)


MODELS = {
    "torchvision resnet18": from_torchvision("resnet18"),
    "torchvision mobilenet": from_torchvision("mobilenet_v3_small"),
    "torchvision vit": lambda: needed("torchvision.models") and torchvision_vit(),
    "timm resnet": from_timm("resnet10t"),
    "timm convnext": from_timm("convnext_atto"),
    "timm vit": from_timm("vit_tiny_patch16_224", img_size=32, depth=1),
}
NORMAL = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def examples(net: nn.Module, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Noise, with what the untrained network answers as labels; every third label is the next class."""
    x = torch.rand(count, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    mean, std = (torch.tensor(NORMAL[key])[:, None, None] for key in ("mean", "std"))
    with torch.no_grad():
        y = net.eval()((x - mean) / std).argmax(1)
    y[::3] = (y[::3] + 1) % 3
    return x, y


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_healthy_and_learns_rho(name):
    net = MODELS[name]()
    x, y = examples(net, 6)
    found = robattr.doctor(net, (x, y), preprocessing=NORMAL)
    assert found.healthy, [check for check in found.checks if check.level == "fail"]
    rho = objectives.ig_norm(1.0, LinfBall(0.03), PGD(1, 0.03), m=2, m_attack=1)
    out = rho(net.train(), x, y)
    out.value.mean().backward()
    assert (out.penalty > 0).all()
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in net.parameters())


@pytest.mark.parametrize("name", ["torchvision resnet18", "timm resnet"])
def test_a_model_is_hardened_and_audited(name, tmp_path):
    net = MODELS[name]()
    found = robattr.harden(
        net, examples(net, 30), out=tmp_path, preprocessing=NORMAL, steps=1, batch=2, held_out=0.2,
        examples=4, audit_steps=1, points=2, changes={"attack_steps": 1, "m": 2, "m_attack": 1}, device="cpu",
    )  # fmt: skip
    assert found.after is not None
    assert (tmp_path / "hardened" / "model.safetensors").is_file()
    card = robattr.reporting.model_card(tmp_path / "hardened")
    assert "mean [0.485" in card


def test_the_block_of_the_page_finds_mean_and_std(monkeypatch):
    """The block for torchvision and timm, without the download of weights; the doctor stands for audit and harden."""
    needed("torchvision.models")
    needed("timm")
    page = (Path(__file__).parents[2] / "docs" / "integrations.md").read_text("utf-8")
    (code,) = re.findall(r"```py\n(.*?)```", page, flags=re.S)
    seen = []

    def examined(net, _data, *, size, preprocessing, **_):
        seen.append((size, {key: tuple(preprocessing[key]) for key in ("mean", "std")}))
        found = robattr.doctor(net, shape=(3, 32, 32), preprocessing=preprocessing)
        assert found.healthy, [check for check in found.checks if check.level == "fail"]

    monkeypatch.setattr(robattr, "audit", examined)
    monkeypatch.setattr(robattr, "harden", examined)
    exec(code.replace("(weights=weights)", "()").replace("pretrained=True", "pretrained=False"), {})
    assert seen == [(224, NORMAL), (224, NORMAL)]
