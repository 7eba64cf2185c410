"""The command line: one file per group of commands, each with `register(app)`.

Commands import what they need inside their functions, so that `robattr --help` loads nothing beyond `import robattr`.
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
BAD_PATH = {
    errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS,
    errno.ENAMETOOLONG, errno.ELOOP,
}  # fmt: skip

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
    try:
        app()
    except RobattrError as error:
        _refuse(str(error))
    except OSError as error:
        text = _explain(error)
        if text is None:
            raise
        _refuse(text)
    except torch.OutOfMemoryError as error:
        what = str(error).split(". GPU")[0]
        _refuse(f"{what}: end other processes on the device, choose another --device, or use smaller batches")


def _refuse(text: str) -> NoReturn:
    typer.echo(f"robattr: {text}", err=True)
    sys.exit(2)


def _explain(error: OSError) -> str | None:
    """One line about a full disk or a bad path; None for other errors, which are bugs."""
    at = "" if error.filename is None else f" {error.filename}"
    if error.errno in FULL:
        return f"cannot write{at} ({error.strerror}): free some space, then run the same command again"
    if at and error.errno in BAD_PATH:
        return f"cannot read or write{at} ({error.strerror}): choose another --out, or correct that path"
    return None


def _escape_unprintable() -> None:
    """On a terminal that is not UTF-8, print characters that it lacks as escapes such as \\u03b5."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and codecs.lookup(stream.encoding).name != "utf-8":
            stream.reconfigure(errors="backslashreplace")
