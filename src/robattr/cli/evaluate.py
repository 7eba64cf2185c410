"""`robattr evaluate`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robattr._progress import Watching
from robattr._text import number, words
from robattr.cli._options import (
    MAPS,
    Compile,
    DataDir,
    Device,
    Fresh,
    Iterations,
    Protocol,
    Trust,
    choices,
    choices_with_commas,
    known_datasets,
    known_runs,
    typed_command,
)
from robattr.cli._tables import show_table, show_text
from robattr.errors import InvalidInput

if TYPE_CHECKING:
    from robattr.data import Dataset
    from robattr.evaluation import Protocol as Settings


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("evaluate")(evaluate)


def evaluate(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="A run directory, a weights file, or a model of the zoo (`robattr --list`).",
            autocompletion=known_runs,
        ),
    ],
    protocol: Protocol = "paper",
    maps: Annotated[
        str,
        typer.Option(
            help="Explanations, with commas: ig, sg, gi, smoothgrad.", autocompletion=choices_with_commas(*MAPS)
        ),
    ] = "ig",
    examples: Annotated[int | None, typer.Option(min=1, help="The first N examples (default: all).")] = None,
    eps: Annotated[
        str | None,
        typer.Option(help="Radius of the attack, in units of the pixels: 8/255 (default: the protocol's)."),
    ] = None,
    iterations: Iterations = None,
    transfer: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="Follow the gradients of this model instead: a transfer attack.",
            autocompletion=known_runs,
        ),
    ] = None,
    split: Annotated[
        str,
        typer.Option(help="test, or validation to choose settings by.", autocompletion=choices("test", "validation")),
    ] = "test",
    data: Annotated[
        str | None,
        typer.Option(
            help="A dataset's name or a folder of class folders of images (default: what RUN was trained on).",
            autocompletion=known_datasets,
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The folder for the records (default: RUN/records).")
    ] = None,
    fresh: Fresh = False,
    device: Device = "auto",
    data_dir: DataDir = None,
    precision: Annotated[
        str,
        typer.Option(help="fp32, tf32 or bf16 products on a GPU.", autocompletion=choices("fp32", "tf32", "bf16")),
    ] = "tf32",
    compiled: Compile = None,
    trust: Trust = False,
) -> None:
    """Attack a model's predictions and explanations; print and record the paper's four columns with 95% intervals.

    It can be stopped at any moment: the same command continues. On several GPUs: torchrun … -m robattr evaluate RUN.
    """
    from robattr.attacks.maps import by_name
    from robattr.engine.files import write_json
    from robattr.engine.processes import join
    from robattr.evaluation import OutputDir
    from robattr.evaluation import evaluate as run_evaluation
    from robattr.runs import open_run

    opened = open_run(run, dataset=data, data_dir=data_dir, trust=trust)
    model = opened.model
    radius = None if eps is None else number(eps, "--eps")
    settings = _protocol(protocol, opened.data, eps=radius, iterations=iterations, split=split)
    source = None
    if transfer is not None:
        attacked = data or (opened.config.dataset if opened.config else None)  # not what the other one was trained on
        source = open_run(transfer, dataset=attacked, data_dir=data_dir, trust=trust).model
        settings = replace(settings, name=f"{settings.name}@transfer")
    names = words(maps) or [""]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InvalidInput(f"expected each map once, got {twice!r} more than once in {maps!r}")
    if captum := next((name for name in names if name.startswith("captum:")), None):
        raise InvalidInput(
            f"expected maps of the paper's evaluation, got {captum!r}: `robattr audit` takes Captum's methods"
        )
    asked = [by_name(name, N=settings.N, bounds=settings.bounds) for name in names]
    folder = out or _records(Path(run))
    x, y, ids = opened.data.examples(split, examples)
    if not len(x):
        raise InvalidInput(f"{run} has no {split} images (with full=true it trains on them): use another --split")
    with join(device) as world:
        model.to(world.device)
        source = None if source is None else source.to(world.device)
        metadata = opened.about(split=split, command=typed_command())
        for map in asked:
            with Watching(shown=world.leads) as watch:
                found = run_evaluation(
                    model,
                    x,
                    y,
                    protocol=settings,
                    map=map,
                    ids=ids.tolist(),
                    source=source,
                    out=OutputDir(folder, world.rank, world.size, fresh=fresh),
                    metadata=metadata,
                    precision=precision,
                    compiled=compiled,
                    watch=watch,
                )
            if world.leads:
                _show(found.summary)
        if world.leads:
            about = folder.parent / "config.json"  # with which `report` and `record` read a folder as a run
            if out is None and not about.exists():
                config = {"name": Path(run).stem} if opened.config is None else opened.config.as_dict()
                write_json(about, {**config, "dataset": opened.data.name})
            typer.echo(f"wrote {folder}")


def _records(run: Path) -> Path:
    """RUN/records, or below runs/ for a model of the zoo or a file: gtsrb/madry-tuned is not mnist/madry-tuned."""
    if run.is_dir():
        return run / "records"
    plain = run.with_suffix("")
    elsewhere = plain.is_absolute() or ".." in plain.parts
    return Path("runs") / (plain.name if elsewhere else plain) / "records"


def _protocol(name: str, data: Dataset, *, eps: float | None, iterations: int | None, split: str) -> Settings:
    """The protocol for the dataset; settings that differ from the default are part of its name."""
    from robattr.evaluation import for_dataset
    from robattr.evaluation.protocol import named

    if split not in {"test", "validation"}:
        raise InvalidInput(f"expected --split test or validation, got {split!r}")
    chosen = for_dataset(data)
    chosen = chosen if eps is None else chosen.with_eps(eps)
    chosen = chosen if iterations is None else chosen.with_steps(iterations)
    chosen = named(name, chosen)
    return chosen if split == "test" else replace(chosen, name=f"{chosen.name}@{split}")


def _show(summary: Mapping[str, Any]) -> None:
    from robattr.metrics.columns import COLUMN, PAPERS
    from robattr.reporting.tables import cell_of

    def shown(name: str, like: str) -> str:
        return str(cell_of(COLUMN[like], summary["columns"][name]))

    head = " · ".join(str(summary[key]) for key in ("run", "dataset", "protocol", "map"))
    title = f"{head} · {summary['examples']} {summary.get('split', '')} examples"
    show_table([column.title for column in PAPERS], [[shown(c.key, c.key) for c in PAPERS]], title=title)
    for prefix, name in (("foreground", "foreground only"), ("noise", "random noise of the same ε")):
        both = (f"{COLUMN[key].title} {shown(f'{prefix}_{key}', key)}" for key in ("topk", "kendall"))
        show_text(f"{name}: {', '.join(both)}")
    gains = [COLUMN[f"insertion_over_{order}"] for order in ("random", "edges", "constant")]
    show_text(
        f"{COLUMN['ceiling'].title} of {COLUMN['kendall'].title}: {shown('ceiling', 'kendall')}",
        ", ".join(f"{gain.title} {shown(gain.key, gain.key)}" for gain in gains),
        f"{COLUMN['never_kept'].title}: {COLUMN['never_kept'].show(summary['never_kept'])} "
        f"({'counted as 1' if summary['protocol'].startswith('paper') else 'no score'})",
        *(f"warning: {alarm}" for alarm in summary["alarms"]),
    )
