"""The program's class, and the options that several commands share: each has one name and one meaning everywhere."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import get_terminal_size
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from robattr._text import printable
from robattr.cli._names import recipe_names, zoo_names
from robattr.data.known import NAMES

ROOM = 76  # characters that the columns of a command's options need
UsageError: Any = typer.BadParameter.__base__  # click's, or that of typer's own copy of click


class _Help:
    """Help that can be read on any terminal: short types, and plain text where the columns would be cut."""

    rich_markup_mode: Any

    def get_params(self, ctx: Any) -> list[Any]:
        return _with_short_types(super().get_params(ctx))  # type: ignore[misc]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        columns = get_terminal_size().columns
        if columns < ROOM:
            self.rich_markup_mode, formatter.width = None, columns
        super().format_help(ctx, formatter)  # type: ignore[misc]


class _Command(_Help, TyperCommand):
    pass


class _Group(_Help, TyperGroup):
    def make_context(self, *args: Any, **settings: Any) -> Any:
        with _explained_errors():
            return super().make_context(*args, **settings)

    def invoke(self, ctx: Any) -> Any:
        with _explained_errors():
            return super().invoke(ctx)


@contextmanager
def _explained_errors() -> Iterator[None]:
    """Say what a missing parameter is; write out control characters in the words that an error repeats."""
    try:
        yield
    except UsageError as error:
        plain = error.format_message()
        if type(error).__name__ == "NoArgsIsHelpError":  # typer prints its own help, but not the plain one
            if plain.strip():
                typer.echo(plain)
            raise
        about = getattr(getattr(error, "param", None), "help", None)
        missing = type(error).__name__ == "MissingParameter"  # click's, or that of typer's own copy
        said = printable(f"{plain.rstrip('.')}: {about}" if missing and about else plain)
        if said == plain:
            raise
        raise UsageError(said, ctx=error.ctx) from None


class App(typer.Typer):
    """A Typer program whose help shows short types."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(cls=_Group, no_args_is_help=True, **settings)

    def __call__(self, *args: Any, **settings: Any) -> Any:
        """Run the program, which is called robattr also as `python -m robattr`."""
        return super().__call__(*args, **{"prog_name": "robattr", **settings})

    def command(self, name: str | None = None, **settings: Any) -> Any:
        """Add a command."""
        return super().command(name, cls=_Command, **settings)


def _with_short_types(params: list[Any]) -> list[Any]:
    """No type for a flag, N for a number with limits, which stand beside it: the explanation needs the room."""
    for param in params:
        limited = getattr(param, "min", None), getattr(getattr(param, "type", None), "min", None)  # typer's or click's
        if getattr(param, "is_flag", False):
            param.metavar = ""
        elif limited != (None, None):
            param.metavar = "N"
    return params


def choices(*known: str) -> Callable[[str], list[str]]:
    """Shell completion from fixed words."""
    return lambda incomplete: [word for word in known if word.startswith(incomplete)]


def choices_with_commas(*known: str) -> Callable[[str], list[str]]:
    """Shell completion of a list with commas."""

    def complete(incomplete: str) -> list[str]:
        begun, comma, last = incomplete.rpartition(",")
        return [f"{begun}{comma}{word}" for word in known if word.startswith(last)]

    return complete


def known_recipes(incomplete: str) -> list[str]:
    """Shell completion of recipes."""
    return [name for name in recipe_names() if name.startswith(incomplete)]


def known_datasets(incomplete: str) -> list[str]:
    """Shell completion of datasets."""
    return [name for name in NAMES if name.startswith(incomplete)]


def known_runs(incomplete: str) -> list[str]:
    """Shell completion of folders, and of models of the zoo."""
    typed = Path(incomplete)
    parent, begun = (typed, "") if incomplete.endswith("/") or not incomplete else (typed.parent, typed.name)
    below = [path for path in parent.glob("*") if path.is_dir() and path.name.startswith(begun)]
    folders = [f"{path.as_posix()}/" for path in below if begun or not path.name.startswith(".")]
    return sorted(folders) + [name for name in zoo_names() if name.startswith(incomplete)]


def typed_command() -> str:
    """The command as it was typed, for the records that it writes."""
    return shlex.join(["robattr", *sys.argv[1:]])


def leads() -> bool:
    """Whether this process speaks for the command: the first of those that torchrun starts, or the only one."""
    return os.environ.get("RANK", "0") == "0"


DEVICES = ("auto", "cpu", "cuda", "cuda:0", "cuda:1", "mps")
MAPS = ("ig", "sg", "gi", "smoothgrad")

Device = Annotated[
    str,
    typer.Option(
        help="auto (a GPU if there is one), cpu, cuda, cuda:1; mps to train.", autocompletion=choices(*DEVICES)
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", help="Folder of the datasets (default: $ROBATTR_DATA, else the user's cache folder)."),
]
Protocol = Annotated[
    str,
    typer.Option(
        help="paper; strict (the worst case over several attacks); or exhaustive (all attacks, without a budget).",
        autocompletion=choices("paper", "strict", "exhaustive"),
    ),
]
Iterations = Annotated[
    int | None, typer.Option(min=1, help="Iterations of the attribution attack (default: the protocol's).")
]
Fresh = Annotated[
    bool,
    typer.Option(
        "--fresh",
        help="Begin anew: discard what this command wrote there before, and what was measured on it. Other files stay.",
    ),
]
Trust = Annotated[
    bool,
    typer.Option("--trust-code", help="Run the functions (network, objective) that a file or run directory names."),
]
Compile = Annotated[
    bool | None,
    typer.Option("--compile/--no-compile", help="Compile the attack (default: on a GPU, if that saves time)."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what the command would do, and do nothing else.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one setting; may be repeated.")
]
