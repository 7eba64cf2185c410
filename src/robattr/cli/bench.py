"""`robattr bench`: the engine beside the obvious eager port, measured and checked in one run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from robattr.errors import InvalidInput


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("bench")(bench)


def bench(
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    case: Annotated[
        list[str] | None,
        typer.Option(
            help="mini, mnist, gtsrb, flower, kendall, ifia, evaluation or scaling; may be given several times."
        ),
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help="Of the engine: fp32, tf32 or bf16 (default: tf32 on a GPU, fp32 on a CPU).")
    ] = None,
    json: Annotated[
        Path | None, typer.Option("--json", help="Write what is measured to this file, after each case.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Small batches and few repeats: a look, no benchmark.")
    ] = False,
    render: Annotated[
        list[Path] | None,
        typer.Option(help="Measure nothing: make a page of such files and of published records (several times)."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The page that --render writes (default: benchmarks.md).")
    ] = None,
) -> None:
    """Measure the engine against an eager PyTorch port of the reference, SciPy and the roofline; check that they agree.

    Exit code 1 if the two sides of a case disagree or a case fails; the others keep their numbers.
    """
    from robattr.bench import results
    from robattr.bench.render import markdown, show

    if render:
        page = out or Path("benchmarks.md")
        page.write_text(markdown([results.read(path) for path in render]), encoding="utf-8")
        typer.echo(f"wrote {page}")
        return
    if out is not None:
        raise InvalidInput(
            f"expected --out with --render, which makes a page, got it alone: --json {out} keeps numbers"
        )

    from robattr.bench.run import choose, run

    where, arithmetic = choose(device, precision)
    if json is not None and not json.parent.is_dir():
        raise typer.BadParameter(f"there is no directory {json.parent}", param_hint="--json")

    def keep(report: results.Report) -> None:
        if json is not None:
            json.write_text(report.to_json(), encoding="utf-8")

    def progress(name: str) -> None:
        typer.echo(f"{name} …", err=True)

    report = run(where, arithmetic, cases=case or (), quick=quick, progress=progress, keep=keep)
    show(report)
    for failed in report.failed:
        typer.echo(f"robattr: {failed.name}: {failed.error}", err=True)
    if report.failed:
        raise typer.Exit(1)
