"""`robattr demo` and `robattr reproduce`: from nothing to a page that shows the result."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from robattr.reproduce.job import Job, Progress
    from robattr.reproduce.plan import Step

DEMO_EXAMPLES = 200

Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")]
DataDir = Annotated[Path | None, typer.Option(help="Where datasets are kept.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan and an estimate of time, and do nothing else.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    app.command("demo")(demo)
    app.command("reproduce")(reproduce)


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write into.")] = Path("runs/demo"),
    examples: Annotated[int, typer.Option(min=1, max=1000, help="Test images to attack.")] = DEMO_EXAMPLES,
    device: Device = "cpu",
    dry_run: DryRun = False,
) -> None:
    """Train four small models, attack their explanations, and show what held: minutes on a laptop, nothing to download.

    What is finished is not done again: start it anew to continue, or after deleting a run to repeat that one.
    """
    from robattr.reproduce.targets import jobs

    made = jobs("table1", out, datasets=("fashion-mini",), examples=examples)
    _go(
        made,
        out,
        title="Attribution robustness: the demo",
        device=device,
        data_dir=None,
        dry_run=dry_run,
        figures=False,
    )


def reproduce(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="table1, table2, table3, figure1 or figure2.")],
    datasets: Annotated[str, typer.Option(help="Some of the target's datasets, with commas (default: all).")] = "",
    recipes: Annotated[
        str, typer.Option(help="paper, or fast: about a hundredth of the cost, for a first look.")
    ] = "paper",
    examples: Annotated[int | None, typer.Option(min=1, help="The first N test examples (default: all).")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Default: runs/paper or runs/fast.")] = None,
    device: Device = "auto",
    data_dir: DataDir = None,
    dry_run: DryRun = False,
) -> None:
    """Reproduce a table or figure of the paper: train what is missing, evaluate, render. Start it again to continue."""
    from robattr.reproduce.targets import TARGETS, jobs

    folder = out or Path("runs") / recipes
    names = [name.strip() for name in datasets.split(",") if name.strip()]
    made = jobs(target, folder, datasets=names, kind=recipes, examples=examples)
    _go(
        made,
        folder / target,
        title=TARGETS[target].title,
        device=device,
        data_dir=data_dir,
        dry_run=dry_run,
        figures=True,
    )


def _go(
    jobs: list[Job], folder: Path, *, title: str, device: str, data_dir: Path | None, dry_run: bool, figures: bool
) -> None:
    from rich.console import Console

    from robattr.report.figures import write_figures
    from robattr.report.findings import finding
    from robattr.report.html import write_page
    from robattr.report.runs import measured
    from robattr.report.tables import table
    from robattr.report.terminal import rich_table
    from robattr.reproduce import plan

    todo = plan.steps(jobs)
    if dry_run:
        _describe(todo, device)
        return
    console = Console(stderr=True, highlight=False)
    stopped = plan.carry_out(
        todo,
        say=lambda text: console.print(text, markup=False, style="bold"),
        bar=_bar,
        device=device,
        data_dir=data_dir,
    )
    if stopped is not None:
        typer.echo(f"stopped during: {stopped.step.title}; start the same command again to continue", err=True)
        raise typer.Exit(128 + stopped.signal)
    runs = plan.results(jobs)
    groups = measured(runs)
    page = write_page(runs, folder / "report.html", title=title)
    if figures:
        write_figures(runs, folder)
    out = Console(highlight=False)
    for group in groups:
        out.print(f"\n{finding(group).headline}", markup=False)
    out.print()
    out.print(rich_table(table(groups)))
    out.print(f"\nopen {page}", markup=False)


def _describe(todo: list[Step], device: str) -> None:
    from robattr.reproduce.estimate import words

    total = 0.0
    for step in todo:
        seconds = step.seconds(device)
        total += seconds
        typer.echo(f"{step.title:60} {'done' if step.done else 'about ' + words(seconds)}")
    typer.echo(f"{'in all':60} about {words(total)} (timed on this machine, one step after the other)")


@contextmanager
def _bar(title: str) -> Iterator[Progress]:
    """A bar on a terminal, plain lines elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda done, total: typer.echo(f"{title}: attacked {done} of {total}", err=True)
        return
    parts = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*parts, console=console, transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
