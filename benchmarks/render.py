"""docs/benchmarks.md, rendered from the JSON files of benchmark runs and of published evaluations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import ALLOWED, LOST

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
FILES = (
    *(ROOT / "results" / f"mnist-natural-seed0-paper-{map}.json" for map in ("ig", "sg")),
    *(ROOT / "results" / "bench" / f"h200-{case}.json"
      for case in ("mnist", "gtsrb", "flower", "ifia", "ifia-flower", "kendall", "scaling")),
    ROOT / "results" / "bench" / "cpu-2-cores.json",
)  # fmt: skip

HEADINGS = ("what", "the obvious way", "ms", "engine", "ms", "ratio", "apart (allowed)", "compile s")
ROOFLINE = (
    "what", "operations", "least bytes", "floor ms", "bound by", "engine ms", "times the floor", "kept activations ms",
    "port's operations",
)  # fmt: skip

ALLOWANCES, LOSSES = (
    ", ".join(f"{allowed:g} in {arithmetic}" for arithmetic, allowed in each.items()) for each in (ALLOWED, LOST)
)

PREFACE = f"""# Benchmarks

Written by `python -m benchmarks --render` from the JSON files of real runs in `results/`; not edited by hand. The
command of each run is shown as it was typed; earlier runs used its former name, `robattr bench`.

- **The obvious way** is an eager PyTorch port of the reference code: `autograd.grad(create_graph=True)`, parameters
  that require grad, exact float32 products, the right Riemann sum, the paper's m and batch. For the attribution attack
  it is the reference's loop over single examples; for Kendall's τ-b it is SciPy, and the n × n formula.
- **The engine** is `robattr.engine`, `robattr.attacks` and `robattr.metrics`, in the precision named.
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


def markdown(files: Sequence[dict[str, Any]]) -> str:
    """The page, from files as `benchmarks.results.read` returns them."""
    evaluations = [evaluation_row(each) for each in files if "summary" in each]
    timed = ["\n".join([EVALUATIONS, *grid(EVALUATED, evaluations)])] if evaluations else []
    return "\n".join([PREFACE, *timed, *(report(each) for each in files if "summary" not in each)])


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


def report(run: dict[str, Any]) -> str:
    """One run of the benchmark."""
    versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
    lines = [
        f"## {run['device']}, {run['precision']}{' (quick look)' if run['quick'] else ''}",
        "",
        f"{run['date'][:10]}; {versions}; {run['seconds']:.0f} s in all, compilation included.",
        "",
        f"    {run['command']}",
        "",
        f"Measured ceilings: {run['rates']['operations'] / 1e12:.3g} Tflop/s in a matrix product, "
        f"{run['rates']['bytes'] / 1e9:.4g} GB/s in a copy.",
        "",
    ]
    return "\n".join([*lines, *(case(each) for each in run["cases"])])


def case(found: dict[str, Any]) -> str:
    """One case: comparisons, rooflines, tables and notes, or the reason of its failure."""
    lines, setting, comparisons = [f"### {found['name']}", ""], found["setting"], found["comparisons"]
    if setting:
        lines += [f"{setting[0].upper()}{setting[1:]}.", ""]
    if found["error"]:
        return "\n".join([*lines, f"**Failed, no numbers:** {found['error']}", ""])
    if comparisons:
        lines += grid(HEADINGS, [comparison_row(c) for c in comparisons])
        checks = dict.fromkeys("; ".join(a["of"] for a in c["agreement"]) for c in comparisons if c["agreement"][1:])
        lines += [f"Apart, in this order: {each}.\n" for each in checks]
    if floors := [c for c in comparisons if c["roofline"]]:
        lines += [*grid(ROOFLINE, [roofline_row(c) for c in floors]), *(f"- {why(c)}" for c in floors), ""]
    for table in found["tables"]:
        rows = [[number(v) for v in row] for row in table["rows"]]
        lines += [f"{table['title']}:", "", *grid(table["columns"], rows)]
    lines += [f"Note: {note}\n" for note in found["notes"]]
    return "\n".join(lines)


def grid(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return [f"| {' | '.join(line)} |" for line in lines] + [""]


def comparison_row(c: dict[str, Any]) -> list[str]:
    """A comparison, in the order of HEADINGS."""
    sides = []
    for side in (c["baseline"], c["engine"]):
        t = side["times"]
        sides += [side["what"], f"{number(t['ms'])} [{number(t['low'])}–{number(t['high'])}]"]
    what = c["what"] if c["per"] == "call" else f"{c['what']}, per {c['per']}"
    apart = "; ".join(f"{a['measured']:.1e} ({a['allowed']:g})" for a in c["agreement"])
    compiled = f"{c['compile_s']:.1f}" if c["compile_s"] else "–"
    return [what, *sides, f"**{number(c['ratio'])}×**", apart, compiled]


def roofline_row(c: dict[str, Any]) -> list[str]:
    """The roofline of a comparison, in the order of ROOFLINE."""
    r, ms = c["roofline"], c["engine"]["times"]["ms"]
    return [
        c["what"],
        f"{r['operations'] / 1e9:.3g} G",
        f"{r['bytes'] / 1e6:.3g} MB",
        number(r["floor_ms"]),
        r["bound"],
        number(ms),
        f"{number(ms / r['floor_ms'])}×",
        number(r["kept_ms"]),
        f"{r['baseline_operations'] / 1e9:.3g} G",
    ]


def why(c: dict[str, Any]) -> str:
    """The distance from the roofline, and what the counts and the profile say about its cause."""
    r, ms, spent = c["roofline"], c["engine"]["times"]["ms"], c.get("spent", {})
    arithmetic, traffic = 100 * r["floor_ms"] / ms, 100 * r["kept_ms"] / ms
    far = f"{c['what']}: {number(ms / r['floor_ms'])} times the floor of {number(r['floor_ms'])} ms"
    if not r["operations"]:
        return f"{far}: sorting passes over the data many times, where the floor reads it once."
    shares = f"arithmetic at full rate is {arithmetic:.2g}% of the time, traffic of kept activations {traffic:.2g}%"
    if max(arithmetic, traffic) >= 50:
        return f"{far}: bound by {'arithmetic' if arithmetic >= traffic else 'memory traffic'} ({shares})."
    products = spent.get("convolutions", 0.0) + spent.get("matrix products", 0.0)
    if not products:
        return f"{far}: {shares}."
    kinds = ", ".join(f"{kind} {100 * share:.2g}%" for kind, share in spent.items())
    rate = arithmetic / products
    return f"{far}: {shares}. Measured: {kinds}; so its products run at {rate:.2g}% of the rate of a large one."


def number(value: str | float) -> str:
    """Three significant digits; whole numbers in full."""
    if isinstance(value, str):
        return value
    if value == int(value) and abs(value) < 1e6:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
