"""`robattr doctor`, `robattr audit` and `robattr harden`: commands for the user's own model."""

from __future__ import annotations

import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robattr._progress import Watching
from robattr._text import interval, number, numbers, printable, whole_numbers
from robattr.cli._options import MAPS, Device, Fresh, Iterations, choices, choices_with_commas
from robattr.errors import InvalidInput

if TYPE_CHECKING:
    from torch import nn

    from robattr.reporting.verdict import Verdict

Model = Annotated[
    str,
    typer.Option(
        help="package.module:factory, your function without arguments that returns the module; it is imported and "
        "run. Or a .safetensors file or run directory of robattr."
    ),
]
Weights = Annotated[Path | None, typer.Option(help="Weights: .safetensors, or a .pt file of tensors only.")]
Data = Annotated[str, typer.Option(help="A folder with a folder of images for each class, or a dataset's name.")]
Bounds = Annotated[str, typer.Option(help="Range of the inputs: 0,1 or 0,255.")]
Mean = Annotated[str | None, typer.Option(help="Subtracted per channel inside the network: 0.485,0.456,0.406.")]
Std = Annotated[str | None, typer.Option(help="Divided by, per channel: 0.229,0.224,0.225.")]
Eps = Annotated[str | None, typer.Option(help="Radius of the attack in units of the bounds: 8/255.")]
Size = Annotated[int | None, typer.Option(min=1, help="Side to which images are resized (default: their own).")]
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
Trust = Annotated[
    bool, typer.Option("--trust-code", help="Run the function that the config of the run directory names.")
]
Points = Annotated[int | None, typer.Option(min=1, help="Points of the path of integrated gradients.")]

Precision = Annotated[
    str,
    typer.Option(
        help="fp32, tf32 or bf16 products; auto: tf32 on a GPU where the first examples' maps stay the same.",
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
    precision: Precision = "auto",
    compiled: Annotated[
        bool | None,
        typer.Option("--compile/--no-compile", help="Compile the attack (default: on a GPU, if it takes minutes)."),
    ] = None,
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
            _model(model, weights, trust=trust), data,
            bounds=interval(bounds, "--bounds"), preprocessing=_preprocessing(mean, std, weights),
            eps=None if eps is None else number(eps, "--eps"), maps=maps, protocol=protocol,  # type: ignore[arg-type]
            examples=examples, steps=iterations, points=points, out=out, name=model.rpartition("/")[2],
            size=size, channels=channels, classes=_names(classes), seed=seed, device=device,
            compiled=compiled, certify=certify, precision=precision, fresh=fresh,
            command=shlex.join(["robattr", *sys.argv[1:]]), watch=watch,
        )  # fmt: skip
    for note in found.notes:
        _say(f"note: {note}")
    if found.skipped:
        _say(f"note: {len(found.skipped)} files are not readable images and were skipped; the page lists them")
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
    batch: Annotated[int, typer.Option(min=1)] = 16,
    lr: Annotated[str, typer.Option(help="Learning rate.")] = "1e-4",
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any other key of robattr train.")
    ] = None,
    batch_norm: Annotated[str, typer.Option(help="frozen: keep running statistics; train: update them.")] = "frozen",
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
            _model(model, weights, trust=trust), data,
            objective=named(objective) if ":" in objective else objective, out=out,
            bounds=interval(bounds, "--bounds"), preprocessing=_preprocessing(mean, std, weights),
            eps=None if eps is None else number(eps, "--eps"), steps=steps, batch=batch, lr=number(lr, "--lr"),
            batch_norm=batch_norm,  # type: ignore[arg-type]
            freeze=[part.strip() for part in freeze.split(",") if part.strip()], chunk=chunk,
            changes=dict(parse_word(word) for word in set_ or []), maps=maps, examples=examples,
            audit_steps=iterations, points=points, size=size, channels=channels, classes=_names(classes),
            held_out=held_out, seed=seed, device=device, precision=precision, fresh=fresh,
            command=shlex.join(["robattr", *sys.argv[1:]]), watch=watch,
        )  # fmt: skip
    if found.after is None:
        _say(f"stopped after step {found.outcome.step} of {steps}, which is saved: the same command continues")
        raise typer.Exit(128 + (found.outcome.stopped_by or signal.SIGTERM))
    _say(f"before: {found.before.headline}")
    _show(found.after)
    typer.echo(printable(f"wrote {found.page} and {found.outcome.path / 'model.safetensors'}"))


def doctor(
    model: Model,
    data: Annotated[str | None, typer.Option(help="A folder of class folders of images, or a dataset's name.")] = None,
    bounds: Bounds = "0,1",
    weights: Weights = None,
    mean: Mean = None,
    std: Std = None,
    shape: Annotated[str | None, typer.Option(help="Shape of one input, if no data are given: 3,224,224.")] = None,
    size: Size = None,
    channels: Channels = None,
    classes: Classes = None,
    m: Annotated[int, typer.Option(min=1, help="Nodes of the path in the planned training.")] = 10,
    m_attack: Annotated[int, typer.Option(min=1)] = 5,
    attack_steps: Annotated[int, typer.Option(min=1)] = 7,
    batch: Annotated[int, typer.Option(min=1)] = 16,
    device: Device = "auto",
    trust: Trust = False,
) -> None:
    """Check your model in seconds: what fails in an audit, what to do, and what it will cost.

    The exit code is 1 if a check fails.
    """
    from robattr.auditing import Plan
    from robattr.auditing import doctor as examine

    found = examine(
        _model(model, weights, trust=trust), data,
        bounds=interval(bounds, "--bounds"), preprocessing=_preprocessing(mean, std, weights),
        shape=None if shape is None else whole_numbers(shape, "--shape"),
        size=size, channels=channels, classes=_names(classes),
        plan=Plan(m, m_attack, attack_steps, batch), device=device,
    )  # fmt: skip
    for check in found.checks:
        typer.secho(f"{check.level:4}  ", fg=COLOURS[check.level], nl=False)
        typer.echo(f"{check.name}: {printable(check.finding)}")
        if check.remedy:
            typer.echo(f"      → {printable(check.remedy)}")
    if not found.healthy:
        raise typer.Exit(1)


def _model(ref: str, weights: Path | None, *, trust: bool) -> nn.Module:
    """The user's model. A message precedes the import of a factory, because it runs the user's code."""
    from robattr import models
    from robattr.runs import load_model

    if ":" in ref:
        _say(f"importing {ref}: this runs its code")
        made = models.from_factory(ref)
    elif "/" in ref or Path(ref).exists():
        made = load_model(ref, trust=trust)
    else:
        raise InvalidInput(f"expected a function that returns the model, {ref}:factory, or a file or run, got {ref!r}")
    return made if weights is None else models.load_weights(made, weights)


def _preprocessing(mean: str | None, std: str | None, weights: Path | None) -> dict[str, Any] | None:
    """The given mean and std, checked against those saved with the weights."""
    from robattr.auditing.wrapped_model import check_preprocessing

    given = {key: numbers(text, f"--{key}") for key, text in (("mean", mean), ("std", std)) if text is not None}
    check_preprocessing(given, weights)
    return given or None


def _names(path: Path | None) -> list[str] | None:
    if path is None:
        return None
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()  # some editors write a byte-order mark
    except (OSError, UnicodeDecodeError) as cause:
        raise InvalidInput(f"the class names {path} could not be read ({cause}): expected a text file") from cause
    return [line.strip() for line in lines if line.strip()]


def _say(text: str) -> None:
    typer.echo(printable(text), err=True)


def _show(verdict: Verdict) -> None:
    """Print the verdict."""
    for mark, lines in (
        ("", [verdict.headline]), ("  ", verdict.findings), ("  doubt: ", verdict.doubts), ("  → ", verdict.next_steps),
    ):  # fmt: skip
        for line in lines:
            typer.echo(f"{mark}{printable(line)}")
