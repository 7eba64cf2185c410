"""Recipes: one file per dataset, each a list of functions that return a `TrainConfig`.

    robattr.recipes.get("mnist/ig-norm")       is  robattr.recipes.mnist.ig_norm()
    robattr.recipes.get("mnist/ig-norm-fast")  is  the same problem at a fraction of the cost (`recipes.fast`)

A new recipe is a new function in its dataset's `RECIPES`; its name is the function's, with hyphens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import ModuleType

from robattr.errors import InvalidInput, nearest
from robattr.recipes import fashion_mini, fashion_mnist, flower, gtsrb, mnist
from robattr.recipes.tuned import FAST, fast
from robattr.training.config import TrainConfig as TrainConfig

MODULES: tuple[ModuleType, ...] = (mnist, fashion_mnist, gtsrb, flower, fashion_mini)
METHODS = ("natural", "madry", "ig-norm", "ig-sum-norm")  # of the paper's tables: those that have a fast form


def names() -> list[str]:
    """Every recipe, as `dataset/method`."""
    return list(_table())


def get(name: str) -> TrainConfig:
    """The recipe called `name`, with that name noted in it."""
    table = _table()
    if name not in table:
        raise InvalidInput(f"unknown recipe {name!r}; {nearest(name, table)}")
    return replace(table[name](), recipe=name)


def before(run: TrainConfig) -> TrainConfig | None:
    """The run whose weights `run` starts from, where its warm start names a fast recipe; a paper's names zoo weights.

    It has the same seed, computes in the same way, and holds out the validation split where `run` does.
    """
    if not (run.warm_start.endswith("-fast") and run.warm_start in names()):
        return None
    first = get(run.warm_start)
    full = first.full and run.full
    return replace(first, seed=run.seed, precision=run.precision, deterministic=run.deterministic, full=full)


def summary(name: str) -> str:
    """The first line of what a recipe says of itself; of a fast one, its numbers."""
    if name.endswith("-fast"):
        run = get(name)
        attack = "" if run.method == "natural" else f", {run.attack_steps} attack steps"
        nodes = f", m = {run.m} ({run.m_attack} in the attack)" if run.second_order else ""
        after = f", after {run.warm_start}" if run.warm_start else ""
        return f"{name.removesuffix('-fast')} for less: {run.steps:,} steps{attack}{nodes}{after}."
    return (_table()[name].__doc__ or "").partition("\n")[0].strip()


def _table() -> dict[str, Callable[[], TrainConfig]]:
    made = {
        f"{_hyphens(module.__name__.rpartition('.')[2])}/{_hyphens(recipe.__name__)}": recipe
        for module in MODULES
        for recipe in module.RECIPES
    }
    quick = {f"{d}/{m}-fast": partial(_fast, made[f"{d}/{m}"]) for d in FAST for m in METHODS}
    return {**made, **quick}


def _fast(recipe: Callable[[], TrainConfig]) -> TrainConfig:
    return fast(recipe())


def _hyphens(name: str) -> str:
    return name.replace("_", "-")
