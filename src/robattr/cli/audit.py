"""`robattr audit`, `robattr harden` and `robattr doctor`: commands for the user's own model."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from robattr._progress import Watching, say
from robattr._text import interval, number, printable, whole_numbers, words
from robattr.cli import _own_model as own
from robattr.cli._options import (
    Compile,
    DataDir,
    Device,
    Fresh,
    Iterations,
    Trust,
    choices,
    known_datasets,
    typed_command,
)
from robattr.cli._tables import show_text

if TYPE_CHECKING:
    from robattr.reporting.verdict import Verdict

Examples = Annotated[int, typer.Option(min=1, help="How many examples to audit.")]
Batch = Annotated[int, typer.Option(min=1, help="Examples per update of the training.")]

Precision = Annotated[
    str,
    typer.Option(
        help="fp32, tf32 or bf16 products; auto: on a GPU bf16 or tf32 where the first examples' scores stay.",
        autocompletion=choices("auto", "fp32", "tf32", "bf16"),
    ),
]

COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    app.command("audit")(audit)
    app.command("harden")(harden)
    app.command("doctor")(doctor)


def audit(
    model: own.Model,
    data: own.Data,
    bounds: own.Bounds = "0,1",
    weights: own.Weights = None,
    mean: own.Mean = None,
    std: own.Std = None,
    eps: own.Eps = None,
    maps: own.Maps = "ig",
    protocol: Annotated[
        str, typer.Option(help="both, paper, or strict.", autocompletion=choices("both", "paper", "strict"))
    ] = "both",
    examples: Examples = 100,
    size: own.Size = None,
    channels: own.Channels = None,
    classes: own.Classes = None,
    iterations: Iterations = None,
    points: own.Points = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The page; records go to a folder beside it.")] = Path(
        "audit.html"
    ),
    fresh: Fresh = False,
    seed: own.Seed = 0,
    device: Device = "auto",
    data_dir: DataDir = None,
    precision: Precision = "auto",
    compiled: Compile = None,
    certify: Annotated[
        bool, typer.Option("--certify", help="Also prove bounds of smoothed explanations; robattr certify has options.")
    ] = False,
    trust: Trust = False,
) -> None:
    """Attack the explanations of your model and report on one page how robust they are.

    It can be stopped at any moment: the same command continues.
    """
    from robattr.auditing import audit as begin

    with Watching() as watch:
        found = begin(
            own.open_model(model, weights, trust=trust), own.open_data(data, data_dir),
            bounds=interval(bounds, "--bounds"), preprocessing=own.preprocessing(mean, std, weights),
            eps=None if eps is None else number(eps, "--eps"), maps=maps, protocol=protocol,  # type: ignore[arg-type]
            examples=examples, steps=iterations, points=points, out=out, name=model.rpartition("/")[2],
            size=size, channels=channels, classes=own.class_names(classes), seed=seed, device=device,
            compiled=compiled, certify=certify, precision=precision, fresh=fresh,
            command=typed_command(), watch=watch,
        )  # fmt: skip
    for note in found.notes:
        say(f"note: {note}")
    if found.skipped:
        say(f"note: {len(found.skipped)} files are not readable images and were skipped; the page lists them")
    _show(found.verdict)
    if found.page is not None:
        typer.echo(printable(f"wrote {found.page}"))


def harden(
    model: own.Model,
    data: own.Data,
    bounds: own.Bounds = "0,1",
    weights: own.Weights = None,
    mean: own.Mean = None,
    std: own.Std = None,
    objective: Annotated[
        str, typer.Option(help="ig-norm, ig-sum-norm, madry, …, or MODULE:FUNCTION that returns your own objective.")
    ] = "ig-sum-norm",
    eps: own.Eps = None,
    steps: Annotated[int, typer.Option(min=1, help="Updates of the training.")] = 300,
    batch: Batch = 16,
    lr: Annotated[str, typer.Option(help="Learning rate.")] = "1e-4",
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any other key of robattr train.")
    ] = None,
    batch_norm: Annotated[
        str, typer.Option(help="frozen: keep the running statistics; train: update them.")
    ] = "frozen",
    freeze: Annotated[str, typer.Option(help="Layers that keep their weights, separated by commas.")] = "",
    chunk: Annotated[int | None, typer.Option(min=1, help="Nodes in memory at once (default: what fits).")] = None,
    maps: own.Maps = "ig",
    examples: Examples = 50,
    iterations: Iterations = None,
    points: own.Points = None,
    size: own.Size = None,
    channels: own.Channels = None,
    classes: own.Classes = None,
    held_out: Annotated[float, typer.Option(min=0, max=0.45, help="Share held out for the audits.")] = 0.1,
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder for the runs and report.html.")] = Path(
        "hardened"
    ),
    fresh: Fresh = False,
    seed: own.Seed = 0,
    device: Device = "auto",
    data_dir: DataDir = None,
    precision: Precision = "auto",
    trust: Trust = False,
) -> None:
    """Fine-tune your model for robust explanations, and audit it before and after.

    It can be stopped at any moment: the same command continues.
    """
    from robattr.auditing import harden as begin
    from robattr.training.custom import named
    from robattr.training.settings import parse_word

    with Watching() as watch:
        found = begin(
            own.open_model(model, weights, trust=trust), own.open_data(data, data_dir),
            objective=named(objective) if ":" in objective else objective, out=out,
            bounds=interval(bounds, "--bounds"), preprocessing=own.preprocessing(mean, std, weights),
            eps=None if eps is None else number(eps, "--eps"), steps=steps, batch=batch, lr=number(lr, "--lr"),
            batch_norm=batch_norm,  # type: ignore[arg-type]
            freeze=words(freeze), chunk=chunk,
            changes=dict(parse_word(word) for word in set_ or []), maps=maps, examples=examples,
            audit_steps=iterations, points=points, name=model.rpartition("/")[2],
            size=size, channels=channels, classes=own.class_names(classes),
            held_out=held_out, seed=seed, device=device, precision=precision, fresh=fresh,
            command=typed_command(), watch=watch,
        )  # fmt: skip
    if found.after is None:
        say(f"stopped after step {found.outcome.step} of {steps}, which is saved: the same command continues")
        raise typer.Exit(128 + (found.outcome.stopped_by or signal.SIGTERM))
    show_text(f"before: {found.before.headline}")
    _show(found.after, "after: ")
    typer.echo(printable(f"wrote {found.page} and {found.outcome.path / 'model.safetensors'}"))


def doctor(
    model: own.Model,
    data: Annotated[str | None, typer.Option(help=own.DATA, autocompletion=known_datasets)] = None,
    bounds: own.Bounds = "0,1",
    weights: own.Weights = None,
    mean: own.Mean = None,
    std: own.Std = None,
    shape: Annotated[str | None, typer.Option(help="Shape of one input, if no data are given: 3,224,224.")] = None,
    size: own.Size = None,
    channels: own.Channels = None,
    classes: own.Classes = None,
    m: Annotated[int, typer.Option(min=1, help="Nodes of the path in the training whose cost is estimated.")] = 10,
    m_attack: Annotated[int, typer.Option(min=1, help="Nodes of the path in its attack.")] = 5,
    attack_steps: Annotated[int, typer.Option(min=1, help="Steps of its attack.")] = 7,
    batch: Batch = 16,
    device: Device = "auto",
    data_dir: DataDir = None,
    trust: Trust = False,
) -> None:
    """Check your model in seconds: what fails in an audit, what to do, and what it will cost.

    The exit code is 1 if a check fails.
    """
    from robattr.auditing import Plan
    from robattr.auditing import doctor as examine

    found = examine(
        own.open_model(model, weights, trust=trust), None if data is None else own.open_data(data, data_dir),
        bounds=interval(bounds, "--bounds"), preprocessing=own.preprocessing(mean, std, weights),
        shape=None if shape is None else whole_numbers(shape, "--shape"),
        size=size, channels=channels, classes=own.class_names(classes),
        plan=Plan(m, m_attack, attack_steps, batch), device=device,
    )  # fmt: skip
    for check in found.checks:
        typer.secho(f"{check.level:4}  ", fg=COLOURS[check.level], nl=False)
        typer.echo(f"{check.name}: {printable(check.finding)}")
        if check.remedy:
            typer.echo(f"      → {printable(check.remedy)}")
    if not found.healthy:
        raise typer.Exit(1)


def _show(verdict: Verdict, of: str = "") -> None:
    for mark, lines in (
        (of, [verdict.headline]), ("  ", verdict.findings), ("  doubt: ", verdict.doubts), ("  → ", verdict.next_steps),
    ):  # fmt: skip
        for line in lines:
            show_text(f"{mark}{line}")
