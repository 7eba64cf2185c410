"""Names of recipes and of models of the zoo, without torch: the shell waits for a completion."""

from __future__ import annotations

import json
from pathlib import Path

PAPERS = ("natural", "madry", "ig-norm", "ig-sum-norm")
TUNED = tuple(f"{method}-tuned" for method in PAPERS)
ADDITIVE = ("natural-additive", "natural-linear")
FIELD = ("trades", "igr", "aat", "adv-aat", "art", "sarkar", "ssr", "lga", "r2et", "curvature", "madry-softplus")
RECIPES = {
    "mnist": (*PAPERS, "sinha", "distributional-ig", "interval-bound", *TUNED),
    "fashion-mnist": (*PAPERS, *FIELD, "interval-bound", *ADDITIVE, *TUNED),
    "gtsrb": (*PAPERS, *FIELD, "madry-smooth", *TUNED),
    "flower": (*PAPERS, "madry-smooth", *TUNED),
    "fashion-mini": (*PAPERS, *FIELD, *ADDITIVE),
}


def recipe_names() -> list[str]:
    """Those of `robattr.recipes.names()`."""
    return [f"{dataset}/{method}" for dataset, methods in RECIPES.items() for method in methods]


def zoo_names() -> list[str]:
    """Those of `robattr.models.zoo.entries()`."""
    index = Path(__file__).parents[1] / "models" / "weights" / "index.json"
    return list(json.loads(index.read_text(encoding="utf-8")))
