"""Tables on stdout that fit any terminal, a pipe and a file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence


def show_table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, title: str = "", numbers: int = 0) -> None:
    """Print a table; its last `numbers` columns are aligned to the right.

    Where the terminal (or $COLUMNS) is too narrow, one block per row, with a line for each cell. A pipe has no width.
    Cells are text: square brackets are not markup.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    rows = [list(row) for row in rows]
    console = Console(highlight=False)
    wide = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for at, heading in enumerate(headings):
        right = at >= len(headings) - numbers
        wide.add_column(Text(heading), justify="right" if right else "left", no_wrap=True)
    narrow = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_header=False)
    narrow.add_column(overflow="fold")
    narrow.add_column(overflow="fold")
    for first, *rest in rows:
        wide.add_row(*map(Text, [first, *rest]))
        narrow.add_row(Text(headings[0]), Text(first, style="bold"))
        for heading, cell in zip(headings[1:], rest, strict=True):
            narrow.add_row(Text(heading), Text(cell))
        narrow.add_section()
    width = console.measure(wide, options=console.options.update_width(10_000)).maximum
    limited = console.is_terminal or "COLUMNS" in os.environ
    console.width = console.width if limited else max(width, console.width)
    if title:
        console.print(Text(title, style="bold"), soft_wrap=not limited)
    console.print(wide if width <= console.width else narrow)
