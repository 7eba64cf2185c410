"""Tables on stdout that fit any terminal, a pipe and a file."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from robattr._text import printable

if TYPE_CHECKING:
    from rich.console import Console

ROOM = 24  # further characters that a column which wraps needs to be readable
UNLIMITED = 10_000  # characters


def console() -> Console:
    """Stdout, as wide as the terminal (or $COLUMNS); a pipe and a file have no width."""
    from rich.console import Console

    made = Console(highlight=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = UNLIMITED
    return made


def show_text(*lines: str) -> None:
    """Print lines, wrapped between words on a terminal. Brackets are not markup, control characters are written out."""
    out = console()
    for line in lines:
        out.print(printable(line), markup=False)


def show_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    title: str = "",
    numbers: Collection[int] = (),
    wrap: bool = False,
) -> None:
    """Print a table; the columns `numbers` are aligned to the right. With `wrap` the last column may wrap.

    Where the terminal is too narrow, one block per row, with a line for each cell.
    All is text: square brackets are not markup, and control characters are written out; but **bold** is bold on a
    terminal.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    out = console()

    def shown(text: str, style: str = "") -> Text:
        if out.is_terminal and len(text) > 4 and text[:2] == text[-2:] == "**":
            text, style = text[2:-2], "bold"
        return Text("\n".join(map(printable, text.split("\n"))), style=style)

    rows = [list(row) for row in rows]
    wide = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for at, heading in enumerate(headings):
        last = at == len(headings) - 1
        wide.add_column(shown(heading), justify="right" if at in numbers else "left", no_wrap=not (wrap and last))
    narrow = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_header=False)
    narrow.add_column(overflow="fold")
    narrow.add_column(overflow="fold")
    for first, *rest in rows:
        wide.add_row(*map(shown, [first, *rest]))
        narrow.add_row(shown(headings[0]), shown(first, style="bold"))
        for heading, cell in zip(headings[1:], rest, strict=True):
            narrow.add_row(shown(heading), shown(cell))
        narrow.add_section()
    needed = out.measure(wide, options=out.options.update_width(UNLIMITED))
    if title:
        out.print(shown(title, style="bold"))
    least = min(needed.minimum + ROOM, needed.maximum) if wrap else needed.maximum
    out.print(wide if least <= out.width else narrow)
