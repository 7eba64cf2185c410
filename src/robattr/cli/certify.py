"""`robattr certify`: bounds that no attack can break."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robattr._progress import Watching, say
from robattr._text import duration, interval, number, numbers, printable
from robattr.cli import _own_model as own
from robattr.cli._options import DataDir, Device, Fresh, Trust, leads, typed_command
from robattr.cli._tables import show_table, show_text
from robattr.errors import InvalidInput

if TYPE_CHECKING:
    from robattr.certificates import Examples

SMOOTHED = ("maps", "sigma", "radius", "samples", "alpha", "top", "attack", "points", "out", "fresh", "device")
"""The parameters that --interval, which bounds exact IG on the CPU and prints the result, does not use."""


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("certify")(certify)


def certify(
    context: typer.Context,
    model: own.Model,
    data: own.Data,
    maps: own.Maps = "ig",
    sigma: Annotated[
        str | None,
        typer.Option(help="Standard deviation of the noise, in units of the bounds (default: 0.25 of the range)."),
    ] = None,
    radius: Annotated[
        str | None,
        typer.Option(help="L2 radius, in units of the bounds; several: 0.05,0.1 (default: 0.1 of the range)."),
    ] = None,
    samples: Annotated[int, typer.Option(min=10, help="Noisy copies per example.")] = 1000,
    alpha: Annotated[
        str, typer.Option(help="A certificate of an example is wrong with at most this probability.")
    ] = "0.001",
    top: Annotated[str, typer.Option(help="Share of the pixels that count as important.")] = "0.1",
    interval_eps: Annotated[
        str | None,
        typer.Option(
            "--interval",
            metavar="EPS",
            help="Bound the change of IG in this L∞ ball by intervals instead, for networks trained by interval-bound.",
        ),
    ] = None,
    attack: Annotated[bool, typer.Option("--attack", help="Also try to break the certificates by attacks.")] = False,
    examples: Annotated[int, typer.Option(min=1, help="How many examples to certify.")] = 100,
    points: own.Points = None,
    bounds: own.Bounds = "0,1",
    weights: own.Weights = None,
    mean: own.Mean = None,
    std: own.Std = None,
    size: own.Size = None,
    channels: own.Channels = None,
    classes: own.Classes = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder for the records.")] = Path("certificates"),
    fresh: Fresh = False,
    seed: own.Seed = 0,
    device: Device = "auto",
    data_dir: DataDir = None,
    trust: Trust = False,
) -> None:
    """Prove how far smoothed explanations can be moved within an L2 radius: bounds that no attack can break.

    It can be stopped at any moment: the same command continues. Another --radius costs nothing.
    """
    from robattr.auditing import certify as begin
    from robattr.auditing.as_dataset import as_dataset, check_names, draw
    from robattr.auditing.record import parse_maps
    from robattr.auditing.wrapped_model import wrap
    from robattr.certificates import measure_intervals

    if interval_eps is not None:
        _check_unused(context)
    noise, box = None if sigma is None else number(sigma, "--sigma"), interval(bounds, "--bounds")
    radii, level = None if radius is None else numbers(radius, "--radius"), number(alpha, "--alpha")
    share, ball = number(top, "--top"), None if interval_eps is None else number(interval_eps, "--interval")
    net = own.open_model(model, weights, trust=trust)
    names = own.class_names(classes)
    given = as_dataset(
        own.open_data(data, data_dir),
        model=net, bounds=box, size=size, channels=channels, classes=names, limit=max(1000, 4 * examples), seed=seed,
    )  # fmt: skip
    check_names(names, net, given)
    x, y, ids = draw(given, examples, seed=seed)
    if ball is not None:
        wrapped, _ = wrap(net, preprocessing=own.preprocessing(mean, std, weights), device="cpu")
        show_intervals(measure_intervals(wrapped, x, y, ball, bounds=given.bounds, seed=seed), model)
        return
    for map in parse_maps(maps, points=points or 100, bounds=given.bounds):
        with Watching(shown=leads()) as watch:
            found = begin(
                net, x, y,
                map=map, sigma=noise, radius=radii, samples=samples,
                alpha=level, top=share, attack=attack, bounds=given.bounds, ids=ids,
                preprocessing=own.preprocessing(mean, std, weights),
                out=out, seed=seed, device=device, fresh=fresh, announce=_announce, watch=watch,
                metadata={
                    "run": model, "dataset": given.name, "classes": list(given.classes),
                    "command": typed_command(),
                },
            )  # fmt: skip
        if leads():
            show(found.summary)
    if leads():
        typer.echo(printable(f"wrote {out}"))


def _check_unused(context: typer.Context) -> None:
    """Refuse the options of smoothed explanations beside --interval."""
    options = {param.name: max(param.opts, key=len) for param in context.command.params}
    sources = {name: context.get_parameter_source(name) for name in SMOOTHED}
    if unused := [options[name] for name, source in sources.items() if source and source.name == "COMMANDLINE"]:
        raise InvalidInput(
            f"expected --interval without the options of smoothed explanations, got {', '.join(unused)}: leave them out"
        )


def show_intervals(found: Mapping[str, list[float]], name: str) -> None:
    """Print the certificates by intervals beside what an attack reaches and what holds for any input."""
    from robattr.metrics.intervals import proportion

    n = len(found["bound"])
    rows = [
        (title, f"{proportion(found[key]).value:.1%}")
        for title, key in (("accuracy", "correct"), ("certified: no x' in the ball is classified otherwise", "answer"))
    ] + [
        (title, f"{sum(found[key]) / n:.4g}")
        for title, key in (
            ("bound: ‖IG(x, x')‖₁ is at most", "bound"),
            ("an attack reaches", "attacked"),
            ("without x: at most, for any input", "uninformed"),
        )
    ]
    show_table(("Interval bounds", "mean"), rows, title=f"{name} · {n} examples", numbers=[1])
    ratio = median(b / a if a else inf for b, a in zip(found["bound"], found["attacked"], strict=True))
    show_text(f"Half of the bounds are at most {ratio:.3g} times what the attack reaches.")


def show(summary: Mapping[str, Any]) -> None:
    """Print what is certified at each radius, what was attacked, and what the radius means."""
    from robattr.certificates.certificate import farthest
    from robattr.certificates.smoothing import Smoothing
    from robattr.certificates.summary import in_units
    from robattr.reporting.certified import COLUMNS, cells

    s, k = summary["settings"], summary["k"]
    rows = [(f"{row['radius']:g}", *cells(row)) for row in summary["radii"]]
    named = (summary["run"], summary["dataset"], f"{summary['map']} maps", f"{summary['examples']} examples")
    title = " · ".join((*named, f"σ = {s['sigma']:g}"))
    headings = ("Radius", *(column.title for column in COLUMNS))
    show_table(headings, rows, title=title, numbers=range(1, 6))
    lines = [
        f"Certified at level {1 - s['alpha']:.4g} for each example, for every change of at most the radius (L2).",
        "Pixels to cosine: means over the examples whose answer is certified. Brackets: 95% intervals over examples.",
        f"K = {k}. Accuracy on noisy copies: {summary['columns']['noisy_acc']['value']:.2%}.",
    ]
    for row in summary["radii"]:
        words = in_units(row["radius"], summary["shape"], tuple(summary["bounds"]))
        lines.append(f"Radius {row['radius']:g}: {words}.")
    most = farthest(Smoothing(**{name: s[name] for name in Smoothing().settings()}))
    if any(row["radius"] >= most for row in summary["radii"]):
        where = f"beyond a radius of {most:.3g}" if most else "at any radius"
        lines.append(
            f"{s['samples']:,} noisy copies cannot certify an answer {where}, even if all agree: take more (--samples)."
        )
    for found in summary.get("attacks", ()):
        broken = sum(found["broken"].values())
        lines.append(
            f"Attacked within {found['settings']['radius']:g} ({', '.join(found['kinds'])}): {broken} certificates of "
            f"{found['examples']} examples broken; the attacks reached an overlap of "
            f"{found['worst']['overlap'] / k:.0%} and a cosine of {found['worst']['cosine']:.3f} on average."
        )
    show_text(*lines)


def _announce(examples: Examples, left: int, seconds: float) -> None:
    """Say what is still to be computed; nothing where all is recorded, which the progress says."""
    copies, points, n = examples.smoothing.copies, examples.map.nodes, len(examples.x)
    takes = f"about {duration(seconds)} on {examples.device}"
    if left:
        those = f"{left} examples" if left == n else f"{left} of {n} examples"
        each = f"{those} × {copies:,} noisy copies" + f" × {points} points" * (points > 1)
        say(f"{examples.map.name}: {each}; everything takes {takes}")
    elif seconds:
        say(f"{examples.map.name}: the attacks take {takes}")
