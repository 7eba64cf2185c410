"""Recipes say what the paper says."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch import nn

from robattr import models, recipes, training
from robattr.errors import InvalidInput
from robattr.formula import Distributional, LinfBall, Robust
from robattr.formula.quadrature import right
from train_fixtures import lines, tiny_net

PAPER = [
    f"{d}/{m}"
    for d in ("mnist", "fashion-mnist", "gtsrb", "flower")
    for m in ("natural", "madry", "ig-norm", "ig-sum-norm")
]

# name: (steps, batch, reduction, rates, weight, eps, step size, attack steps, m, attack m), from the paper's supplement
TABLE = {
    "mnist/natural": (25_000, 50, "sum", (1e-4,) * 3, None, None, None, None, None, None),
    "mnist/madry": (100_000, 50, "sum", (1e-4,) * 3, None, 0.3, 0.01, 40, None, None),
    "mnist/ig-norm": (100_000, 50, "sum", (1e-4,) * 3, 1.0, 0.3, 0.01, 40, 50, 10),
    "mnist/ig-sum-norm": (100_000, 50, "sum", (1e-4,) * 3, 0.1, 0.3, 0.01, 40, 50, 10),
    "fashion-mnist/natural": (25_000, 50, "sum", (1e-4,) * 3, None, None, None, None, None, None),
    "fashion-mnist/madry": (100_000, 50, "sum", (1e-4,) * 3, None, 0.1, 0.01, 20, None, None),
    "fashion-mnist/ig-norm": (100_000, 50, "sum", (1e-4,) * 3, 1.0, 0.1, 0.01, 20, 50, 10),
    "fashion-mnist/ig-sum-norm": (100_000, 50, "sum", (1e-4,) * 3, 0.1, 0.1, 0.01, 20, 50, 10),
    "gtsrb/natural": (70_000, 64, "mean", (1e-3, 1e-2, 1e-3), None, None, None, None, None, None),
    "gtsrb/madry": (70_000, 64, "mean", (1e-3, 1e-2, 1e-3), None, 8, 2, 7, None, None),
    "gtsrb/ig-norm": (70_000, 64, "sum", (1e-6, 1e-4, 1e-5), 1.0, 8, 2, 7, 50, 5),
    "gtsrb/ig-sum-norm": (70_000, 64, "sum", (1e-5, 1e-4, 1e-5), 1.0, 8, 2, 7, 50, 5),
    "flower/natural": (70_000, 16, "mean", (1e-3, 1e-2, 1e-3), None, None, None, None, None, None),
    "flower/madry": (70_000, 16, "mean", (1e-3, 1e-2, 1e-3), None, 8, 2, 7, None, None),
    "flower/ig-norm": (70_000, 16, "sum", (1e-4, 1e-3, 1e-4), 0.1, 8, 2, 7, 50, 5),
    "flower/ig-sum-norm": (70_000, 16, "sum", (1e-4, 1e-3, 1e-4), 0.1, 8, 2, 7, 50, 5),
}


@pytest.mark.parametrize("name", PAPER)
def test_the_numbers_are_the_papers(name):
    run = recipes.get(name)
    steps, batch, reduction, rates, *objective = TABLE[name]
    assert (run.recipe, run.steps, run.batch, run.reduction) == (name, steps, batch, reduction)
    assert tuple(run.rate(t) for t in (0, 1000, 65_000)) == rates
    got = (run.weight, run.eps, run.step_size, run.attack_steps, run.m, run.m_attack)
    assert [value for value, wanted in zip(got, objective, strict=True) if wanted is not None] == [
        wanted for wanted in objective if wanted is not None
    ]
    heavy = name.startswith(("gtsrb", "flower"))
    assert (run.optimizer, run.decay) == (("momentum", 2e-4) if heavy else ("adam", 0.0))


def test_ig_norm_composes_the_paper_s_formula():
    rho = recipes.get("gtsrb/ig-norm").objective((0.0, 255.0))
    assert isinstance(rho, Robust)
    assert rho.within == LinfBall(8.0, (0.0, 255.0))
    assert (rho.by.steps, rho.by.step_size, rho.weight) == (7, 2.0, 1.0)
    ((scale, measured),) = rho.change.terms
    ((_, seen),) = rho.attacked.terms
    assert (scale, measured.attribution.rule, seen.attribution.rule) == (1.0, right(50), right(5))


def test_ig_sum_norm_is_shift_plus_beta_spread():
    rho = recipes.get("mnist/ig-sum-norm").objective()
    assert [scale for scale, _ in rho.change.terms] == [1.0, 0.1]
    assert rho.weight == 1.0


def test_cost_per_update_is_the_research_table_s():
    cost = {name: recipes.get(name).second_order for name in PAPER}
    assert cost["mnist/ig-sum-norm"] == 450
    assert cost["fashion-mnist/ig-norm"] == 250
    assert cost["gtsrb/ig-norm"] == cost["flower/ig-sum-norm"] == 85
    assert cost["mnist/madry"] == cost["gtsrb/natural"] == 0


def test_distributional_recipes():
    assert isinstance(recipes.get("mnist/sinha").objective(), Robust)
    rho = recipes.get("mnist/distributional-ig").objective()
    assert isinstance(rho, Distributional)
    assert float(rho.gamma) == 1.0


def test_every_recipe_has_a_summary_and_a_valid_objective():
    assert set(PAPER) <= set(recipes.names())
    for name in recipes.names():
        assert recipes.summary(name)
        assert recipes.get(name).objective((0.0, 255.0)) is not None


def test_an_unknown_recipe_gets_the_nearest_name():
    with pytest.raises(InvalidInput, match="did you mean 'mnist/ig-norm'"):
        recipes.get("mnist/ig_norm")
    with pytest.raises(InvalidInput, match=r"'flower'; valid: flower/ig-norm, .*`robattr --list`"):
        recipes.get("flower")
    with pytest.raises(InvalidInput, match=r"'zzz'; valid: fashion-mini/aat, .*, … \(\d+ in all\)"):
        recipes.get("zzz")


def test_compiling_is_for_long_second_order_runs_on_a_gpu() -> None:
    long, short = recipes.get("mnist/ig-norm"), recipes.get("fashion-mini/ig-norm")
    assert long.compiles("cuda")
    assert not long.compiles("cpu")
    assert not short.compiles("cuda")
    assert not recipes.get("mnist/natural").compiles("cuda")
    assert replace(short, compile="always").compiles("cpu")
    assert not replace(long, compile="never").compiles("cuda")


FIELD = ("trades", "igr", "aat", "adv-aat", "art", "sarkar", "ssr", "lga", "r2et", "curvature")


@pytest.mark.parametrize("method", FIELD)
def test_a_method_of_the_field_trains_and_differs_from_the_others_only_in_its_objective(method, tmp_path):
    runs = {dataset: recipes.get(f"{dataset}/{method}") for dataset in ("fashion-mini", "fashion-mnist", "gtsrb")}
    for dataset, run in runs.items():
        madry = recipes.get(f"{dataset}/madry")
        keys = ("model", "optimizer", "lr", "schedule", "rates", "steps", "batch", "norm", "decay")
        assert [getattr(run, key) for key in keys] == [getattr(madry, key) for key in keys]
        assert isinstance(run.objective((0.0, 255.0)), Robust)
    short = replace(runs["fashion-mini"], steps=2, batch=4, k=20, log_every=1, validate_every=0, checkpoint_every=2)
    before = models.for_dataset("fashion-mini")
    outcome = training.train(short, tmp_path / "run", device="cpu", model=(net := deepcopy(before)))
    assert outcome.finished
    assert all(math.isfinite(line["value"]) for line in lines(tmp_path / "run") if "value" in line)
    assert not any(torch.equal(p, q) for p, q in zip(before.parameters(), net.parameters(), strict=True))


def test_weights_of_gradient_penalties_follow_the_scale_of_the_pixels():
    """One network on pixels in [0, 1] and on the same pixels in [0, 255]: equal penalties."""
    net, x, y = tiny_net().double(), torch.rand(3, 1, 6, 6, dtype=torch.float64), torch.arange(3)
    wide = nn.Sequential(Scaled(), net)
    for method in ("ssr", "r2et"):  # the others draw random points
        small, large = (replace(recipes.get(f"{d}/{method}"), k=4, eps_ramp=()) for d in ("fashion-mini", "gtsrb"))
        one, two = small.objective()(net, x, y), large.objective((0.0, 255.0))(wide, 255 * x, y)
        torch.testing.assert_close(one.value, two.value)
    assert recipes.get("gtsrb/lga").eps == pytest.approx(255 * recipes.get("fashion-mini/lga").eps)


class Scaled(nn.Module):
    """Pixels in [0, 255] to [0, 1]."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / 255
