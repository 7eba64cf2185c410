"""The command line: thin, lazy, and polite about mistakes.

One file per group of commands; each has `register(app)`. What a command needs beyond torch, which `import robattr`
brings along, is imported inside the command: `robattr --help` waits for nothing else.
"""

from __future__ import annotations

import codecs
import errno
import io
import sys
from importlib import import_module
from typing import NoReturn

import torch
import typer

from robattr.errors import RobattrError

GROUPS = ("train", "evaluate", "report", "audit", "data")
FULL = {errno.ENOSPC, errno.EDQUOT}
MISPLACED = {
    errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS,
    errno.ENAMETOOLONG, errno.ELOOP,
}  # fmt: skip

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
    _spell_out()
    try:
        app()
    except RobattrError as error:
        _refuse(str(error))
    except OSError as error:
        sentence = _sentence(error)
        if sentence is None:
            raise
        _refuse(sentence)
    except torch.OutOfMemoryError as error:
        what = str(error).split(". GPU")[0]
        _refuse(f"{what}: free the card of other processes, take another --device, or give it smaller batches")


def _refuse(text: str) -> NoReturn:
    typer.echo(f"robattr: {text}", err=True)
    sys.exit(2)


def _sentence(error: OSError) -> str | None:
    """What the system refused, for the user who gave the path; None where no path says that it was theirs."""
    at = "" if error.filename is None else f" {error.filename}"
    if error.errno in FULL:
        return f"cannot write{at} ({error.strerror}): make room, then start the same command again"
    if at and error.errno in MISPLACED:
        return f"cannot read or write{at} ({error.strerror}): choose another --out, or mend that path"
    return None


def _spell_out() -> None:
    """On a terminal that is not UTF-8, print what it has no letter for as \\u03b5 instead of ending in an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and codecs.lookup(stream.encoding).name != "utf-8":
            stream.reconfigure(errors="backslashreplace")
