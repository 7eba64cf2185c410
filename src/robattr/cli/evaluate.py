"""`robattr evaluate` and `robattr compare`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robattr._form import uncollected
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
from robattr.errors import InvalidInput, nearest

if TYPE_CHECKING:
    from robattr.data import Dataset
    from robattr.evaluation import Protocol as Settings
    from robattr.metrics.intervals import Comparison


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    app.command("evaluate")(evaluate)
    app.command("compare")(compare)


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


def compare(
    first: Annotated[Path, typer.Argument(metavar="FIRST", help="An evaluated run directory.")],
    second: Annotated[Path, typer.Argument(metavar="SECOND", help="Another one, evaluated on the same examples.")],
    protocol: Annotated[
        str,
        typer.Option(
            help="Protocol of both evaluations, as their records are named: paper, strict, paper@validation, …",
            autocompletion=choices("paper", "strict", "exhaustive", "paper@validation"),
        ),
    ] = "paper",
    map_name: Annotated[
        str, typer.Option("--map", help="Explanation of both evaluations.", autocompletion=choices(*MAPS))
    ] = "ig",
) -> None:
    """Compare two evaluated models on the same examples: SECOND − FIRST, 95% intervals, and which is better.

    The p-values are those of a paired test.
    """
    with uncollected():  # imports included: a third of the time
        from robattr.reporting.paired import COMPARED, comparison

        found = _paired(first, second, protocol, map_name)
    names = (first.name, second.name) if first.name != second.name else (str(first), str(second))
    title = f"{second} − {first} · {protocol} protocol · {map_name} maps"
    show_table(COMPARED, comparison(found, names), title=title, numbers=range(1, 5))
    typer.echo("Higher is better where nothing else is said. Not settled: the interval contains 0.")
    if apart := found["nat_acc"].unpaired:
        typer.echo(f"Only one of the two has {apart} of the examples: they are left out.")


def _paired(first: Path, second: Path, protocol: str, map_name: str) -> dict[str, Comparison]:
    """The comparison of two runs by their records of a protocol and a map, after a check of both."""
    from robattr.evaluation.records import read
    from robattr.evaluation.summary import compare, read_checked

    if file := next((run for run in (first, second) if run.is_file()), None):
        raise InvalidInput(f"expected an evaluated run directory, got the file {file}: give the run it was made from")
    _check_measured((first, second), protocol, map_name)
    paths = [run / "records" / f"{protocol}-{map_name}.jsonl" for run in (first, second)]
    summaries = [path.with_suffix(".json") for path in paths]
    sides = [
        list(read_checked(summary)[1]) if path.is_file() and summary.is_file() else read(path)
        for path, summary in zip(paths, summaries, strict=True)
    ]
    _check_comparable(paths, sides)
    return compare(*sides)


def _check_measured(runs: tuple[Path, Path], protocol: str, map_name: str) -> None:
    """Reject a run without records of the protocol and the map, and say which it has."""
    from robattr.evaluation.protocol import PROTOCOLS

    found = [{file.stem.partition(".from")[0] for file in (run / "records").glob("*.jsonl")} for run in runs]
    known = protocol.partition("@")[0]
    if known not in PROTOCOLS and not any(name.startswith(f"{protocol}-") for name in set.union(*found)):
        raise InvalidInput(f"unknown protocol {protocol!r}: {nearest(known, PROTOCOLS)}")
    for run, names in zip(runs, found, strict=True):
        if not names:
            raise InvalidInput(
                f"expected an evaluated run directory, got {run} without records: run `robattr evaluate {run}` first"
            )
        if (name := f"{protocol}-{map_name}") not in names:
            raise InvalidInput(
                f"expected the records {name} in {run / 'records'}, got {', '.join(sorted(names))}: choose another "
                "--protocol or --map, or evaluate the run with these first"
            )


def _check_comparable(paths: list[Path], sides: list[list[Any]]) -> None:
    """Reject two evaluations with different settings or examples."""
    from robattr.evaluation.records import read_settings

    one, two = map(read_settings, paths)
    keys = [key for key in {**one, **two} if key != "weights"]
    odd = [f"{key} {one.get(key)} and {two.get(key)}" for key in keys if one.get(key) != two.get(key)]
    if odd:
        raise InvalidInput(
            f"expected two evaluations with the same settings, got {', '.join(odd)}: evaluate both again"
        )
    if reason := _different_examples(paths, sides):
        raise InvalidInput(f"expected evaluations of the same examples, but {reason}: evaluate both on the same data")


def _different_examples(paths: list[Path], sides: list[list[Any]]) -> str:
    """Why equal ids are not the same examples, or an empty string: datasets of one name may differ in their images."""
    import numpy as np

    from robattr.engine.files import read_object
    from robattr.evaluation.gallery import path_for, read_gallery

    labels = [{r["id"]: r.get("label") for r in records} for records in sides]
    if odd := [i for i in labels[0] if labels[1].get(i, labels[0][i]) != labels[0][i]]:
        return f"example {odd[0]} has label {labels[0][odd[0]]} and {labels[1][odd[0]]}"
    kept = [path_for(path) for path in paths]
    if all(file.is_file() for file in kept):
        one, two = ({int(i): x for i, x in zip(g.id, g.image, strict=True)} for g in map(read_gallery, kept))
        if odd := [i for i in one if i in two and not np.array_equal(one[i], two[i])]:
            return f"the images of example {odd[0]} differ"
    configs = [path.parent.parent / "config.json" for path in paths]
    digests = [read_object(config).get("examples") if config.is_file() else None for config in configs]
    other = all(digests) and len(labels[0]) == len(labels[1]) and digests[0] != digests[1]
    return "the digests of the datasets differ" if other else ""


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
