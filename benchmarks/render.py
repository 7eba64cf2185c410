"""docs/benchmarks.md, rendered from the JSON files of benchmark runs and of published evaluations.

The page answers one question after the other, each by one table over all runs. Ranges, agreement of the two sides,
distances from the roofline, commands and versions are folded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from math import isfinite
from pathlib import Path
from typing import Any

from benchmarks import agreement, bars
from benchmarks.measure import ALLOWED, LOST, SHORTEST
from robattr.reporting.record import protocol_of
from robattr.reporting.tables import folded, grid

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
FILES = (
    *(ROOT / "results" / "bench" / f"h200-evaluation-{of}.json"  # records of `robattr evaluate`
      for of in ("mnist", "fashion-ig", "fashion-sg")),
    *(ROOT / "results" / "bench" / f"h200-{case}.json"
      for case in ("mnist", "fashion", "gtsrb", "flower", "resnet50",
                   "resnet50-both", "vit_b_16", "ifia", "ifia-flower", "kendall", "scaling")),
    *(ROOT / "results" / "bench" / f"{name}.json" for name in ("cpu-2-cores", "agreement")),
)  # fmt: skip

ALLOWANCES, LOSSES = (
    ", ".join(f"{allowed:g} in {arithmetic}" for arithmetic, allowed in each.items()) for each in (ALLOWED, LOST)
)
PREFACE = f"""# Benchmarks

Rendered by `python -m benchmarks --render` from the records in `results/bench/`, which hold more than is shown here.
`make bench` measures on your machine.

- **Port**: the reference code written in eager PyTorch, with `autograd.grad(create_graph=True)`, float32 (without tf32,
  torch's default for convolutions) and the paper's rule, m and batch. Its attack on explanations takes one example at a
  time.
- **Engine**: robattr. Both run in one process on the same inputs and briefly trained weights.
- **Times** are medians after a warm-up, without compilation, which is paid once and cached. Short calls
  follow one another for {SHORTEST:g} s, as in training, which does not wait for the GPU. Until 2026-11-20 calls of more
  than 2 ms were waited for one by one, and what the host does meanwhile is in their times.
- Port and engine must agree, else a case has no time and fails the run. Allowed for the relative distance of gradients
  and maps: {ALLOWANCES}; for the share of Σ|∇J| that the attack's first step loses:
  {LOSSES}. Reduced precision needs more, because signs of IG and of ReLUs flip near
  zero."""

COMPARED = ("case", "device", "what", "port, ms", "engine, ms", "ratio")
DETAILS = ("case", "what", "engine", "port, fastest–slowest ms", "engine, fastest–slowest ms", "difference (allowed)",
           "compilation, s", "times the floor")  # fmt: skip
COMPARISONS = (
    ("How fast is training?", ("training step",), """\
A training step is attack, gradient and optimiser. The port uses the reference's right Riemann sums, the engine the
fewest midpoints whose error of IG, or of ‖IG‖₁, is not larger."""),
    ("How fast is the attack on explanations?", ("IFIA",), "Per example and iteration."),
)  # fmt: skip
FLOOR = """\
*Floor*: the counted operations at the rate of a large matrix product, or the least bytes at the rate of a large copy,
whichever takes longer. *First step* in older runs: the share of pixels that it moves another way."""
CLOSE = """\
`paper` differentiates 10 nodes of the map where the reference differentiates 100, and scores one iterate of ten. Paired
differences on the same images from the same starts, `paper` minus reference, with 95% intervals: TopK Inter. in points,
Rank Corr. (`python -m benchmarks.agreement`, one H200, 2026-11-17). The networks of GTSRB and Flower standardise their
input, where one pass gives the map: nothing is left out."""
BASELINES = {"SciPy, one core": "SciPy in a loop", "SciPy, all cores": "SciPy on", "n × n formula": "n × n"}
EVALUATED = ("model, protocol", "map", "examples", "repeats × iterations", "device", "seconds")


def markdown(files: Sequence[dict[str, Any]]) -> str:
    """The page, from files as `benchmarks.results.read` returns them."""
    return "\n\n".join([PREFACE, *sections(files, every=True)]) + "\n"


def sections(files: Sequence[dict[str, Any]], *, every: bool = False) -> Iterator[str]:
    """The questions that the files answer, failed cases, and the runs; with `every`, also the bars not measured yet."""
    runs = [each for each in files if "cases" in each]
    cases = [(run, case) for run in runs for case in run["cases"]]
    told: list[dict[str, Any]] = []
    for heading, names, words in COMPARISONS:
        found = [(*pair, c) for pair in cases for c in pair[1]["comparisons"] if c["what"].startswith(names)]
        if found:
            compared = [case for _, case in cases if any(case is other for _, other, _ in found)]
            told += compared
            details = f"{FLOOR}\n\n{grid(DETAILS, [detail_row(case, c) for _, case, c in found])}"
            yield (
                question(heading, words, COMPARED, [comparison_row(*each) for each in found])
                + "\n\n"
                + (f"{notes}\n\n" if (notes := listed_notes(compared)) else "")
                + folded("Ranges, agreement, distance from the hardware's limit", details)
            )
    yield from answered(
        "Which bars are met?",
        "What the project asks of itself. *Schedule*: the steps of the paper's recipe times the fastest step measured.",
        bars.COLUMNS,
        [
            *(row for run, case in cases if not run["quick"] for row in bars.rows(case)),
            *(bars.unmeasured(case for _, case in cases) if every else ()),
        ],
    )
    yield from answered(
        "How fast is Kendall's τ-b?",
        "Milliseconds per pair of maps of n pixels, and how many times as long as robattr takes.",
        ("device", "n", *BASELINES, "robattr"),
        [row for pair in cases for row in kendall_rows(*pair)],
    )
    yield from answered(
        "How long does an evaluation take?",
        "Whole evaluations of the paper's CNN, with diagnostics and compilation, and nothing else on the card.",
        EVALUATED,
        [evaluation_row(each) for each in files if "summary" in each],
    )
    yield from answered(
        "How long does it take to harden a real network?",
        "`robattr harden` by default settings, uncompiled; minutes of all its steps, without the two audits.",
        ("case", "batch", "seconds a step", "minutes", "GiB"),
        [[name(*pair), *map(number, row)] for pair in cases for _, row in table_rows(pair[1], bars.HARDENED)],
    )
    yield from answered(
        "How close is the faster attack to the reference's?",
        CLOSE,
        agreement.COLUMNS,
        [row for each in files if "runs" in each for row in agreement.rows(each["runs"])],
    )
    yield from answered(
        "How does the cost grow?",
        "Milliseconds per training step, and times the first value, as one setting grows.",
        ("device", "setting", "ms", "times"),
        [row for pair in cases for row in growth_rows(*pair)],
    )
    yield from answered(
        "How accurate are few midpoints?",
        "Relative errors against a fine rule; by that rule, the mean ‖IG(x, x*)‖₁ at the x* that the adversary finds.",
        ("case", "who", "points: update / attack", "error of IG", "error of ‖IG‖₁", "‖IG(x, x*)‖₁"),
        [row for pair in cases for row in quadrature_rows(*pair)],
    )
    yield from answered(
        "What does reduced precision change?",
        "Relative errors against fp32, and the share of the attack gradient's signs that stay the same.",
        ("case", "precision", "error of IG", "error of ‖IG‖₁", "error of the attack gradient", "equal signs"),
        [[name(*pair), *map(number, row)] for pair in cases for _, row in table_rows(pair[1], "Reduced precision")],
    )
    yield from answered(
        "How much memory does a gradient step take?",
        "Peak in MB, with all m points of the path at once or in chunks of 5.",
        ("case", "examples", "m", "at once", "in chunks"),
        [row for pair in cases for row in memory_rows(*pair)],
    )
    if failed := [f"- {name(run, case)}: {case['error']}" for run, case in cases if case["error"]]:
        yield "\n\n".join(["## Failed, no numbers", "\n".join(failed)])
    if runs:
        notes = listed_notes(case for _, case in cases if case not in told)
        listed = [*run_details(runs), *(["Notes:", notes] if notes else [])]
        yield "## The runs\n\n" + folded("Settings and versions", "\n\n".join(listed))


def listed_notes(cases: Iterable[dict[str, Any]]) -> str:
    """The notes of the cases, as a list."""
    return "\n".join(f"- {case['name']}: {note}" for case in cases for note in case["notes"])


def question(heading: str, words: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A heading, a sentence and a table."""
    return "\n\n".join([f"## {heading}", words, grid(columns, rows)])


def answered(heading: str, words: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The question, if any run answers it."""
    if rows:
        yield question(heading, words, columns, rows)


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
        f"{summary['dataset']} {record['variant']}, {protocol_of(summary)}",
        summary["map"] + (f", N = {settings['N']}" if summary["map"] == "ig" else ""),
        number(summary["correct"] - summary["excluded"]),
        f"{settings['repeats']} × {settings['steps']}" + (", more attacks" if summary["protocol"] == "strict" else ""),
        f"{summary['device']}, {summary['precision']}",
        f"**{number(summary['seconds'])}**",
    ]


def comparison_row(run: dict[str, Any], case: dict[str, Any], c: dict[str, Any]) -> list[str]:
    """A comparison, in the order of COMPARED."""
    port, engine = (number(c[side]["times"]["ms"]) for side in ("baseline", "engine"))
    return [case["name"], device(run), c["what"], port, engine, f"**{number(c['ratio'])}×**"]


def detail_row(case: dict[str, Any], c: dict[str, Any]) -> list[str]:
    """How a comparison was made, how far apart its sides are as timed, and how far the engine is from the roofline."""
    ranges = [f"{number(t['low'])}–{number(t['high'])}" for t in (c["baseline"]["times"], c["engine"]["times"])]
    timed = c["agreement"][-1]
    apart = f"{timed['of']}: {timed['measured']:.1e} ({timed['allowed']:g})"
    floors = number(c["engine"]["times"]["ms"] / c["roofline"]["floor_ms"])
    return [case["name"], c["what"], c["engine"]["what"], *ranges, apart, number(c["compile_s"]), floors]


def kendall_rows(run: dict[str, Any], case: dict[str, Any]) -> Iterator[list[str]]:
    """A row for each number of pixels, with a column for each other way to compute τ-b."""
    found = [c for c in case["comparisons"] if c["what"].startswith("Kendall")]
    for what, group in groupby(found, key=lambda c: c["what"]):
        same = list(group)
        others = [
            next(
                (f"{number(c['baseline']['times']['ms'])} ({number(c['ratio'])}×)"
                 for c in same if c["baseline"]["what"].startswith(start)), "–",
            )
            for start in BASELINES.values()
        ]  # fmt: skip
        pixels = what.partition(", ")[2].removesuffix(" pixels")
        yield [device(run), pixels, *others, f"**{number(same[0]['engine']['times']['ms'])}**"]


def growth_rows(run: dict[str, Any], case: dict[str, Any]) -> Iterator[list[str]]:
    """A row for each setting of a table `Growth of the cost`."""
    for axis, rows in groupby((row for _, row in table_rows(case, "Growth of the cost")), key=lambda row: row[0]):
        values, ms, times = zip(*(map(number, row[1:]) for row in rows), strict=True)
        yield [device(run), f"{axis} {' → '.join(values)}", " → ".join(ms), " → ".join(times)]


def quadrature_rows(run: dict[str, Any], case: dict[str, Any]) -> Iterator[list[str]]:
    """The reference's rules and the engine's, with their errors in the update and what their adversary finds."""
    errors = [row for _, row in table_rows(case, "Relative quadrature errors")]
    found = {row[1]: row[2] for _, row in table_rows(case, "Mean ‖IG(x, x*)‖₁")}
    attack = {who: rule for use, rule, who, *_ in errors if use == "attack"}
    for use, rule, who, of_map, of_size, _ in errors:
        if use == "update" and attack[who] in found:
            points = f"{rule} / {attack[who]}"
            yield [name(run, case), who, points, number(of_map), number(of_size), number(found[attack[who]])]


def memory_rows(run: dict[str, Any], case: dict[str, Any]) -> Iterator[list[str]]:
    """A row for each table `Peak memory`, in MB as m grows."""
    for title, rows in groupby(table_rows(case, "Peak memory"), key=lambda pair: pair[0]):
        examples = title.rpartition(", ")[2].removesuffix(" examples")
        columns = zip(*(map(number, row) for _, row in rows), strict=True)
        yield [name(run, case), examples, *(" → ".join(values) for values in columns)]


def table_rows(case: dict[str, Any], title: str) -> Iterator[tuple[str, list[Any]]]:
    """The rows of a case's tables whose titles begin with `title`, each with its table's title."""
    return ((t["title"], row) for t in case["tables"] if t["title"].startswith(title) for row in t["rows"])


def run_details(runs: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A paragraph for each device and set of versions, with the settings of what was measured there."""

    def setup(run: dict[str, Any]) -> str:
        versions = ", ".join(f"{package} {version}" for package, version in run["versions"].items())
        quick = ", quick look" if run["quick"] else ""
        return f"{run['date'][:10]}, {run['device']}, {run['precision']}{quick}; {versions}"

    for made, group in groupby(runs, key=setup):
        same = list(group)
        flops, copies = (
            "–".join(dict.fromkeys(f"{limit(run['rates'][of] for run in same) / unit:.4g}" for limit in (min, max)))
            for of, unit in (("operations", 1e12), ("bytes", 1e9))
        )
        yield f"{made}. A matrix product runs at {flops} Tflop/s, a copy at {copies} GB/s."
        measured = [case for run in same for case in run["cases"] if case["setting"]]
        yield "\n".join(f"- {case['name']}: {case['setting']}" for case in measured)


def name(run: dict[str, Any], case: dict[str, Any]) -> str:
    """A case and its device, where a table has one column for both."""
    return f"{case['name']}, {device(run)}"


def device(run: dict[str, Any]) -> str:
    """The device without its host."""
    return str(run["device"]).partition(" (host")[0]


def number(value: str | float) -> str:
    """Three significant digits; whole numbers in full."""
    if isinstance(value, str):
        return value
    if not isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e6:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"
