"""Tables on stdout that fit any terminal, a pipe and a file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from robattr._text import printable

ROOM = 24  # further characters that a column which wraps needs to be readable


def show_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    title: str = "",
    numbers: int = 0,
    wrap: bool = False,
) -> None:
    """Print a table; its last `numbers` columns are aligned to the right. With `wrap` the last column may wrap.

    Where the terminal (or $COLUMNS) is too narrow, one block per row, with a line for each cell. A pipe has no width.
    All is text: square brackets are not markup, and control characters are written out.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    def shown(text: str, style: str = "") -> Text:
        return Text("\n".join(map(printable, text.split("\n"))), style=style)

    rows = [list(row) for row in rows]
    console = Console(highlight=False)
    wide = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for at, heading in enumerate(headings):
        right, last = at >= len(headings) - numbers, at == len(headings) - 1
        wide.add_column(shown(heading), justify="right" if right else "left", no_wrap=not (wrap and last))
    narrow = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_header=False)
    narrow.add_column(overflow="fold")
    narrow.add_column(overflow="fold")
    for first, *rest in rows:
        wide.add_row(*map(shown, [first, *rest]))
        narrow.add_row(shown(headings[0]), shown(first, style="bold"))
        for heading, cell in zip(headings[1:], rest, strict=True):
            narrow.add_row(shown(heading), shown(cell))
        narrow.add_section()
    needed = console.measure(wide, options=console.options.update_width(10_000))
    limited = console.is_terminal or "COLUMNS" in os.environ
    console.width = console.width if limited else max(needed.maximum, console.width)
    if title:
        console.print(shown(title, style="bold"), soft_wrap=not limited)
    least = min(needed.minimum + ROOM, needed.maximum) if wrap else needed.maximum
    console.print(wide if least <= console.width else narrow)
