"""The paper's table for a terminal."""

from __future__ import annotations

from typing import Any

from robattr._extras import need
from robattr.report.tables import Table, show


def rich_table(made: Table) -> Any:
    """A `rich` table, a row for each run: the value, below it the interval, below that the paper's number."""
    rich_table_module, text = need("rich.table", extra="cli"), need("rich.text", extra="cli")
    box = need("rich.box", extra="cli")
    several = len({row.dataset for row in made.rows}) > 1
    drawn = rich_table_module.Table(
        box=box.SIMPLE_HEAD, caption=text.Text(made.caption, style="dim"), caption_justify="left", pad_edge=False
    )
    for heading in (["Dataset"] if several else []) + ["Approach"]:
        drawn.add_column(heading, no_wrap=True)
    for column in made.columns:
        drawn.add_column(column.title, justify="right", no_wrap=True)
    previous = None
    for row in made.rows:
        if previous not in (None, row.dataset):
            drawn.add_section()
        previous = row.dataset
        # Text, not strings: a name in square brackets is a name, not markup.
        cells = [text.Text(row.dataset)] if several else []
        cells.append(text.Text(row.approach))
        for cell, column in zip(row.cells, made.columns, strict=True):
            value, _, interval = show(cell, column).partition(" ")
            shown = text.Text(value, style="bold green" if cell.best else "")
            if interval:
                shown.append(f"\n{interval.strip('[]').replace(', ', '–')}", style="not bold dim default")
            if cell.paper is not None:
                shown.append(f"\npaper {column.show(cell.paper)}", style="not bold dim default")
            cells.append(shown)
        drawn.add_row(*cells)
    return drawn
