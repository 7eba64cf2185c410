"""`robattr --list`: recipes, trained models and datasets in one place."""

from __future__ import annotations

from robattr.cli._tables import show_table
from robattr.cli.data import sizes


def show_catalog() -> None:
    """Print everything that commands know by name."""
    from robattr import data, recipes
    from robattr.models import zoo

    datasets = [(name, sizes(name), data.status(name).state) for name in data.names()]
    show_table(("Dataset", "Train / validation / test", "State"), datasets, title=f"Datasets in {data.root()}")
    models = [(name, recipes.summary(name) if name in recipes.names() else "") for name in zoo.entries()]
    show_table(
        ("Model", "Recipe (the settings used: robattr card MODEL)"),
        models,
        title="Models, for robattr evaluate NAME",
        wrap=True,
    )
    trained = [(name, recipes.summary(name)) for name in recipes.names()]
    show_table(("Recipe", "What it trains"), trained, title="Recipes, for robattr train NAME", wrap=True)
