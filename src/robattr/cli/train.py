"""`robattr train` and `robattr sweep`."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from reprlib import repr as short
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robattr._progress import say
from robattr._text import printable
from robattr.cli._options import DataDir, Device, DryRun, Fresh, Set, Trust, choices, known_recipes, leads
from robattr.cli._tables import show_table, show_text
from robattr.errors import InvalidInput

if TYPE_CHECKING:
    from robattr.training.config import TrainConfig
    from robattr.training.loop import Outcome

Recipe = Annotated[
    str | None,
    typer.Argument(
        metavar="DATASET/METHOD",
        help="A recipe: mnist/ig-sum-norm. `robattr --list` shows them all.",
        autocompletion=known_recipes,
    ),
]
Config = Annotated[
    Path | None, typer.Option(metavar="FILE", help="A TOML file of settings, or an earlier run's config.json.")
]
Seed = Annotated[int | None, typer.Option(help="Seed of the training.")]
Precision = Annotated[
    str | None,
    typer.Option(
        help="fp32, tf32, bf16 or fp64 (default: the recipe's).", autocompletion=choices("fp32", "tf32", "bf16", "fp64")
    ),
]
Objective = Annotated[
    str | None,
    typer.Option(
        metavar="MODULE:FUNCTION", help="Your own objective: a function that returns it (docs/write_your_own.md)."
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    app.command("train")(train)
    app.command("sweep")(sweep)


def train(
    recipe: Recipe = None,
    set_: Set = None,
    config: Config = None,
    objective: Objective = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The run directory (default: runs/DATASET/METHOD-seedN).")
    ] = None,
    fresh: Fresh = False,
    device: Device = "auto",
    seed: Seed = None,
    data_dir: DataDir = None,
    precision: Precision = None,
    dry_run: DryRun = False,
    trust: Trust = False,
) -> None:
    """Train a model by a recipe. It can be stopped at any moment: the same command continues.

    On several GPUs or machines: torchrun … -m robattr train DATASET/METHOD (see docs/scaling.md).
    """
    words = [*(set_ or []), *_flags(seed=seed, precision=precision)]
    run = resolve(recipe, config=config, words=words, objective=objective, found=out, trust=trust)
    out = out or _default_out(run)
    if dry_run:
        _describe(run, out)
        return

    from robattr import training

    run = train_warm_start(run, device=device, data_dir=data_dir, begun=not fresh and _has_checkpoints(out))
    outcome = training.train(run, out, device=device, data_dir=data_dir, fresh=fresh)
    _report(run, outcome)


def _default_out(run: TrainConfig) -> Path:
    return Path("runs") / f"{run.recipe}-seed{run.seed}"


def _has_checkpoints(out: Path) -> bool:
    from robattr.training import checkpoint
    from robattr.training.run_directory import RunDirectory

    return bool(checkpoint.listed(RunDirectory(out).checkpoints))


def train_warm_start(run: TrainConfig, *, device: str, data_dir: Path | None, begun: bool = False) -> TrainConfig:
    """The run with a directory of weights as warm start, if it names a recipe: trains that recipe first, once.

    A run that has begun no longer needs those weights. Of several processes only the leader may reach the directory,
    so they do not train: the recipe must have been trained before.
    """
    from robattr import recipes
    from robattr.reproduce import Job
    from robattr.training.loop import train

    first = recipes.before(run)
    if first is None:
        return run
    held_out = first.recipe in recipes.names() and recipes.get(first.recipe).full and not first.full
    path = _default_out(replace(first, recipe=f"{first.recipe}-held-out") if held_out else first)
    alone = os.environ.get("WORLD_SIZE", "1") == "1"
    if alone and not begun and not Job(first, path, map="ig", examples=0).trained:
        say(f"{run.recipe} starts from {first.recipe}, which is trained first: {path}")
        _report(first, train(first, path, device=device, data_dir=data_dir))
    return replace(run, warm_start=path.as_posix())


def _report(run: TrainConfig, outcome: Outcome) -> None:
    """Print how the training ended; exits if a signal stopped it."""
    if not outcome.finished:
        number = outcome.stopped_by or signal.SIGTERM
        if leads():
            say(
                f"stopped by {signal.Signals(number).name} after step {outcome.step} of {run.steps}, which is saved: "
                "the same command continues"
            )
        raise typer.Exit(128 + number)
    if leads():
        accuracy = "" if outcome.val_accuracy is None else f"  validation accuracy {outcome.val_accuracy:.2%}"
        typer.echo(printable(f"{outcome.path}  {outcome.step} steps{accuracy}"))


def sweep(
    recipe: Recipe = None,
    over: Annotated[
        list[str] | None,
        typer.Option(
            "--over", metavar="KEY=V,V,…", help="Values of a setting, or KEY=LOW..HIGH with --trials; may be repeated."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The folder for the runs (default: runs/sweeps/DATASET/METHOD)."),
    ] = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Search by this many points instead of running the whole grid.")
    ] = None,
    examples: Annotated[
        int, typer.Option(min=0, help="Validation examples whose explanations are attacked; 0 compares accuracy alone.")
    ] = 100,
    set_: Set = None,
    config: Config = None,
    objective: Objective = None,
    fresh: Fresh = False,
    device: Device = "auto",
    seed: Seed = None,
    data_dir: DataDir = None,
    precision: Precision = None,
    trust: Trust = False,
) -> None:
    """Train over a grid of settings and compare them on validation data, as the paper does for m.

    It can be stopped at any moment: the same command continues. On more machines that share the folder, it goes faster.
    """
    from robattr.runs import measure_on_validation
    from robattr.training.axes import parse_axes
    from robattr.training.sweep import cells, explained, table
    from robattr.training.sweep import sweep as begin

    if not over:
        raise InvalidInput("a sweep needs at least one --over KEY=VALUE,VALUE,…, for example --over m=10,20,50")
    words = [*(set_ or []), *_flags(seed=seed, precision=precision)]
    run = resolve(recipe, config=config, words=words, objective=objective, trust=trust)
    axes = parse_axes(over)
    out = out or Path("runs") / "sweeps" / run.recipe

    def prepare(point: TrainConfig, path: Path) -> TrainConfig:
        return train_warm_start(point, device=device, data_dir=data_dir, begun=_has_checkpoints(path))

    # The training before each measurement writes the configs, with names from this command line.
    measure = measure_on_validation(examples, device=device, data_dir=data_dir, trust=True)
    found, stopped_by = begin(
        run,
        axes,
        out,
        measure=measure,
        prepare=prepare,
        by=f"{examples} examples",
        trials=trials,
        device=device,
        data_dir=data_dir,
        fresh=fresh,
    )
    if found and sys.stdout.isatty():
        headings, *rows = cells(found)
        show_table(headings, rows)
        show_text(*explained(found))
    else:
        typer.echo(table(found), nl=False)
    if stopped_by is not None:
        say("stopped: the same command continues")
        raise typer.Exit(128 + stopped_by)


def resolve(
    recipe: str | None,
    *,
    config: Path | None,
    words: list[str],
    objective: str | None = None,
    found: Path | None = None,
    trust: bool = False,
) -> TrainConfig:
    """The configuration of a command: the recipe, changed by the file, changed by the words.

    `objective` names an objective of the user's, which takes the place of the method. A function that the file names,
    network or objective, is accepted only with `trust`, or where the words or `objective` name another.

    Without a recipe, the file must name one (`recipe = "mnist/ig-norm"`), or set at least the dataset and the method.
    A run that is `found` where this one goes has such a file.
    """
    from robattr import recipes
    from robattr.models.by_name import is_name
    from robattr.runs import trusted
    from robattr.training import settings
    from robattr.training.config import TrainConfig
    from robattr.training.custom import named as named_objective

    if recipe and recipe not in recipes.names() and Path(recipe, "config.json").is_file():
        raise InvalidInput(
            f"expected a recipe, got the run directory {recipe}: `robattr train --out {recipe}` continues it, "
            f"--config {Path(recipe, 'config.json')} takes its settings"
        )
    if config is None and recipe is None and found is not None and (found / "config.json").exists():
        config = found / "config.json"
    file: dict[str, Any] = {} if config is None else settings.read_file(config)
    if config is not None:
        typed = {word.partition("=")[0].strip() for word in words}
        if "model" not in typed and ":" in (net := str(file.get("model", ""))):
            trusted(net, of=config, trust=trust, remedy=f"name it yourself, --set model={net}")
        text = str(file.get("custom", "")) if file.get("method") == "custom" and "method" not in typed else ""
        if objective is None and is_name(text):
            objective = trusted(text, of=config, trust=trust, remedy=f"name it yourself, --objective {text}")
    named = file.pop("recipe", None)
    if not isinstance(named, str | None):
        raise InvalidInput(f"expected the name of a recipe in {config}, got recipe = {short(named)}")
    name = str(recipe or named or "")
    whole = recipe is None and {"dataset", "method"} <= file.keys()  # needs no recipe
    if whole and name not in recipes.names():
        base = TrainConfig(recipe=name or "custom")
    elif name:
        base = recipes.get(name)
    else:
        raise InvalidInput("no recipe given: name one, such as fashion-mini/ig-norm (`robattr --list` shows all)")
    if objective is None:
        return settings.change_by_words(settings.change(base, file), words)
    file = {key: value for key, value in file.items() if key not in settings.OBJECTIVE}
    given = dict(map(settings.parse_word, words))
    ramps = {key: value for key, value in given.items() if key.endswith("_ramp")}  # the objective may not take any
    run = settings.change(base, {**file, **ramps}).with_objective(named_objective(objective))
    return settings.change_by_words(run, words)


def _flags(*, seed: int | None, precision: str | None) -> list[str]:
    """The keys with their own flags, as words."""
    given = {"seed": seed, "precision": precision}
    return [f"{key}={value}" for key, value in given.items() if value is not None]


def _describe(run: TrainConfig, out: Path) -> None:
    from robattr.training.settings import to_toml

    typer.echo(printable(f"# {out}"))
    for note in (f"{run.second_order} second-order gradients per example and update", *run.unreached()):
        typer.echo(printable(f"# {note}"))
    typer.echo(to_toml(run), nl=False)
