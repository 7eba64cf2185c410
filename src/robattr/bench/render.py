"""Reports as Markdown (docs/benchmarks.md) and as tables on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from robattr._extras import need
from robattr.bench.agree import ALLOWED, LOST
from robattr.bench.results import Case, Comparison, Evaluation, Report, Table

HEADINGS = ("what", "the obvious way", "ms", "engine", "ms", "ratio", "apart (allowed)", "compile s")
ROOFLINE = (
    "what", "operations", "least bytes", "floor ms", "bound by", "engine ms", "times the floor", "kept activations ms",
    "port's operations",
)  # fmt: skip

ALLOWANCES, LOSSES = (
    ", ".join(f"{allowed:g} in {arithmetic}" for arithmetic, allowed in each.items()) for each in (ALLOWED, LOST)
)

PREFACE = f"""# Benchmarks

Written by `robattr bench --render FILE… -o docs/benchmarks.md` from the JSON files of real runs; not edited by hand.

- **The obvious way** is an eager PyTorch port of the reference code: `autograd.grad(create_graph=True)`, parameters
  that require grad, exact float32 products, the right Riemann sum, the paper's m and batch. For the attribution attack
  it is the reference's loop over single examples; for Kendall's τ-b it is SciPy, and the n × n formula.
- **The engine** is `robattr.engine` and `robattr.evaluate`, in the precision named.
- Both run in one process, on the same inputs and weights. Times are medians after a warm-up, in milliseconds; the
  brackets hold the fastest and the slowest sample. Compiling is timed apart: it is paid once, and cached between runs.
- **Apart** is ‖engine − port‖ / ‖port‖ of what both compute with the same rule (for τ-b the largest difference). A case
  whose sides differ by more than is allowed reports no time and fails the run. Allowed for gradients of ‖IG‖₁ and maps:
  {ALLOWANCES}. It is wide in reduced precision because sign(IG) and the sides of ReLUs flip near zero; the tables of
  precisions show the measured effect. The attribution attack as timed is held by its first step: the share of Σ|∇J|,
  what a step by sign(∇J) gains, that it forgoes: {LOSSES}.
  Below each table stands what its numbers are of; *first step* alone is what older runs held, the share of pixels that
  it moves another way.
- **Training step**: attack, gradient and optimiser. The port takes the reference's right ends, the engine the fewest
  midpoints whose IG is at least as accurate, measured on the case itself and shown beside it.
- **Floor**: counted operations over the measured rate of a large matrix product, or least bytes (inputs and parameters
  read once, results written once) over that of a large copy, whichever is longer. *Kept activations* is the time to
  write once and read once what a forward pass keeps for the backward pass, which kernels that are not fused across
  layers cannot avoid: where it exceeds the floor, memory traffic is what separates the engine from the floor.
- The images are embedded Fashion-MNIST ones, resized to each network's input; the networks have learnt them for a
  moment.
"""

EVALUATED = ("model, protocol", "map", "attacked", "repeats", "iterations", "N", "device", "date", "seconds")
EVALUATIONS = """## Whole evaluations

Published evaluations by their own clock: accuracies, attacks, scores, diagnostics, pictures and compilation included.
Their commands and versions are in [Results](results.md).
"""


def markdown(found: Sequence[Report | Evaluation]) -> str:
    """The page."""
    timed = [each for each in found if isinstance(each, Evaluation)]
    reports = [each for each in found if isinstance(each, Report)]
    return "\n".join([PREFACE, *([_evaluations(timed)] if timed else []), *map(_report, reports)])


def _evaluations(found: Sequence[Evaluation]) -> str:
    rows = [
        [
            each.of, each.map, number(each.attacked), number(each.repeats), number(each.iterations), each.nodes,
            f"{each.device}, {each.precision}", each.date[:10], f"**{number(each.seconds)}**",
        ]
        for each in found
    ]  # fmt: skip
    return "\n".join([EVALUATIONS, *_grid(EVALUATED, rows)])


def _report(report: Report) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    lines = [
        f"## {report.device}, {report.precision}{' (quick look)' if report.quick else ''}",
        "",
        f"{report.date[:10]}; {versions}; {report.seconds:.0f} s in all, compilation included.",
        "",
        f"    {report.command}",
        "",
        f"Measured ceilings: {report.rates['operations'] / 1e12:.3g} Tflop/s in a matrix product, "
        f"{report.rates['bytes'] / 1e9:.4g} GB/s in a copy.",
        "",
    ]
    return "\n".join([*lines, *(_case(case) for case in report.cases)])


def _case(case: Case) -> str:
    lines = [f"### {case.name}", ""]
    if case.setting:
        lines += [f"{case.setting[0].upper()}{case.setting[1:]}.", ""]
    if case.error:
        return "\n".join([*lines, f"**Failed, no numbers:** {case.error}", ""])
    if case.comparisons:
        lines += _grid(HEADINGS, [comparison_row(c) for c in case.comparisons])
        lines += [f"Apart, in this order: {'; '.join(held)}.\n" for held in _held(case.comparisons)]
    if floors := [roofline_row(c) for c in case.comparisons if c.roofline]:
        lines += _grid(ROOFLINE, floors)
        lines += [*(f"- {why(c)}" for c in case.comparisons if c.roofline), ""]
    for table in case.tables:
        lines += [f"{table.title}:", "", *_grid(table.columns, [[number(v) for v in row] for row in table.rows])]
    lines += [f"Note: {note}\n" for note in case.notes]
    return "\n".join(lines)


def _held(comparisons: Sequence[Comparison]) -> list[tuple[str, ...]]:
    """What the rows were held by, each list of several once."""
    lists = dict.fromkeys(tuple(a.of for a in c.agreement) for c in comparisons)
    return [held for held in lists if len(held) > 1]


def _grid(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [columns, ["---"] * len(columns), *rows]
    return [f"| {' | '.join(line)} |" for line in lines] + [""]


def comparison_row(c: Comparison) -> list[str]:
    """One comparison as text, in the order of HEADINGS."""

    def ms(side: Any) -> str:
        t = side.times
        return f"{number(t.ms)} [{number(t.low)}–{number(t.high)}]"

    what = c.what if c.per == "call" else f"{c.what}, per {c.per}"
    apart = "; ".join(f"{a.measured:.1e} ({a.allowed:g})" for a in c.agreement)
    compiled = f"{c.compile_s:.1f}" if c.compile_s else "–"
    return [
        what,
        c.baseline.what,
        ms(c.baseline),
        c.engine.what,
        ms(c.engine),
        f"**{number(c.ratio)}×**",
        apart,
        compiled,
    ]


def roofline_row(c: Comparison) -> list[str]:
    """Its floor as text, in the order of ROOFLINE."""
    r = c.roofline
    assert r is not None
    ms = c.engine.times.ms
    return [
        c.what,
        f"{r.operations / 1e9:.3g} G",
        f"{r.bytes / 1e6:.3g} MB",
        number(r.floor_ms),
        r.bound,
        number(ms),
        f"{number(r.times_floor(ms))}×",
        number(r.kept_ms),
        f"{r.baseline_operations / 1e9:.3g} G",
    ]


def why(c: Comparison) -> str:
    """How far from the floor a time is, and what the counts say about the reason."""
    r, ms = c.roofline, c.engine.times.ms
    assert r is not None
    arithmetic, traffic = 100 * r.floor_ms / ms, 100 * r.kept_ms / ms
    far = f"{c.what}: {number(r.times_floor(ms))} times the floor of {number(r.floor_ms)} ms"
    if not r.operations:
        return f"{far}: sorting passes over the data many times, where the floor reads it once."
    shares = f"arithmetic at full rate is {arithmetic:.2g}% of the time, traffic of kept activations {traffic:.2g}%"
    if max(arithmetic, traffic) >= 50:
        return f"{far}: bound by {'arithmetic' if arithmetic >= traffic else 'memory traffic'} ({shares})."
    products = sum(c.spent.get(kind, 0.0) for kind in ("convolutions", "matrix products"))
    if not products:
        return f"{far}: {shares}."
    kinds = ", ".join(f"{kind} {100 * share:.2g}%" for kind, share in c.spent.items())
    rate = arithmetic / products
    return f"{far}: {shares}. Measured: {kinds}; so its products run at {rate:.2g}% of the rate of a large one."


def number(value: str | float) -> str:
    """Three significant digits; whole numbers as they are."""
    if isinstance(value, str):
        return value
    if isinstance(value, int) or (value == int(value) and abs(value) < 1e6):
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def show(report: Report) -> None:
    """The report on the terminal."""
    console_module = need("rich.console", extra="cli")
    console = console_module.Console()
    console.print(f"[bold]{report.device}[/], {report.precision}, {report.date}", highlight=False)
    for case in report.cases:
        console.rule(f"[bold]{case.name}[/] [dim]{case.setting}[/]", align="left")
        if case.error:
            console.print(f"[red]failed:[/] {_escaped(case.error)}")
            continue
        if case.comparisons:
            console.print(_drawn(Table("", HEADINGS, tuple(tuple(comparison_row(c)) for c in case.comparisons))))
        for c in case.comparisons:
            if c.roofline:
                console.print(why(c), highlight=False)
        for table in case.tables:
            console.print(_drawn(table))
        for note in case.notes:
            console.print(f"[yellow]note:[/] {_escaped(note)}")
    console.print(f"[dim]{report.seconds:.0f} s[/]")


def _drawn(table: Table) -> Any:
    drawn = need("rich.table", extra="cli").Table(title=table.title or None, title_justify="left", pad_edge=False)
    for i, column in enumerate(table.columns):
        drawn.add_column(column, justify="left" if i == 0 else "right")
    for row in table.rows:
        drawn.add_row(*(_escaped(number(value)).replace("**", "") for value in row))
    return drawn


def _escaped(text: str) -> str:
    return str(need("rich.markup", extra="cli").escape(text))
