"""The Python blocks of the guides run as printed, one after another, with fewer steps, samples and examples."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import robattr
from robattr import data, models
from robattr.evaluation import paper

DOCS = Path(__file__).parents[1] / "docs"
FEWER = {
    r"steps=\d+": "steps=2",
    r"samples=\d+": "samples=20",
    r"integrated_gradients\(\d+\)": "integrated_gradients(2)",
}
PAGES = ["audit", "certificates", "datasets", "evaluation", "models", "tutorial"]


class Reader(nn.Module):
    """Four token ids to the logits of two classes."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(11, 3), nn.Linear(12, 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.embed(ids).flatten(1))


def smaller(call: Callable[..., Any], **settings: Any) -> Callable[..., Any]:
    return lambda *args, **given: call(*args, **{**given, **settings})


def write_images(folder: Path, side: int, each: int) -> None:
    """Two classes of noise images: dark and bright."""
    from PIL import Image

    for label, name in enumerate(["cat", "dog"]):
        (folder / name).mkdir(parents=True)
        for i in range(each):
            pixels = (torch.rand(side, side, 3) * 120 + 120 * label).byte()
            Image.fromarray(pixels.numpy()).save(folder / name / f"{i}.png")


def darkness() -> nn.Module:
    """A network for images of any size that is right about `write_images`: dark is class 0, bright is class 1."""
    net = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 2))
    with torch.no_grad():
        net[2].weight.abs_()
        net[2].bias.zero_()
        net[4].weight.copy_(torch.tensor([[-1.0], [1.0]]).expand(2, 8))
    return net


def prepared(page: str) -> dict[str, Any]:
    """What the text around the blocks takes as given: a model, images, their labels, a loop."""
    mini = data.load("fashion-mini")
    x, y, _ = mini.examples("test", 12)
    net = models.small_cnn()
    names: dict[str, Any] = {"x": x, "y": y, "net": net, "model": net, "step": 0, "batches": [(x, y)]}
    names["optimizer"] = torch.optim.SGD(net.parameters(), 0.01)
    names["torch_dataset"] = torch.utils.data.TensorDataset(x, y)
    if page == "audit":
        names |= {"net": darkness(), "x": torch.rand(12, 3, 16, 16), "y": torch.arange(12) % 2}
        names |= {"reader": Reader(), "ids": torch.arange(48).reshape(12, 4) % 11, "robattr": robattr}
        names["rho"] = robattr.objectives.ig_norm(
            1.0, robattr.LinfBall(0.1, bounds=None), robattr.PGD(1, 0.1), m=2, m_attack=1
        )
        names["integrated_gradients"] = robattr.attacks.integrated_gradients
    return names


@pytest.mark.filterwarnings("ignore")  # of an untrained network
@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_page_run(page: str, tmp_path: Path, monkeypatch, short_search, undrawn) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(robattr, "audit", smaller(robattr.audit, size=16, examples=4, steps=1, points=2))
    hardened = {"size": 16, "examples": 4, "audit_steps": 1, "points": 2, "batch": 4, "steps": 2}
    monkeypatch.setattr(robattr, "harden", smaller(robattr.harden, **hardened))
    monkeypatch.setattr("robattr.evaluation.strict", lambda name: replace(paper(name), steps=2, N=2, pgd_steps=1))
    names = prepared(page)
    write_images(tmp_path / "images", 16, 20)
    write_images(tmp_path / "animals", 64, 10)
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "nets.py").write_text("from robattr.models import small_cnn as make_net\n")
    monkeypatch.syspath_prepend(tmp_path)
    torch.save(models.small_cnn().state_dict(), "weights.pt")
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / f"{page}.md").read_text(encoding="utf-8"), flags=re.S)
    assert blocks
    for code in blocks:
        for long, short in FEWER.items():
            code = re.sub(long, short, code)
        exec(compile(code, f"docs/{page}.md", "exec"), names)


def test_every_page_with_python_is_run() -> None:
    with_python = {page.stem for page in DOCS.glob("*.md") if "```python" in page.read_text(encoding="utf-8")}
    assert with_python == {*PAGES, "integrations", "write_your_own"}  # the last two have tests of their own
