"""The command line: one file per group of commands, each with `register(app)`.

Commands import what they need inside their functions, so that `robattr --help` does not load torch.
"""

from __future__ import annotations

import codecs
import errno
import io
import shlex
import sys
import tempfile
import traceback
import warnings
from importlib import import_module
from typing import NoReturn

import typer

from robattr._text import printable
from robattr._version import __version__
from robattr.cli._options import App
from robattr.errors import RobattrError

GROUPS = ("train", "evaluate", "compare", "report", "audit", "certify", "data")
ABOUT = "Train models whose explanations resist attacks, attack explanations, and measure the damage."

app = App(name="robattr", help=ABOUT, add_completion=True, pretty_exceptions_enable=False, rich_markup_mode="rich")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"robattr {__version__}")
        raise typer.Exit


def _list(wanted: bool) -> None:
    if wanted:
        from robattr.cli.catalog import show_catalog

        show_catalog()
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
    listed: bool = typer.Option(
        False, "--list", callback=_list, is_eager=True, help="List recipes, trained models and datasets."
    ),
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
        if error.errno == errno.EROFS:
            _refuse(f"cannot write{at} ({error.strerror}): make it writable, then run the same command again")
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            _refuse(f"cannot write{at} ({error.strerror}): free some space, then run the same command again")
        if not at:
            _report(error)
        _refuse(f"cannot read or write{at} ({error.strerror}): choose another --out, or correct that path")
    except Exception as error:
        if type(error).__name__ == "OutOfMemoryError":  # torch's; torch may not be loaded yet
            what = str(error).split(". GPU")[0]
            _refuse(f"{what}: end other processes on the device, choose another --device, or use smaller batches")
        if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
            _refuse(f"not enough memory ({_first_line(error)}): use smaller numbers, or fewer examples at a time")
        _report(error)


def _warn(message: Warning | str, *_: object, **__: object) -> None:
    """A warning as one line, without the line of code that raised it."""
    typer.echo(f"warning: {printable(' '.join(str(message).split()))}", err=True)


def _report(error: Exception) -> NoReturn:
    """An error that nothing foresaw: one line with the version, and a file with the traceback."""
    lines = traceback.format_exception(error)
    try:
        with tempfile.NamedTemporaryFile("w", prefix="robattr-", suffix=".txt", delete=False, encoding="utf-8") as file:
            file.write("".join([f"robattr {__version__}: {shlex.join(sys.argv)}\n", *lines]))
        where = f"the traceback is in {file.name}"
    except OSError:
        typer.echo("".join(map(printable, lines)), err=True)
        where = "the traceback is above"
    kind = type(error).__name__
    _refuse(f"an unexpected error in version {__version__} ({kind}: {_first_line(error)}); {where}", code=1)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _refuse(text: str, *, code: int = 2) -> NoReturn:
    typer.echo(f"robattr: {printable(text.replace(chr(10), ' '))}", err=True)
    sys.exit(code)


def _escape_unprintable() -> None:
    """On a terminal that is not UTF-8, print characters that it lacks as escapes such as \\u03b5."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and codecs.lookup(stream.encoding).name != "utf-8":
            stream.reconfigure(errors="backslashreplace")
