"""The page "Write your own": every block runs, is short, and its objectives train."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import robattr
from robattr import PGD, LinfBall, Robust, frozen
from robattr.training.config import TrainConfig
from train_fixtures import QUICK, lines, tiny_data, tiny_net

PAGE = Path(__file__).parents[1] / "docs" / "write_your_own.md"
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE.read_text(encoding="utf-8"), flags=re.S | re.M))
BLOCK = re.compile(r"```python\n(.*?)```", flags=re.S)


@pytest.fixture(scope="module")
def names(tmp_path_factory) -> dict[str, Any]:
    """What the blocks of the page define, after all of them have run."""
    defined: dict[str, Any] = {"__name__": "page"}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("page"))
        for block in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
            exec(compile(block, PAGE.name, "exec", dont_inherit=True), defined)
        defined["run"] = Path.cwd() / "runs" / "right-reasons"
    return defined


def test_every_part_is_on_the_page_in_less_than_ten_lines():
    parts = ["A size", "A distance", "A neighbourhood", "A path", "An adversary", "An attribution"]
    assert [*SECTIONS] == [*parts, "An objective from a paper", "Train it"]
    for title, text in SECTIONS.items():
        for block in BLOCK.findall(text):
            own = re.split(r"\n\n(?=\S)", block.strip())  # the part itself, without its use
            assert max(len([line for line in part.splitlines() if line.strip()]) for part in own) < 10, title


def test_the_blocks_run_and_reach_the_parameters(names):
    assert all(p.grad is not None and bool(torch.isfinite(p.grad).all()) for p in names["model"].parameters())
    config = json.loads((names["run"] / "config.json").read_text())
    assert config["custom"] == "<function right_reasons>"
    assert [line["step"] for line in lines(names["run"]) if "loss" in line] == [3]


def test_the_path_is_complete(names):
    """The midpoint rule errs by at most max|g''|/(24 m²): below 1e-5 with m = 400 for curvatures up to 38."""
    net, y = tiny_net().double(), torch.arange(4) % 3
    x, x1 = (torch.rand(4, 1, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(s)) for s in (0, 1))
    curved = robattr.IG(along=names["Accelerating"](), rule=robattr.midpoint(400))(net, x, x1, y)
    change = robattr.cross_entropy(net, x1, y) - robattr.cross_entropy(net, x, y)
    torch.testing.assert_close(curved.flatten(1).sum(1), change, rtol=0, atol=1e-5)


def test_the_command_line_s_factory_follows_the_configuration(names):
    rho = names["make_rho"](TrainConfig(weight=0.7, eps=0.2, m=3), (0.0, 1.0))
    assert (rho.weight, rho.within.radius, len(rho.change.terms[0][1].attribution.rule)) == (0.7, 0.2, 3)


def test_own_parts_train_together_and_by_a_plain_loop(names, tmp_path):
    """A distance, a neighbourhood and an adversary of the user's in one objective: the run is the loop's."""
    maps = robattr.Gradient()
    change = names["angle"] @ (maps, frozen(maps)) + names["largest_tenth"] @ names["gradient_change"]
    rho = Robust(change=change, within=names["Patch"](), by=names["Momentum"](2, 0.05), weight=0.3)
    run = replace(QUICK, precision="fp64", optimizer="momentum", momentum=0.0, steps=1, lr=0.1)
    model, batches = tiny_net(), robattr.data.Batches(tiny_data(), size=8, seed=run.seed)
    robattr.train(run, tmp_path / "run", objective=rho, dataset=tiny_data(), model=model, device="cpu")

    other, (x, y) = tiny_net().double(), batches.batch(0)
    rand = robattr.engine.processes.World(0, 1, torch.device("cpu")).rand(8, seed=run.seed, step=0)
    rho(other, x.double(), y, rand=rand).value.mean().backward()
    for trained, p in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(trained, p - 0.1 * p.grad, rtol=1e-12, atol=1e-14)


def test_a_part_without_a_method_is_named():
    with pytest.raises(robattr.RobattrError, match=r"expected Ascent as `by`, such as PGD\(.*without iterates"):
        robattr.objectives.madry(LinfBall(0.1), object())
    with pytest.raises(robattr.RobattrError, match=r"expected Neighbourhood as `within`, such as LinfBall\("):
        robattr.objectives.madry(object(), PGD(1, 0.1))
