"""The command line: one file per group of commands, each with `register(app)`.

Commands import what they need inside their functions, so that `robattr --help` loads nothing beyond `import robattr`.
"""

from __future__ import annotations

import codecs
import errno
import io
import sys
import warnings
from importlib import import_module
from typing import NoReturn

import torch
import typer

from robattr.errors import RobattrError

GROUPS = ("train", "evaluate", "report", "audit", "certify", "data")
ABOUT = "Train models whose explanations resist attacks, attack explanations, and measure the damage."

app = typer.Typer(
    name="robattr",
    help=ABOUT,
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
    pass


for _group in GROUPS:
    import_module(f"robattr.cli.{_group}").register(app)


def run() -> None:
    """Run the app; an error that the user can correct is one line on stderr and exit code 2."""
    _escape_unprintable()
    warnings.showwarning = _warn
    try:
        app()
    except RobattrError as error:
        _refuse(str(error))
    except OSError as error:
        at = "" if error.filename is None else f" {error.filename}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            _refuse(f"cannot write{at} ({error.strerror}): free some space, then run the same command again")
        if not at:
            raise
        remedy = "choose another --out or --data-dir, or correct that path"
        _refuse(f"cannot read or write{at} ({error.strerror}): {remedy}")
    except torch.OutOfMemoryError as error:
        what = str(error).split(". GPU")[0]
        _refuse(f"{what}: end other processes on the device, choose another --device, or use smaller batches")


def _warn(message: Warning | str, *_: object, **__: object) -> None:
    """A warning as one line, without the line of code that raised it."""
    typer.echo(f"warning: {message}", err=True)


def _refuse(text: str) -> NoReturn:
    typer.echo(f"robattr: {text}", err=True)
    sys.exit(2)


def _escape_unprintable() -> None:
    """On a terminal that is not UTF-8, print characters that it lacks as escapes such as \\u03b5."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and codecs.lookup(stream.encoding).name != "utf-8":
            stream.reconfigure(errors="backslashreplace")
