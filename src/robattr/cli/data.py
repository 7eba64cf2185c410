"""robattr data list | fetch | verify."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from robattr._text import printable

DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", help="Folder of the datasets (default: $ROBATTR_DATA, else the user's cache folder)."),
]
STYLES = {"verified": "green", "embedded": "green", "present": "cyan", "missing": "yellow", "damaged": "red"}


def register(app: typer.Typer) -> None:
    """Add the group `data`."""
    group = typer.Typer(help="List, fetch and verify datasets.", no_args_is_help=True)
    group.command("list")(list_datasets)
    group.command("fetch")(fetch)
    group.command("verify")(verify)
    app.add_typer(group, name="data")


def list_datasets(data_dir: DataDir = None) -> None:
    """List every dataset: its splits, whether its files are there, its licence and source."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from robattr import data

    console = Console()
    table = Table("name", "train/validation/test", "download", "state", "licence")
    for name in data.names():
        info, seen = data.info(name), data.status(name, data_dir)
        sizes = "/".join(f"{size:,}" for size in info.sizes)
        download = f"{info.megabytes:.0f} MB" if info.remotes else "–"
        state = f"[{STYLES[seen.state]}]{seen.state}[/]"
        table.add_row(name, sizes, download, state, escape(info.licence))
    console.print(table)
    for name in data.names():
        console.print(f"{name}: {data.info(name).citation}", soft_wrap=True, highlight=False, markup=False)
    console.print(f"looked in {data.root(data_dir)}", soft_wrap=True, highlight=False, markup=False)


def fetch(
    name: Annotated[str, typer.Argument(help="A dataset's name; see `robattr data list`.")], data_dir: DataDir = None
) -> None:
    """Download a dataset, resuming a partial download, and verify it."""
    from robattr import data

    for path in data.fetch(name, data_dir):
        typer.echo(path)
    verify(name, data_dir)


def verify(
    name: Annotated[str | None, typer.Argument(help="A dataset's name; default: all that are there.")] = None,
    data_dir: DataDir = None,
) -> None:
    """Read all files of a dataset and compare them with the expected content. Exit code 1 if one is damaged."""
    from rich.console import Console
    from rich.markup import escape

    from robattr import data

    console = Console(highlight=False, soft_wrap=True)
    states = [data.verify(each, data_dir) for each in ([name] if name is not None else data.names())]
    for seen in states:
        style = STYLES[seen.state]
        where = f"  {escape(str(seen.where))}" if seen.where else ""
        console.print(f"{seen.name:14}[{style}]{seen.state:9}[/]{where}")
        if seen.problem:
            typer.echo(f"  {printable(seen.problem)}", err=True)
    if any(seen.state == "damaged" or (name is not None and seen.state == "missing") for seen in states):
        raise typer.Exit(1)
