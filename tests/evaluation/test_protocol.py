"""The settings of the protocols."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from robattr.auditing.record import Settings
from robattr.data import from_tensors
from robattr.errors import InvalidInput
from robattr.evaluation import for_dataset, paper, scaled, strict
from robattr.evaluation.protocol import exhaustive

TABLE = {  # ε, α, P, attack k, eval k, PGD step, PGD steps: sections 4 and 5 of the reference
    "mnist": (0.3, 0.01, 100, 200, 100, 0.01, 100),
    "fashion-mnist": (0.1, 0.01, 100, 100, 100, 0.01, 100),
    "gtsrb": (8, 1, 50, 100, 100, 2, 40),
    "flower": (8, 1, 100, 1000, 1000, 2, 40),
}


@pytest.mark.parametrize("dataset", TABLE)
def test_the_papers_settings(dataset: str) -> None:
    p = paper(dataset)
    assert (p.eps, p.alpha, p.steps, p.k, p.eval_k, p.pgd_alpha, p.pgd_steps) == TABLE[dataset]
    assert (p.N, p.repeats, p.strict) == (100, 3, False)
    assert p.bounds == ((0, 255) if dataset in {"gtsrb", "flower"} else (0, 1))


def test_the_papers_radius_is_that_of_its_range() -> None:
    """A dataset of that name in another range has ε = 8/255 of it, not 8."""
    x, y = torch.rand(30, 3, 32, 32), torch.arange(30) % 3
    for bounds, eps in (((0.0, 1.0), 8 / 255), ((-1.0, 1.0), 16 / 255), ((0.0, 255.0), 8)):
        low, high = bounds
        given = from_tensors(low + (high - low) * x, y, name="gtsrb", bounds=bounds)
        assert for_dataset(given).eps == pytest.approx(eps)
        assert Settings().base(given).eps == pytest.approx(eps)
        assert for_dataset(given).bounds == bounds


def test_another_radius_scales_the_steps_and_the_name() -> None:
    wide = paper("gtsrb").with_eps(16)
    assert (wide.name, wide.eps, wide.alpha, wide.pgd_alpha, wide.steps) == ("paper@16", 16, 2, 4, 50)
    assert strict(wide).name == "strict@16"
    longer = paper("gtsrb").with_steps(300)
    assert (longer.name, longer.steps, longer.alpha) == ("paper@300steps", 300, 1)
    with pytest.raises(InvalidInput, match="above 0"):
        wide.with_eps(0)
    with pytest.raises(InvalidInput, match="0 to 255, in its units, got 256: choose a smaller"):
        wide.with_eps(256)


def test_settings_for_other_data() -> None:
    p = scaled("mine", pixels=640, bounds=(-1.0, 1.0))
    assert p.eps == pytest.approx(16 / 255)
    assert (p.k, p.eval_k) == (64, 64)
    assert scaled("mine", pixels=5, bounds=(0.0, 1.0), eps=0.2).k == 1


def test_settings_are_plain_json() -> None:
    for protocol in (strict("mnist"), exhaustive("mnist")):
        settings = protocol.settings()
        assert json.loads(json.dumps(settings, allow_nan=False)) == settings
        assert settings["bounds"] == [0, 1]
        assert settings["version"] == 3
        assert len(set(settings["attacks"])) == len(settings["attacks"])


def test_the_papers_settings_are_those_of_published_records() -> None:
    """Else records of before and after could not be compared, nor an evaluation continued."""
    file = Path(__file__).parents[2] / "results" / "gtsrb-madry-tuned-seed0-paper-ig.json"
    assert paper("gtsrb").settings() == json.loads(file.read_text(encoding="utf-8"))["summary"]["settings"]


def test_the_exhaustive_protocol_has_every_loss_on_the_twins_and_on_the_true_net() -> None:
    names = [attack.name for attack in exhaustive("gtsrb").attacks]
    assert {attack.name for attack in strict("gtsrb").attacks} < set(names)
    for kind in ("topk", "soft_topk", "rank", "kendall", "cosine", "mass_center", "frame", "corners"):
        assert {f"{kind} 10-1000", f"{kind} true"} <= set(names)


def test_an_unknown_dataset_is_refused() -> None:
    with pytest.raises(InvalidInput, match="did you mean 'mnist'"):
        paper("minst")
