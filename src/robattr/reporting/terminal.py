"""The paper's table for a terminal."""

from __future__ import annotations

from typing import Any

from robattr._extras import need
from robattr.reporting.tables import Cell, Column, Table, show

AMPLE = 10_000  # columns, more than any table needs
FAINT = "not bold dim default"


def rich_table(made: Table, console: Any) -> Any:
    """A `rich` table, a row for each run; on a terminal too narrow for that, a line for each of its values.

    A value is followed by its interval and by the paper's number: below it in a row, beside it in a line.
    """
    rows = _rows(made)
    needed = console.measure(rows, options=console.options.update_width(AMPLE)).maximum
    return rows if needed <= console.width else _lines(made)


def _rows(made: Table) -> Any:
    text, drawn, several = need("rich.text", extra="cli"), _drawn(made), _several(made)
    for heading in (["Dataset"] if several else []) + ["Approach"]:
        drawn.add_column(heading, no_wrap=True)
    for column in made.columns:
        drawn.add_column(column.title, justify="right", no_wrap=True)
    previous = None
    for row in made.rows:
        if previous not in (None, made.place(row)):
            drawn.add_section()
        previous = made.place(row)
        # Text, not strings: a name in square brackets is a name, not markup.
        names = [text.Text(made.place(row))] if several else []
        names.append(text.Text(row.label))
        drawn.add_row(*names, *(_shown(*pair, "\n") for pair in zip(row.cells, made.columns, strict=True)))
    return drawn


def _lines(made: Table) -> Any:
    text, drawn, several = need("rich.text", extra="cli"), _drawn(made, show_header=False), _several(made)
    drawn.add_column(no_wrap=True)
    drawn.add_column(overflow="fold")
    for row in made.rows:
        name = f"{made.place(row)} · {row.label}" if several else row.label
        drawn.add_row("", text.Text(name, style="bold"))
        for cell, column in zip(row.cells, made.columns, strict=True):
            drawn.add_row(text.Text(column.title), _shown(cell, column, " "))
        drawn.add_section()
    return drawn


def _drawn(made: Table, *, show_header: bool = True) -> Any:
    table, text, box = (need(f"rich.{name}", extra="cli") for name in ("table", "text", "box"))
    return table.Table(
        box=box.SIMPLE_HEAD,
        caption=text.Text(made.caption, style="dim"),
        caption_justify="left",
        pad_edge=False,
        show_header=show_header,
    )


def _several(made: Table) -> bool:
    return len({made.place(row) for row in made.rows}) > 1


def _shown(cell: Cell, column: Column, between: str) -> Any:
    value, _, interval = show(cell, column).partition(" ")
    shown = need("rich.text", extra="cli").Text(value, style="bold green" if cell.best else "")
    if interval:
        shown.append(f"{between}{interval.strip('[]').replace(', ', '–')}", style=FAINT)
    if cell.paper is not None:
        shown.append(f"{between}paper {column.show(cell.paper)}", style=FAINT)
    return shown
