"""`robattr demo` and `robattr reproduce`: from nothing to a page that shows the result."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from robattr.reproduce.job import Job, Progress

Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")]
DataDir = Annotated[Path | None, typer.Option(help="Where datasets are kept.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan and an estimate of time, and do nothing else.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    app.command("demo")(demo)
    app.command("reproduce")(reproduce)


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write into.")] = Path("runs/demo"),
    examples: Annotated[int, typer.Option(min=1, max=1000, help="Test images to attack.")] = 150,
    workers: Annotated[int | None, typer.Option(min=1, help="Models at a time (default: 2, on one core 1).")] = None,
    dry_run: DryRun = False,
) -> None:
    """Train four small models, attack their explanations, and show what held: minutes on a laptop, nothing to download.

    What is finished is not done again: start it anew to continue, or after deleting a run to repeat that one.
    """
    from robattr.reproduce.targets import jobs

    made = jobs("table1", out, datasets=("fashion-mini",), examples=examples)
    together = min(2, os.cpu_count() or 1) if workers is None else workers
    if dry_run:
        _describe(made, "cpu", together=together)
        return
    _execute(made, device="cpu", data_dir=None, workers=together)
    _show(made, out, title="Attribution robustness: the demo")


def reproduce(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="table1, table2, table3, figure1 or figure2.")],
    datasets: Annotated[str, typer.Option(help="Some of the target's datasets, with commas (default: all).")] = "",
    recipes: Annotated[str, typer.Option(help="paper, or tuned: other networks and settings, at less cost.")] = "paper",
    examples: Annotated[int | None, typer.Option(min=1, help="The first N test examples (default: all).")] = None,
    protocol: Annotated[str, typer.Option(help="paper, or strict: the worst case over many more attacks.")] = "paper",
    seed: Annotated[int, typer.Option(min=0, help="Of the trainings; each seed has runs of its own.")] = 0,
    workers: Annotated[int, typer.Option(min=1, help="Models at a time: several small ones fill a GPU better.")] = 1,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Default: runs/paper or runs/tuned.")] = None,
    device: Device = "auto",
    data_dir: DataDir = None,
    dry_run: DryRun = False,
) -> None:
    """Reproduce a table or figure of the paper: train what is missing, evaluate, render. Start it again to continue."""
    from robattr.reporting.figures import write_figures
    from robattr.reproduce.plan import results
    from robattr.reproduce.targets import TARGETS, jobs

    folder = out or Path("runs") / recipes
    names = [name.strip() for name in datasets.split(",") if name.strip()]
    made = jobs(target, folder, datasets=names, kind=recipes, examples=examples, seed=seed, protocol=protocol)
    if dry_run:
        _describe(made, device, together=workers)
        return
    _execute(made, device=device, data_dir=data_dir, workers=workers)
    page = folder / "-".join([target, *([protocol] if protocol != "paper" else []), *([f"seed{seed}"] if seed else [])])
    write_figures(results(made), page)
    _show(made, page, title=TARGETS[target].title)


def _execute(jobs: list[Job], *, device: str, data_dir: Path | None, workers: int) -> None:
    """The jobs one after the other, or several at a time; exits where a signal stopped them."""
    from rich.console import Console

    from robattr.reproduce import plan
    from robattr.reproduce.workers import run_parallel

    console = Console(stderr=True, highlight=False)

    def say(text: str) -> None:
        console.print(text, markup=False, style="bold")

    planned = plan.steps(jobs)
    if workers == 1 or all(step.done for step in planned):
        stopped = plan.execute(planned, say=say, bar=_bar, device=device, data_dir=data_dir)
    else:
        try:
            stopped = run_parallel(jobs, workers=workers, device=device, data_dir=data_dir)
        except KeyboardInterrupt:
            # The processes have stopped, too: each after a checkpoint, or, at a second interrupt, at once.
            _stop("work side by side", signal.SIGINT)
    if stopped is not None:
        _stop(stopped.step.title, stopped.signal)


def _stop(during: str, number: int) -> NoReturn:
    typer.echo(f"stopped during: {during}; start the same command again to continue", err=True)
    raise typer.Exit(128 + number)


def _show(jobs: list[Job], folder: Path, *, title: str) -> None:
    """Write the page; print what was found, the table, and where the page is."""
    from rich.console import Console

    from robattr.reporting.findings import finding
    from robattr.reporting.html import write_page
    from robattr.reporting.run_results import group_evaluations
    from robattr.reporting.tables import rich_table, table
    from robattr.reproduce.plan import results

    runs = results(jobs)
    groups = group_evaluations(runs)
    page = write_page(runs, folder / "report.html", title=title)
    console = Console(highlight=False)
    for found in map(finding, groups):
        console.print("\n" + "\n".join([found.headline, *found.cautions]), markup=False)
    console.print()
    console.print(rich_table(table(groups), console))
    console.print(f"\nopen {page}", markup=False, soft_wrap=True)


def _describe(jobs: list[Job], device: str, *, together: int = 1) -> None:
    """Print the plan with the time of each step, timed here with the threads it will have."""
    import torch

    from robattr.reproduce.estimate import words
    from robattr.reproduce.plan import steps

    if together > 1:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // together))
    total = 0.0
    for step in steps(jobs):
        seconds = step.seconds(device)
        total += seconds
        typer.echo(f"{step.title:60} {'done' if step.done else 'about ' + words(seconds)}")
    typer.echo(f"{f'in all, on this machine, {together} at a time':60} about {words(total / together)}")


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
