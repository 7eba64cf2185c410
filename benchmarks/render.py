"""docs/benchmarks.md, rendered from the JSON files of benchmark runs and of published evaluations.

The page answers one question after the other, each by one table over all runs. The runs themselves (command, versions,
agreement of the two sides, distance from the roofline) are folded at its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.measure import ALLOWED, LOST
from robattr.reporting.tables import folded, grid

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
FILES = (
    *(ROOT / "results" / f"mnist-natural-seed0-paper-{map}.json" for map in ("ig", "sg")),
    *(ROOT / "results" / "bench" / f"h200-{case}.json"
      for case in ("mnist", "gtsrb", "flower", "ifia", "ifia-flower", "kendall", "scaling")),
    ROOT / "results" / "bench" / "cpu-2-cores.json",
)  # fmt: skip

ALLOWANCES, LOSSES = (
    ", ".join(f"{allowed:g} in {arithmetic}" for arithmetic, allowed in each.items()) for each in (ALLOWED, LOST)
)
PREFACE = f"""# Benchmarks

Rendered by `python -m benchmarks --render` from the files of real runs in `results/`; not edited by hand.

- **The obvious way** is an eager PyTorch port of the reference code: `autograd.grad(create_graph=True)`, float32, right
  Riemann sums, the paper's m and batch. For the attack on explanations it is the reference's loop over single
  examples, for Kendall's τ-b SciPy or the n × n formula.
- **The engine** is robattr. Both sides run in one process on the same inputs and weights: embedded Fashion-MNIST
  images, resized to each network's input, and networks that were trained for a moment.
- **ms** is the median after a warm-up, in brackets the fastest and the slowest sample, without compilation, which is
  paid once and cached.
- **Floor** is the time that the counted operations take at the measured rate of a large matrix product, or the least
  bytes at that of a large copy, whichever is longer.
- A case whose sides differ by more than is allowed reports no time and fails the run. Allowed for
  ‖engine − port‖ / ‖port‖ of gradients and maps: {ALLOWANCES}; wide in reduced precision,
  because signs of IG and of ReLUs flip near zero. Allowed for what the attack's first step forgoes of Σ|∇J|:
  {LOSSES}."""

COMPARED = ("case", "what", "the obvious way, ms", "engine, ms", "ratio", "times the floor")
COMPARISONS = (
    ("How fast is training?", ("attack gradient", "training step"), """\
A training step is attack, gradient and optimiser. The port takes the reference's right ends (m of the update / of the
attack), the engine the fewest midpoints whose error is not larger."""),
    ("How fast is the attack on explanations?", ("IFIA",), "Times are per example and iteration."),
    ("How fast is Kendall's τ-b?", ("Kendall",), "Times are per pair of maps."),
)  # fmt: skip
TABLES = (
    ("How accurate are few midpoints?", "Relative quadrature errors", "Relative errors against a fine rule."),
    ("Does the adversary find as much with them?", "Mean ‖IG(x, x*)‖₁", """\
Mean ‖IG(x, x*)‖₁ by the fine rule, at the x* that each adversary found."""),
    ("What does reduced precision change?", "Reduced precision", "Relative errors against fp32."),
    ("How much memory does a gradient step take?", "Peak memory", "Peak, with all m points at once or in chunks of 5."),
)  # fmt: skip
RUNS = """\
Commands are as they were typed (`robattr bench` is now `python -m benchmarks`). *Kept activations* are what a forward
pass keeps for the backward pass, written and read once. *First step* of older runs is the share of pixels that it moves
another way."""
EVALUATED = ("model, protocol", "map", "attacked", "repeats", "iterations", "N", "device", "date", "seconds")
EVALUATIONS = """## How long does an evaluation take?

Published evaluations by their own clock, everything included. Commands and versions are in [Results](results.md)."""


def markdown(files: Sequence[dict[str, Any]]) -> str:
    """The page, from files as `benchmarks.results.read` returns them."""
    return "\n\n".join([PREFACE, *sections(files)]) + "\n"


def sections(files: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The questions that the files answer, failed cases, and the runs."""
    runs = [each for each in files if "summary" not in each]
    cases = [(run, case) for run in runs for case in run["cases"]]
    for heading, names, words in COMPARISONS:
        found = [(*pair, c) for pair in cases for c in pair[1]["comparisons"] if c["what"].startswith(names)]
        if found:
            yield "\n\n".join([f"## {heading}", words, grid(COMPARED, [comparison_row(*each) for each in found])])
    if evaluations := [evaluation_row(each) for each in files if "summary" in each]:
        yield "\n\n".join([EVALUATIONS, grid(EVALUATED, evaluations)])
    if growth := [row for run, case in cases for row in growth_rows(run, case)]:
        words = "Milliseconds per training step, and times the first value, as one setting grows."
        yield "\n\n".join(["## How does the cost grow?", words, grid(("device", "setting", "ms", "times"), growth)])
    for heading, title, words in TABLES:
        found = [(*pair, t) for pair in cases for t in pair[1]["tables"] if t["title"].startswith(title)]
        if found:
            columns = ("case", "device", *found[0][2]["columns"])
            rows = [[case["name"], device(run), *map(number, r)] for run, case, t in found for r in t["rows"]]
            yield "\n\n".join([f"## {heading}", words, folded(f"{len(rows)} rows", grid(columns, rows))])
    failed = [f"- {case['name']}, {device(run)}: {case['error']}" for run, case in cases if case["error"]]
    if failed:
        yield "\n\n".join(["## Failed, no numbers", "\n".join(failed)])
    if runs:
        yield "\n\n".join(["## The runs", RUNS, *(run_details(run) for run in runs)])


def evaluation_row(record: dict[str, Any]) -> list[str]:
    """A published evaluation, with the seconds that it recorded itself."""
    summary = record["summary"]
    settings = summary["settings"]
    if earlier := summary.get("earlier"):
        raise ValueError(
            f"expected an evaluation by one command; the {summary['seconds']:.0f} s of {record['variant']} do not "
            f"count the {earlier} examples of an earlier one: evaluate again with --fresh"
        )
    return [
        f"{summary['dataset']} {record['variant']}, {summary['protocol']}",
        summary["map"],
        number(summary["correct"] - summary["excluded"]),
        number(settings["repeats"] + sum(n for _, n in settings["sweep"])),
        number(settings["steps"]),
        str(settings["N"]) if summary["map"] == "ig" else "–",
        f"{summary['device']}, {summary['precision']}",
        summary["finished"][:10],
        f"**{number(summary['seconds'])}**",
    ]


def comparison_row(run: dict[str, Any], case: dict[str, Any], c: dict[str, Any]) -> list[str]:
    """A comparison, in the order of COMPARED."""
    sides = []
    for side in (c["baseline"], c["engine"]):
        t = side["times"]
        sides.append(f"{number(t['ms'])} [{number(t['low'])}–{number(t['high'])}]<br>{side['what']}")
    floor = f"{number(c['engine']['times']['ms'] / c['roofline']['floor_ms'])}×" if c["roofline"] else "–"
    return [f"{case['name']}<br>{device(run)}", c["what"], *sides, f"**{number(c['ratio'])}×**", floor]


def growth_rows(run: dict[str, Any], case: dict[str, Any]) -> Iterator[list[str]]:
    """A row for each setting of a table `Growth of the cost`."""
    for table in (t for t in case["tables"] if t["title"] == "Growth of the cost"):
        for axis, rows in groupby(table["rows"], key=lambda row: row[0]):
            values, ms, times = zip(*(map(number, row[1:]) for row in rows), strict=True)
            yield [device(run), f"{axis} {' → '.join(values)}", " → ".join(ms), " → ".join(times)]


def run_details(run: dict[str, Any]) -> str:
    """A run, folded: how it was made, and for each case whether the sides agree and what bounds the time."""
    versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
    title = f"{run['date'][:10]}, {run['device']}, {run['precision']}{' (quick look)' if run['quick'] else ''}: "
    lines = [
        f"    {run['command']}",
        f"{versions}; {run['seconds']:.0f} s in all, compilation included. Measured rates: "
        f"{run['rates']['operations'] / 1e12:.3g} Tflop/s in a matrix product, {run['rates']['bytes'] / 1e9:.4g} GB/s "
        "in a copy.",
        *(case_details(case) for case in run["cases"]),
    ]
    return folded(title + ", ".join(case["name"] for case in run["cases"]), "\n\n".join(lines))


def case_details(case: dict[str, Any]) -> str:
    """A case: its setting, a line for each comparison, the tables that no question of the page shows, and notes."""
    lines = [f"**{case['name']}**" + (f": {case['setting']}." if case["setting"] else "")]
    if case["error"]:
        return "\n\n".join([*lines, f"Failed, no numbers: {case['error']}"])
    if case["comparisons"]:
        lines.append("\n".join(f"- {comparison_details(c)}" for c in case["comparisons"]))
    asked = ("Growth of the cost", *(title for _, title, _ in TABLES))
    for table in (t for t in case["tables"] if not t["title"].startswith(asked)):
        lines += [f"{table['title']}:", grid(table["columns"], [list(map(number, row)) for row in table["rows"]])]
    return "\n\n".join([*lines, *(f"Note: {note}" for note in case["notes"])])


def comparison_details(c: dict[str, Any]) -> str:
    """How far apart the two sides are, how long it took to compile, and what bounds the time."""
    apart = "; ".join(f"{a['of']} {a['measured']:.1e} ({a['allowed']:g} allowed)" for a in c["agreement"])
    compiled = f" Compiled in {c['compile_s']:.1f} s." if c["compile_s"] else ""
    return f"{c['what']} against {c['baseline']['what']}: apart by {apart}.{compiled}{why(c) if c['roofline'] else ''}"


def why(c: dict[str, Any]) -> str:
    """The distance from the roofline, and what the counts and the profile say about its cause."""
    r, ms, spent = c["roofline"], c["engine"]["times"]["ms"], c.get("spent", {})
    arithmetic, traffic = 100 * r["floor_ms"] / ms, 100 * r["kept_ms"] / ms
    far = f" {number(ms / r['floor_ms'])} times the floor of {number(r['floor_ms'])} ms"
    if not r["operations"]:
        return f"{far}: sorting passes over the data many times, where the floor reads it once."
    counted = (
        f"{r['operations'] / 1e9:.3g} G operations, the port's {r['baseline_operations'] / 1e9:.3g} G; at least "
        f"{r['bytes'] / 1e6:.3g} MB"
    )
    shares = f"arithmetic at full rate is {arithmetic:.2g}% of the time, traffic of kept activations {traffic:.2g}%"
    if max(arithmetic, traffic) >= 50:
        bound = "arithmetic" if arithmetic >= traffic else "memory traffic"
        return f"{far} ({counted}): bound by {bound} ({shares})."
    products = spent.get("convolutions", 0.0) + spent.get("matrix products", 0.0)
    if not products:
        return f"{far} ({counted}): {shares}."
    kinds = ", ".join(f"{kind} {100 * share:.2g}%" for kind, share in spent.items())
    rate = arithmetic / products
    slow = f"its products run at {rate:.2g}% of the rate of a large one"
    return f"{far} ({counted}): {shares}. Measured: {kinds}; so {slow}."


def device(run: dict[str, Any]) -> str:
    """The device without its host."""
    return str(run["device"]).partition(" (host")[0]


def number(value: str | float) -> str:
    """Three significant digits; whole numbers in full."""
    if isinstance(value, str):
        return value
    if value == int(value) and abs(value) < 1e6:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
