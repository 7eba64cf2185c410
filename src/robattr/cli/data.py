"""robattr data list | fetch | verify."""

from __future__ import annotations

from typing import Annotated

import typer

from robattr._text import printable
from robattr.cli._options import App, DataDir, known_datasets
from robattr.cli._tables import show_table

STYLES = {"verified": "green", "embedded": "green", "present": "cyan", "missing": "yellow", "damaged": "red"}


def register(app: typer.Typer) -> None:
    """Add the group `data`."""
    group = App(help="List, fetch and verify datasets.")
    group.command("list")(list_datasets)
    group.command("fetch")(fetch)
    group.command("verify")(verify)
    app.add_typer(group, name="data")


def list_datasets(data_dir: DataDir = None) -> None:
    """List every dataset: its splits, whether its files are there, its licence and source."""
    from robattr import data

    rows = []
    for name in data.names():
        info = data.info(name)
        download = f"{info.megabytes:.0f} MB" if info.remotes else "–"
        rows.append((name, sizes(name), download, data.status(name, data_dir).state, info.licence))
    headings = ("Dataset", "Train / validation / test", "Download", "State", "Licence")
    show_table(headings, rows, wrap=True)
    for name in data.names():
        typer.echo(f"{name}: {data.info(name).citation}")
    typer.echo(printable(f"looked in {data.root(data_dir)}"))


def sizes(name: str) -> str:
    """`5,000 / 500 / 1,000`: the sizes of a dataset's splits."""
    from robattr import data

    return " / ".join(f"{size:,}" for size in data.info(name).sizes)


def fetch(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A dataset; see `robattr data list`.", autocompletion=known_datasets)
    ],
    data_dir: DataDir = None,
) -> None:
    """Download a dataset, resuming a partial download, and verify it."""
    from robattr import data

    for path in data.fetch(name, data_dir):
        typer.echo(printable(str(path)))
    verify(name, data_dir)


def verify(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="A dataset; default: all that are there.", autocompletion=known_datasets),
    ] = None,
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
        elif seen.state == "missing" and name is not None:
            typer.echo(f"  run `robattr data fetch {seen.name}`, or choose another --data-dir", err=True)
    if any(seen.state == "damaged" or (name is not None and seen.state == "missing") for seen in states):
        raise typer.Exit(1)
