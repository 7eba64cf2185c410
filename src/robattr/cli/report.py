"""`robattr record`, `report`, `figures` and `card`: export and render evaluated runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from robattr._form import uncollected
from robattr._text import printable, words
from robattr.cli import reproduce
from robattr.cli._options import choices_with_commas
from robattr.errors import InvalidInput, nearest

Runs = Annotated[
    list[Path], typer.Argument(metavar="RUN", help="Evaluated run directories, records, or folders of records.")
]


def register(app: typer.Typer) -> None:
    """Add this group's commands."""
    app.command("record")(record)
    app.command("report")(report)
    app.command("figures")(figures)
    app.command("card")(card)
    reproduce.register(app)


def record(
    runs: Runs,
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write into.")] = Path("results"),
    name: Annotated[
        str | None, typer.Option(help="NAME in the file names, such as ig-norm-wide (default: the recipe and m).")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace records that differ.")] = False,
) -> None:
    """Export evaluated runs as small files to commit: OUT/DATASET-NAME-seedN-PROTOCOL-MAP.json, and a few images."""
    from robattr.reporting import read_runs, write_records

    for path, new in write_records(read_runs(runs), out, name=name, force=force):
        typer.echo(printable(f"wrote {path} ({_size(path)})" if new else f"unchanged {path}"))


def report(
    runs: Runs,
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML page to write.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="The title of the page.")] = "Attribution robustness",
) -> None:
    """Write one HTML page: table, plots, settings and an explorer of the attacked images."""
    from robattr.reporting import read_runs, write_page

    if out.suffix.lower() not in (".html", ".htm"):
        raise InvalidInput(
            f"expected a page that ends in .html or .htm, got {out}: choose another --out "
            "(`robattr figures` writes the table as Markdown)"
        )
    with uncollected():  # a fifth of the time of a thousand runs
        path = write_page(read_runs(runs), out, title=title)
    typer.echo(printable(f"wrote {path} ({_size(path)})"))


def figures(
    runs: Runs,
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write into.")] = Path("figures"),
    formats: Annotated[
        str,
        typer.Option(
            help="File formats, with commas: pdf, svg, png.", autocompletion=choices_with_commas("pdf", "svg", "png")
        ),
    ] = "pdf,svg,png",
    rows: Annotated[int, typer.Option(min=1, help="Examples in figure 1.")] = 4,
) -> None:
    """Write figures for publication (figure 1, box plots, curves) and the table as Markdown, LaTeX and CSV."""
    from robattr.reporting.figures import FORMATS, write_figures
    from robattr.reporting.run_results import read_runs

    wanted = tuple(map(str.lower, words(formats)))
    if not wanted:
        raise InvalidInput(f"expected at least one format, got {formats!r}: --formats {','.join(FORMATS)}")
    for name in wanted:
        if name not in FORMATS:
            raise InvalidInput(f"unknown format {name!r}; {nearest(name, FORMATS)}")
    for path in write_figures(read_runs(runs), out, formats=wanted, rows=rows):
        typer.echo(printable(f"wrote {path}"))


def card(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            help="A finished run directory, whose evaluations are part of the card, or a model of the zoo.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The file to write (default: RUN/README.md; of the zoo: show the card)."),
    ] = None,
    license: Annotated[str, typer.Option(help="The licence of the weights: apache-2.0, cc-by-4.0, …")] = "unknown",
) -> None:
    """Write a model card for the Hugging Face Hub: data, recipe, measurements, licence and hash, as Markdown."""
    from robattr.engine.files import write_atomically
    from robattr.models import zoo
    from robattr.reporting import model_card

    path = out
    if run.exists():
        text, path = model_card(run, license=license), out or run / "README.md"
    elif entry := (known := zoo.entries()).get(run.as_posix()):
        text = entry.card.read_text(encoding="utf-8")
    else:
        name = run.as_posix()
        raise InvalidInput(f"expected a run directory or a model of the zoo, got {name!r}: {nearest(name, known)}")
    if path is None:
        typer.echo(text)  # it comes with the package
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text.encode())
    typer.echo(printable(f"wrote {path}"))


def _size(path: Path) -> str:
    size = path.stat().st_size
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"
