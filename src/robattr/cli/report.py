"""`robattr report` and `robattr figures`: renderings of finished runs; with them the commands that make such runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from robattr.cli import reproduce

Runs = Annotated[list[Path], typer.Argument(metavar="RUN…", help="Run directories that hold evaluations.")]


def register(app: typer.Typer) -> None:
    """Add this group's commands."""
    app.command("report")(report)
    app.command("figures")(figures)
    reproduce.register(app)


def report(
    runs: Runs,
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="Its title.")] = "Attribution robustness",
) -> None:
    """One self-contained page: table, plots, settings and an explorer of the attacked images."""
    from robattr.report.html import write_page
    from robattr.report.runs import read_runs

    path = write_page(read_runs(runs), out, title=title)
    typer.echo(f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB)")


def figures(
    runs: Runs,
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write into.")] = Path("figures"),
    formats: Annotated[str, typer.Option(help="Formats, separated by commas.")] = "pdf,svg,png",
    rows: Annotated[int, typer.Option(min=1, help="Examples in the figure 1 grid.")] = 4,
) -> None:
    """Publication figures (figure 1 grid, box plots, curves) and the table as Markdown, LaTeX and CSV."""
    from robattr.errors import InvalidInput, nearest
    from robattr.report.figures import FORMATS, write_figures
    from robattr.report.runs import read_runs

    wanted = tuple(part.strip().lower() for part in formats.split(",") if part.strip())
    for name in wanted:
        if name not in FORMATS:
            raise InvalidInput(f"unknown format {name!r}; {nearest(name, FORMATS)}")
    for path in write_figures(read_runs(runs), out, formats=wanted, rows=rows):
        typer.echo(f"wrote {path}")
