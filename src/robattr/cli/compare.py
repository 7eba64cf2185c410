"""`robattr compare`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robattr._form import uncollected
from robattr.cli._options import MAPS, choices
from robattr.cli._tables import show_table
from robattr.errors import InvalidInput, nearest

if TYPE_CHECKING:
    from robattr.metrics.intervals import Comparison


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("compare")(compare)


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
        if not names and not run.exists():
            raise InvalidInput(
                f"expected an evaluated run directory, got {run}, which does not exist: give another one"
            )
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
