"""The paper's table: our values with intervals and the paper's, as Markdown, LaTeX, CSV or plain rows.

The columns are those of `metrics.columns`.
"""

from __future__ import annotations

import csv as _csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from robattr.metrics.columns import COLUMNS, Column
from robattr.reporting.groups import Group
from robattr.reporting.paired import unlike, winner
from robattr.reporting.published import SOURCE, published
from robattr.reporting.run_results import EvaluationResults, RunResults

BOLD = "Bold: higher than every other on the same examples, by an interval above 0."


@dataclass(frozen=True)
class Cell:
    """A value with its 95% interval (None where there is none) and the paper's value."""

    column: Column
    value: float | None
    low: float | None
    high: float | None
    paper: float | None = None
    best: bool = False

    def __str__(self) -> str:
        """`72.08% [70.1, 74.0]`."""
        return f"{self.shown} {self.interval}".rstrip()

    @property
    def shown(self) -> str:
        return self.column.show(self.value)

    @property
    def interval(self) -> str:
        return self.column.show_interval(self.low, self.high)

    @property
    def paper_shown(self) -> str:
        return "" if self.paper is None else self.column.show(self.paper)


@dataclass(frozen=True)
class Row:
    """One evaluation of one run. `label` is the approach, the number of examples where they differ, and the flags."""

    dataset: str
    protocol: str
    map_name: str
    approach: str
    label: str
    examples: int
    cells: tuple[Cell, ...]
    flags: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        return f"{self.map_name} maps, {self.protocol} protocol"


@dataclass(frozen=True)
class Table:
    """The rows, with a caption."""

    caption: str
    rows: tuple[Row, ...]
    columns: tuple[Column, ...] = COLUMNS

    def place(self, row: Row) -> str:
        """The dataset of a row, with map and protocol where the rows differ in them."""
        return row.dataset if len({other.kind for other in self.rows}) == 1 else f"{row.dataset}, {row.kind}"

    @property
    def has_paper(self) -> bool:
        return any(cell.paper is not None for row in self.rows for cell in row.cells)

    @property
    def has_best(self) -> bool:
        return any(cell.best for row in self.rows for cell in row.cells)


def table(
    groups: Iterable[Group],
    columns: tuple[Column, ...] = COLUMNS,
    title: str = "Robustness of attributions ({kinds}, k = {k})",
) -> Table:
    """One row per evaluation; the best of a group is marked where its difference from the others is settled."""
    groups = tuple(groups)
    rows = tuple(row for group in groups for row in _rows(group, columns))
    kinds = "; ".join(dict.fromkeys(row.kind for row in rows))
    k = ", ".join(map(str, sorted({group.k for group in groups})))
    made = Table(f"{title.format(kinds=kinds, k=k)}. Intervals are 95%.", rows, columns)
    further = [*([BOLD] if made.has_best else []), *([f"Paper: {SOURCE}."] if made.has_paper else [])]
    return replace(made, caption=" ".join([made.caption, *further]))


def make_cell(evaluation: EvaluationResults, column: Column) -> Cell:
    """The cell of one evaluation, without the paper's value."""
    return cell_of(column, evaluation.column(column.key))


def cell_of(column: Column, found: Mapping[str, Any]) -> Cell:
    """The cell of an estimate; NaN is None."""
    value, low, high = (None if (v := found.get(key)) is None or v != v else v for key in ("value", "low", "high"))
    return Cell(column, value, low, high)


def _rows(group: Group, columns: Sequence[Column]) -> list[Row]:
    """The rows of a group; a dash where an evaluation has not measured a column."""
    same_count = len(group.counts) == 1
    marked = same_count and not unlike(group)
    ours = [e for _, e in group.members]
    best = [winner(ours, column.key) if marked and column.mark_best else None for column in columns]
    rows = []
    for run, e in group.members:
        by_m = group.varies_m(run)
        cells = tuple(
            replace(make_cell(e, column), paper=_paper(run, e, column, by_m=by_m), best=first is e)
            for column, first in zip(columns, best, strict=True)
        )
        label = (run.name if same_count else f"{run.name}, {e.examples:,} examples") + run.flagged(e)
        about = group.dataset, group.protocol, group.map_name, run.name, label, e.examples
        rows.append(Row(*about, cells, run.flags(e)))
    return rows


def _paper(run: RunResults, evaluation: EvaluationResults, column: Column, *, by_m: bool) -> float | None:
    """The paper's value, for its own protocol only: values of other protocols do not compare with it."""
    if evaluation.summary.get("protocol") != "paper":
        return None
    # Table 2 where m varies, else table 1: ten midpoints are not the paper's ten right ends.
    m = run.config.get("m") if by_m else None
    row = published(run.dataset, run.method, map_name=str(evaluation.summary.get("map")), m=m)
    return row.get(column.key) if row else None


def markdown(made: Table) -> str:
    """A GitHub table: value, interval in brackets, and the paper's value on a second line of the cell."""
    rows = [
        [escape_markdown(made.place(row)), escape_markdown(row.label), *map(_markdown_cell, row.cells)]
        for row in made.rows
    ]
    drawn = grid(["Dataset", "Approach", *(column.title for column in made.columns)], rows)
    return "\n".join([drawn, "", made.caption, ""])


def grid(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table from cells that are already escaped."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def folded(summary: str, text: str) -> str:
    """Markdown behind a line that opens it."""
    return f'<details markdown="1"><summary>{summary}</summary>\n\n{text}\n\n</details>'


def latex(made: Table) -> str:
    """A booktabs `tabular`: the best of a group in bold (`winner`), the paper's value in brackets."""
    lines = [
        "% needs \\usepackage{booktabs}",
        "\\begin{tabular}{ll" + "r" * len(made.columns) + "}",
        "\\toprule",
        " & ".join(["Dataset", "Approach", *(_escape_latex(c.title) for c in made.columns)]) + r" \\",
    ]
    previous = None
    for row in made.rows:
        place = made.place(row)
        if place != previous:
            lines.append("\\midrule")
        shown = _escape_latex(place) if place != previous else ""
        lines.append(" & ".join([shown, _escape_latex(row.label), *map(_latex_cell, row.cells)]) + r" \\")
        previous = place
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", f"% {made.caption}", ""])


def csv(made: Table) -> str:
    """Full precision, one row per evaluation; every column with its interval and the paper's value."""
    out = io.StringIO()
    writer = _csv.writer(out, lineterminator="\n")
    parts = ("", "_low", "_high", "_paper")
    about = ("dataset", "protocol", "map", "approach", "examples", "flags")
    writer.writerow([*about, *(c.key + part for c in made.columns for part in parts)])
    for row in made.rows:
        values = ["" if v is None else repr(v) for c in row.cells for v in (c.value, c.low, c.high, c.paper)]
        writer.writerow(
            [row.dataset, row.protocol, row.map_name, row.approach, row.examples, "; ".join(row.flags), *values]
        )
    return out.getvalue()


def plain(made: Table) -> tuple[list[str], list[list[str]]]:
    """Headings and rows for a terminal: value, interval and the paper's value on a line each, `*` after the best."""
    several = len({made.place(row) for row in made.rows}) > 1

    def lines(cell: Cell) -> str:
        ends = cell.interval.strip("[]").replace(", ", "–")
        paper = f"paper {cell.paper_shown}" if cell.paper_shown else ""
        return "\n".join(part for part in (cell.shown + "*" * cell.best, ends, paper) if part)

    headings = [*(["Dataset"] if several else []), "Approach", *(column.title for column in made.columns)]
    rows = [[*([made.place(row)] if several else []), row.label, *map(lines, row.cells)] for row in made.rows]
    return headings, rows


def _markdown_cell(cell: Cell) -> str:
    value = f"**{cell.shown}**" if cell.best else cell.shown
    paper = f"<br>paper {cell.paper_shown}" if cell.paper_shown else ""
    return f"{value} {cell.interval}".rstrip() + paper


def _latex_cell(cell: Cell) -> str:
    value = _escape_latex(cell.shown).replace("–", "--")
    value = f"\\textbf{{{value}}}" if cell.best else value
    interval = f" {{\\scriptsize {cell.interval}}}" if cell.interval else ""
    paper = f" ({_escape_latex(cell.paper_shown)})" if cell.paper_shown else ""
    return f"{value}{interval}{paper}"


def escape_markdown(text: str) -> str:
    """Escape text for Markdown, also within a cell of a table."""
    return "".join(f"\\{c}" if c in "\\|*_`<>[]" else c for c in " ".join(text.split()))


def _escape_latex(text: str) -> str:
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    return "".join(special.get(c, f"\\{c}" if c in "&%$#_{}" else c) for c in text)
