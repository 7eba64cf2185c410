"""The command line: thin, lazy, and polite about mistakes.

One file per group of commands; each has `register(app)`. Torch and everything heavier is imported inside the commands,
so that `robattr --help` is immediate.
"""

from __future__ import annotations

import sys
from importlib import import_module

import typer

from robattr.errors import RobattrError

GROUPS = ("train", "evaluate", "report", "audit", "data", "bench")

app = typer.Typer(
    name="robattr",
    help="Train, attack and measure models whose explanations hold.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _version(wanted: bool) -> None:
    if wanted:
        from robattr._version import __version__

        typer.echo(f"robattr {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Train, attack and measure models whose explanations hold."""


for _group in GROUPS:
    try:
        import_module(f"robattr.cli.{_group}").register(app)
    except ModuleNotFoundError as _missing:
        if _missing.name != f"robattr.cli.{_group}":
            raise


def run() -> None:
    """Run the app; an error the user can mend is one line on stderr and exit code 2."""
    try:
        app()
    except RobattrError as error:
        typer.echo(f"robattr: {error}", err=True)
        sys.exit(2)
