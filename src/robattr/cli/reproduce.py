"""`robattr demo` and `robattr reproduce`: train, evaluate, and render a page."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from robattr._progress import LONG, say
from robattr._text import duration, printable, words
from robattr.cli._options import DataDir, Device, DryRun, Fresh, Protocol, Set, choices, choices_with_commas
from robattr.cli._tables import show_table, show_text
from robattr.data.known import NAMES

if TYPE_CHECKING:
    from robattr.reproduce import Job
    from robattr.reproduce.plan import Task


TARGETS = ("table1", "table2", "table3", "figure1", "figure2")


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    app.command("demo")(demo)
    app.command("reproduce")(reproduce)


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write into.")] = Path("runs/demo"),
    examples: Annotated[int, typer.Option(min=1, max=1000, help="Test images to attack.")] = 300,
    objectives: Annotated[
        str, typer.Option(help="Methods, or your own as MODULE:FUNCTION, with commas (default: the paper's four).")
    ] = "",
    workers: Annotated[int | None, typer.Option(min=1, help="Models at a time (default: 2, on one core 1).")] = None,
    fresh: Fresh = False,
    dry_run: DryRun = False,
) -> None:
    """Train small models, attack their explanations and show the result: minutes on a laptop, no download.

    It can be stopped at any moment: the same command continues, and what is finished is not repeated.
    """
    from robattr.reproduce import jobs

    made = jobs("table1", out, datasets=("fashion-mini",), examples=examples, objectives=words(objectives))
    together = min(2, os.cpu_count() or 1) if workers is None else workers
    if dry_run:
        _describe(made, "cpu", workers=together)
        return
    _execute(made, device="cpu", data_dir=None, workers=together, fresh=fresh)
    _show(made, out, title="Attribution robustness: the demo")


def reproduce(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET", help="table1, table2, table3, figure1 or figure2.", autocompletion=choices(*TARGETS)
        ),
    ],
    datasets: Annotated[
        str,
        typer.Option(
            help="Some of the target's datasets, with commas (default: all).",
            autocompletion=choices_with_commas(*NAMES),
        ),
    ] = "",
    recipes: Annotated[
        str,
        typer.Option(
            help="paper, or tuned: other networks and settings, which cost less.",
            autocompletion=choices("paper", "tuned"),
        ),
    ] = "paper",
    examples: Annotated[int | None, typer.Option(min=1, help="The first N test examples (default: all).")] = None,
    protocol: Protocol = "paper",
    set_: Set = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the training; each seed has its own runs.")] = 0,
    workers: Annotated[int, typer.Option(min=1, help="Models at a time: for several cores, or one GPU under MPS.")] = 1,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The folder to write into (default: runs/paper or runs/tuned).")
    ] = None,
    device: Device = "auto",
    data_dir: DataDir = None,
    fresh: Fresh = False,
    dry_run: DryRun = False,
) -> None:
    """Reproduce a table or figure of the paper: train what is missing, evaluate, render.

    It can be stopped at any moment: the same command continues, and what is finished is not repeated.
    """
    from robattr.reporting.figures import write_figures
    from robattr.reproduce import TARGETS, jobs, results

    folder = out or Path("runs") / recipes
    made = jobs(
        target, folder, datasets=words(datasets), kind=recipes, examples=examples, seed=seed, protocol=protocol,
        changes=set_ or (),
    )  # fmt: skip
    if dry_run:
        _describe(made, device, workers=workers)
        return
    _execute(made, device=device, data_dir=data_dir, workers=workers, fresh=fresh)
    page = folder / "-".join([target, *([protocol] if protocol != "paper" else []), *([f"seed{seed}"] if seed else [])])
    write_figures(results(made), page)
    _show(made, page, title=TARGETS[target].title)


def _execute(jobs: list[Job], *, device: str, data_dir: Path | None, workers: int, fresh: bool) -> None:
    """Execute the jobs, `workers` at a time; with `fresh`, discard their runs first. Exits if a signal stops them."""
    from robattr.reproduce import execute, execute_parallel, tasks
    from robattr.training.run_directory import discard

    for job in jobs if fresh else ():
        discard(job.path)
    planned = tasks(jobs)
    seconds = sum(_seconds(planned, device, workers=workers)) / workers
    if seconds >= LONG:
        left = sum(not task.done for task in planned)
        say(f"{left} of {len(planned)} tasks are left: about {duration(seconds)} here, {workers} at a time")
    if workers == 1 or all(task.done for task in planned):
        stopped = execute(planned, device=device, data_dir=data_dir)
    else:
        try:
            stopped = execute_parallel(jobs, workers=workers, device=device, data_dir=data_dir)
        except KeyboardInterrupt:  # the workers have stopped, too: after a checkpoint, or at a second interrupt at once
            _stop("parallel jobs", signal.SIGINT)
    if stopped is not None:
        _stop(stopped.task.title, stopped.signal)


def _stop(during: str, number: int) -> NoReturn:
    say(f"stopped during: {during}; the same command continues")
    raise typer.Exit(128 + number)


def _show(jobs: list[Job], folder: Path, *, title: str) -> None:
    """Write the page; print the findings, the table, the differences and the path of the page."""
    from robattr.metrics.columns import COLUMN
    from robattr.reporting.findings import DIFFERENCES, differences, finding
    from robattr.reporting.groups import group_evaluations
    from robattr.reporting.html import write_page
    from robattr.reporting.tables import BOLD, plain, table
    from robattr.reproduce import results

    runs = results(jobs)
    groups = group_evaluations(runs)
    page = write_page(runs, folder / "report.html", title=title)
    for found in map(finding, groups):
        show_text("", found.headline, *found.cautions)
    made = table(groups)
    show_table(*plain(made))
    show_text(made.caption.replace(BOLD, BOLD.replace("Bold", "*")))
    titles = [COLUMN[key].title for key in DIFFERENCES]
    for pair, *cells, examples in (row for group in groups for row in differences(group)):
        said = "; ".join(f"{title} {cell}" for title, cell in zip(titles, cells, strict=True))
        show_text(f"{pair}, on the {examples} examples scored in both: {said}")
    typer.echo(printable(f"open {page}"))


def _describe(jobs: list[Job], device: str, *, workers: int) -> None:
    """Print the tasks and their estimated times."""
    from robattr.reproduce import tasks

    planned = tasks(jobs)
    each = _seconds(planned, device, workers=workers)
    for task, seconds in zip(planned, each, strict=True):
        typer.echo(f"{task.title:60} {'done' if task.done else 'about ' + duration(seconds)}")
    typer.echo(f"{f'total on this machine, {workers} at a time':60} about {duration(sum(each) / workers)}")


def _seconds(planned: Sequence[Task], device: str, *, workers: int) -> list[float]:
    """Estimated seconds of each task, with as many threads as it will have; 0 where it is done."""
    import torch

    threads = torch.get_num_threads()
    if workers > 1:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))
    try:
        return [task.seconds(device) for task in planned]
    finally:
        torch.set_num_threads(threads)
