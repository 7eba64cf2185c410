"""The paper's table from summaries: ours with intervals, the paper's beside it, as Markdown, LaTeX, CSV or plain rows.

Columns are the paper's: natural accuracy, accuracy under PGD, top-k intersection and Kendall's rank correlation of the
maps before and after the attack. To them we add the share of examples on which no iterate kept the prediction: the
reference implementation scores those 1, so a large share flatters a fragile model and must be seen.
"""

from __future__ import annotations

import csv as _csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from robattr.reporting.published import SOURCE, published
from robattr.reporting.runs import Evaluation, Group, RunResults


@dataclass(frozen=True)
class Column:
    """A column of the table; `share` is printed in per cent, `best` says whether higher is marked as better."""

    key: str
    title: str
    share: bool
    best: bool = False

    def show(self, value: float | None) -> str:
        if value is None:
            return "–"
        return f"{100 * value:.2f}%" if self.share else f"{value:.4f}"


COLUMNS = (
    Column("nat_acc", "Nat Acc.", share=True),
    Column("adv_acc", "Adv Acc.", share=True),
    Column("topk", "TopK Inter.", share=True, best=True),
    Column("kendall", "Rank Corr.", share=False, best=True),
    Column("never_kept", "Never kept", share=True),
)
COLUMN = {column.key: column for column in COLUMNS}


@dataclass(frozen=True)
class Cell:
    """A value with its 95 % interval (None where there is none), the paper's, and whether it is the column's best."""

    value: float | None
    low: float | None
    high: float | None
    paper: float | None
    best: bool


@dataclass(frozen=True)
class Row:
    """A run, measured on a dataset by a protocol with a kind of map; `alike`: on as many examples as its neighbours."""

    dataset: str
    protocol: str
    map_name: str
    approach: str
    examples: int
    alike: bool
    cells: tuple[Cell, ...]

    @property
    def label(self) -> str:
        """The approach, and the number of examples where the rows beside it are of others."""
        return self.approach if self.alike else f"{self.approach}, {self.examples:,} examples"

    @property
    def kind(self) -> str:
        return f"{self.map_name} maps, {self.protocol} protocol"


@dataclass(frozen=True)
class Table:
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]

    def place(self, row: Row) -> str:
        """The dataset of a row, and how it was measured where others of the table were measured otherwise."""
        return row.dataset if len({other.kind for other in self.rows}) == 1 else f"{row.dataset}, {row.kind}"

    @property
    def has_paper(self) -> bool:
        return any(cell.paper is not None for row in self.rows for cell in row.cells)


def table(groups: Iterable[Group]) -> Table:
    """One row for every run of every group; the best value of a group is marked.

    Rows of a group that are of more or fewer examples than others say how many, and none of them is the best.
    """
    gathered = tuple(groups)
    rows = tuple(row for group in gathered for row in _group_rows(group))
    kinds = "; ".join(dict.fromkeys(row.kind for row in rows))
    ks = sorted({group.k for group in gathered})
    k = f"k = {', '.join(map(str, ks))}"
    caption = f"Robustness of attributions ({kinds}, {k}). Intervals are 95%."
    shown = Table(caption, COLUMNS, rows)
    return Table(f"{caption} Paper: {SOURCE}.", COLUMNS, rows) if shown.has_paper else shown


def markdown(made: Table) -> str:
    """A GitHub table; the interval follows in brackets, the paper's value on a second line of the cell."""
    rows = [
        [
            escape_markdown(made.place(row)),
            escape_markdown(row.label),
            *(_markdown_cell(cell, column) for cell, column in zip(row.cells, made.columns, strict=True)),
        ]
        for row in made.rows
    ]
    drawn = grid(["Dataset", "Approach", *(column.title for column in made.columns)], rows)
    return "\n".join([drawn, "", made.caption, ""])


def grid(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table of cells that are escaped already."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def latex(made: Table) -> str:
    """A booktabs `tabular`; the best of a group is bold, the paper's value is set in grey brackets."""
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
        cells = [_latex_cell(c, column) for c, column in zip(row.cells, made.columns, strict=True)]
        lines.append(" & ".join([shown, _escape_latex(row.label), *cells]) + r" \\")
        previous = place
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", f"% {made.caption}", ""])


def csv(made: Table) -> str:
    """Full precision, one row per run; every column with its interval and the paper's value."""
    out = io.StringIO()
    writer = _csv.writer(out, lineterminator="\n")
    parts = ("", "_low", "_high", "_paper")
    about = ("dataset", "protocol", "map", "approach", "examples")
    writer.writerow([*about, *(c.key + part for c in made.columns for part in parts)])
    for row in made.rows:
        values = ["" if v is None else repr(v) for c in row.cells for v in (c.value, c.low, c.high, c.paper)]
        writer.writerow([row.dataset, row.protocol, row.map_name, row.approach, row.examples, *values])
    return out.getvalue()


def show(cell: Cell, column: Column) -> str:
    """`72.08% [70.1, 74.0]`, the form of the terminal."""
    return f"{column.show(cell.value)}{_interval(cell, column)}"


def _interval(cell: Cell, column: Column) -> str:
    if cell.low is None or cell.high is None:
        return ""
    scale, digits = (100, 1) if column.share else (1, 3)
    return f" [{scale * cell.low:.{digits}f}, {scale * cell.high:.{digits}f}]"


def _group_rows(group: Group) -> list[Row]:
    alike = len(group.counts) == 1
    best = {
        column.key: max((v for _, e in group.members if (v := value_of(e, column.key)) is not None), default=None)
        for column in COLUMNS
        if column.best and alike and len(group.members) > 1
    }
    return [
        Row(
            dataset=group.dataset,
            protocol=group.protocol,
            map_name=group.map_name,
            approach=run.name,
            examples=evaluation.examples,
            alike=alike,
            cells=tuple(
                _cell(run, evaluation, column, best.get(column.key), by_m=len(group.points) > 1) for column in COLUMNS
            ),
        )
        for run, evaluation in group.members
    ]


def _cell(run: RunResults, evaluation: Evaluation, column: Column, best: float | None, *, by_m: bool) -> Cell:
    summary = evaluation.summary
    value = value_of(evaluation, column.key)
    found = summary.get("columns", {}).get(column.key) or {}
    # The paper's numbers are its own protocol's; beside any other they would invite a false comparison.
    if summary.get("protocol") == "paper":
        # Where m varies, its table; else table 1: ten midpoints are not the paper's ten right ends.
        m = run.config.get("m") if by_m else None
        row = published(run.dataset, run.method, map_name=str(summary.get("map")), m=m)
    else:
        row = None
    return Cell(
        value=value,
        low=found.get("low"),
        high=found.get("high"),
        paper=row.column(column.key) if row else None,
        best=value is not None and value == best,
    )


def value_of(evaluation: Evaluation, key: str) -> float | None:
    """The value of a column; None where it was not measured."""
    if key == "never_kept":
        found = evaluation.summary.get("never_kept")
    else:
        found = (evaluation.summary.get("columns", {}).get(key) or {}).get("value")
    return None if found is None else float(found)


def _markdown_cell(cell: Cell, column: Column) -> str:
    value = f"**{column.show(cell.value)}**" if cell.best else column.show(cell.value)
    paper = f"<br>paper {column.show(cell.paper)}" if cell.paper is not None else ""
    return f"{value}{_interval(cell, column)}{paper}"


def _latex_cell(cell: Cell, column: Column) -> str:
    value = _escape_latex(column.show(cell.value)).replace("–", "--")
    value = f"\\textbf{{{value}}}" if cell.best else value
    interval = f" {{\\scriptsize{_interval(cell, column)}}}" if cell.low is not None else ""
    paper = f" ({_escape_latex(column.show(cell.paper))})" if cell.paper is not None else ""
    return f"{value}{interval}{paper}"


def escape_markdown(text: str) -> str:
    """Text that stays text in Markdown, also within a cell of a table."""
    return "".join(f"\\{c}" if c in "\\|*_`<>[]" else c for c in " ".join(text.split()))


def _escape_latex(text: str) -> str:
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    return "".join(special.get(c, f"\\{c}" if c in "&%$#_{}" else c) for c in text)
