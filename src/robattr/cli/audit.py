"""`robattr audit`, `robattr harden` and `robattr doctor`: commands for the user's own model."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robattr._progress import Watching, say
from robattr._text import interval, number, numbers, printable, whole_numbers, words
from robattr.cli._options import (
    MAPS,
    Compile,
    DataDir,
    Device,
    Fresh,
    Iterations,
    Trust,
    choices,
    choices_with_commas,
    known_datasets,
    known_runs,
    typed_command,
)
from robattr.cli._tables import show_text
from robattr.errors import InvalidInput

if TYPE_CHECKING:
    from torch import nn

    from robattr.data import Dataset
    from robattr.reporting.verdict import Verdict

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Your model as package.module:factory, a function without arguments, which is imported and called. Or a "
        "run directory, a .safetensors file or a model of the zoo.",
        autocompletion=known_runs,
    ),
]
Weights = Annotated[Path | None, typer.Option(help="Weights: .safetensors, or a .pt file of tensors only.")]
DATA = "A folder with one folder of images per class, or a dataset's name."
Data = Annotated[str, typer.Option(help=DATA, autocompletion=known_datasets)]
Bounds = Annotated[str, typer.Option(help="Range of the inputs: 0,1 or 0,255.")]
Mean = Annotated[
    str | None, typer.Option(help="The model's normalisation, per channel: 0.485,0.456,0.406 is subtracted …")
]
Std = Annotated[str | None, typer.Option(help="… and the difference divided by 0.229,0.224,0.225.")]
Eps = Annotated[
    str | None,
    typer.Option(
        help="Radius of the attack, in units of the bounds: 8/255 (default: the dataset's, else 8/255 of the range)."
    ),
]
Size = Annotated[
    int | None, typer.Option(min=1, help="Side to which images are resized (default: a run's, else their own).")
]
Channels = Annotated[int | None, typer.Option(min=1, help="1 or 3 (default: what the first convolution takes).")]
Classes = Annotated[Path | None, typer.Option(help="A text file with the name of each output, one per line, in order.")]
Maps = Annotated[
    str,
    typer.Option(
        help="Explanations, with commas: ig, sg, gi, smoothgrad, captum:Saliency, …",
        autocompletion=choices_with_commas(*MAPS, "captum:Saliency"),
    ),
]
Examples = Annotated[int, typer.Option(min=1, help="How many examples to audit.")]
Seed = Annotated[int, typer.Option(help="Seed for the choice of examples and the attacks.")]
Points = Annotated[
    int | None,
    typer.Option(min=1, help="Points of the path of integrated gradients (default: the dataset's, else 100)."),
]
Batch = Annotated[int, typer.Option(min=1, help="Examples per update of the training.")]

Precision = Annotated[
    str,
    typer.Option(
        help="fp32, tf32 or bf16 products; auto: tf32 on a GPU where the first examples' scores stay the same.",
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
    model: Model,
    data: Data,
    bounds: Bounds = "0,1",
    weights: Weights = None,
    mean: Mean = None,
    std: Std = None,
    eps: Eps = None,
    maps: Maps = "ig",
    protocol: Annotated[
        str, typer.Option(help="both, paper, or strict.", autocompletion=choices("both", "paper", "strict"))
    ] = "both",
    examples: Examples = 100,
    size: Size = None,
    channels: Channels = None,
    classes: Classes = None,
    iterations: Iterations = None,
    points: Points = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The page; records go to a folder beside it.")] = Path(
        "audit.html"
    ),
    fresh: Fresh = False,
    seed: Seed = 0,
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
            open_model(model, weights, trust=trust), open_data(data, data_dir),
            bounds=interval(bounds, "--bounds"), preprocessing=preprocessing(mean, std, weights),
            eps=None if eps is None else number(eps, "--eps"), maps=maps, protocol=protocol,  # type: ignore[arg-type]
            examples=examples, steps=iterations, points=points, out=out, name=model.rpartition("/")[2],
            size=size, channels=channels, classes=class_names(classes), seed=seed, device=device,
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
    model: Model,
    data: Data,
    bounds: Bounds = "0,1",
    weights: Weights = None,
    mean: Mean = None,
    std: Std = None,
    objective: Annotated[
        str, typer.Option(help="ig-norm, ig-sum-norm, madry, …, or MODULE:FUNCTION that returns your own objective.")
    ] = "ig-sum-norm",
    eps: Eps = None,
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
    maps: Maps = "ig",
    examples: Examples = 50,
    iterations: Iterations = None,
    points: Points = None,
    size: Size = None,
    channels: Channels = None,
    classes: Classes = None,
    held_out: Annotated[float, typer.Option(min=0, max=0.45, help="Share held out for the audits.")] = 0.1,
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder for the runs and report.html.")] = Path(
        "hardened"
    ),
    fresh: Fresh = False,
    seed: Seed = 0,
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
            open_model(model, weights, trust=trust), open_data(data, data_dir),
            objective=named(objective) if ":" in objective else objective, out=out,
            bounds=interval(bounds, "--bounds"), preprocessing=preprocessing(mean, std, weights),
            eps=None if eps is None else number(eps, "--eps"), steps=steps, batch=batch, lr=number(lr, "--lr"),
            batch_norm=batch_norm,  # type: ignore[arg-type]
            freeze=words(freeze), chunk=chunk,
            changes=dict(parse_word(word) for word in set_ or []), maps=maps, examples=examples,
            audit_steps=iterations, points=points, name=model.rpartition("/")[2],
            size=size, channels=channels, classes=class_names(classes),
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
    model: Model,
    data: Annotated[str | None, typer.Option(help=DATA, autocompletion=known_datasets)] = None,
    bounds: Bounds = "0,1",
    weights: Weights = None,
    mean: Mean = None,
    std: Std = None,
    shape: Annotated[str | None, typer.Option(help="Shape of one input, if no data are given: 3,224,224.")] = None,
    size: Size = None,
    channels: Channels = None,
    classes: Classes = None,
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
        open_model(model, weights, trust=trust), None if data is None else open_data(data, data_dir),
        bounds=interval(bounds, "--bounds"), preprocessing=preprocessing(mean, std, weights),
        shape=None if shape is None else whole_numbers(shape, "--shape"),
        size=size, channels=channels, classes=class_names(classes),
        plan=Plan(m, m_attack, attack_steps, batch), device=device,
    )  # fmt: skip
    for check in found.checks:
        typer.secho(f"{check.level:4}  ", fg=COLOURS[check.level], nl=False)
        typer.echo(f"{check.name}: {printable(check.finding)}")
        if check.remedy:
            typer.echo(f"      → {printable(check.remedy)}")
    if not found.healthy:
        raise typer.Exit(1)


def open_model(ref: str, weights: Path | None, *, trust: bool) -> nn.Module:
    """The user's model; before a factory is imported, which runs the user's code, a line says so."""
    from robattr import models
    from robattr.runs import load_model

    if ":" in ref:
        say(f"importing {ref}: this runs its code")
        made = models.from_factory(ref)
    elif "/" in ref or Path(ref).exists():
        made = load_model(ref, trust=trust)
    else:
        raise InvalidInput(
            "expected package.module:factory, a run directory, a .safetensors file or a model of the zoo, got "
            f"{ref!r}: for a function of {ref}.py, write {ref}:factory; `robattr --list` shows the zoo"
        )
    return made if weights is None else models.load_weights(made, weights)


def open_data(data: str, data_dir: Path | None) -> str | Dataset:
    """The user's folder, or the dataset of that name in `data_dir`."""
    from robattr import data as datasets

    return datasets.load(data, data_dir) if data in datasets.names() and data_dir is not None else data


def preprocessing(mean: str | None, std: str | None, weights: Path | None) -> dict[str, Any] | None:
    """The given mean and std, checked against those saved with the weights."""
    from robattr.auditing.wrapped_model import check_preprocessing

    given = {key: numbers(text, f"--{key}") for key, text in (("mean", mean), ("std", std)) if text is not None}
    check_preprocessing(given, weights)
    return given or None


def class_names(path: Path | None) -> list[str] | None:
    if path is None:
        return None
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()  # some editors write a byte-order mark
    except (OSError, UnicodeDecodeError) as cause:
        why = getattr(cause, "strerror", None) or "it is not UTF-8"
        raise InvalidInput(f"expected a text file of class names, got {path} ({why}): correct --classes") from cause
    return [line.strip() for line in lines if line.strip()]


def _show(verdict: Verdict, of: str = "") -> None:
    for mark, lines in (
        (of, [verdict.headline]), ("  ", verdict.findings), ("  doubt: ", verdict.doubts), ("  → ", verdict.next_steps),
    ):  # fmt: skip
        for line in lines:
            show_text(f"{mark}{line}")
