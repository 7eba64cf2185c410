"""Recipes: one file per dataset, each a list of functions that return a `TrainConfig`.

    robattr.recipes.get("mnist/ig-norm")        is  robattr.recipes.mnist.ig_norm(), the paper's
    robattr.recipes.get("mnist/ig-norm-tuned")  is  the same problem with another network and other settings (`tuned`)

A new recipe is a new function in its dataset's `RECIPES`; its name is the function's, with hyphens. Methods of other
papers are in `field`, each for three datasets; those with a certificate are in `certified`; those whose maps hold by
the form of the network in `additive` and `smooth`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial, update_wrapper
from types import ModuleType

from robattr.errors import InvalidInput, nearest
from robattr.recipes import additive, certified, fashion_mini, fashion_mnist, field, flower, gtsrb, mnist, smooth, tuned
from robattr.recipes import tuned_networks as tuned_networks  # registers them
from robattr.training.config import TrainConfig as TrainConfig

MODULES: tuple[ModuleType, ...] = (mnist, fashion_mnist, gtsrb, flower, fashion_mini)
METHODS = ("natural", "madry", "ig-norm", "ig-sum-norm")  # of the paper's tables; each has a tuned recipe


def names() -> list[str]:
    """Every recipe, as `dataset/method`."""
    return [*_paper(), *(f"{dataset}/{method}-tuned" for dataset in tuned.DATASETS for method in METHODS)]


def get(name: str) -> TrainConfig:
    """The recipe called `name`, with that name in its key `recipe`."""
    if name not in names():
        raise InvalidInput(f"unknown recipe {name!r}; {nearest(name, names())} (`robattr --list` shows all)")
    config = _paper()[name.removesuffix("-tuned")]()
    return replace(tuned.tuned(config) if name.endswith("-tuned") else config, recipe=name)


def before(run: TrainConfig) -> TrainConfig | None:
    """The recipe whose weights `run` starts from, where its warm start names a tuned recipe.

    It has the seed and the arithmetic of `run`, and holds out the validation split if `run` does.
    """
    if not (run.warm_start.endswith("-tuned") and run.warm_start in names()):
        return None
    first = get(run.warm_start)
    full = first.full and run.full
    return replace(first, seed=run.seed, precision=run.precision, deterministic=run.deterministic, full=full)


def summary(name: str) -> str:
    """One line about a recipe: the first of its docstring; the numbers of a tuned one."""
    if name.endswith("-tuned"):
        run = get(name)
        attack = f", {run.attack_steps} attack steps" if run.uses("attack_steps") else ""
        nodes = f", m = {run.m} ({run.m_attack} in the attack)" if run.second_order else ""
        after = f", after {run.warm_start}" if run.warm_start else ""
        return f"{name.removesuffix('-tuned')} on {run.model}: {run.steps:,} steps{attack}{nodes}{after}."
    return (_paper()[name].__doc__ or "").partition("\n")[0].strip()


def _paper() -> dict[str, Callable[[], TrainConfig]]:
    """Every recipe function of the datasets' files, and the field's methods, by name."""
    own = {
        f"{_hyphens(module.__name__.rpartition('.')[2])}/{_hyphens(recipe.__name__)}": recipe
        for module in MODULES
        for recipe in module.RECIPES
    }
    return own | {
        f"{dataset}/{_hyphens(method.__name__)}": update_wrapper(partial(method, base), method)
        for module in (field, certified, additive, smooth)
        for dataset, base in module.BASES.items()
        for method in module.METHODS
    }


def _hyphens(name: str) -> str:
    return name.replace("_", "-")
