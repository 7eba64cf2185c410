"""The speed that this project asks of itself, beside what was measured: `make bench` says which bars are met.

A case's own bars are on its training step and on the paper's whole schedule, its steps times the fastest step measured.
Where one is missed, the kinds of kernels that take most of the time, and the distance from the floor, say why.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from benchmarks.results import Table
from robattr import recipes

SCHEDULE = "The paper's schedule"
AUDITS = "Audit of 100 images"
SPENT = "Where the time of the attack goes"
HARDENED = "Hardening by default settings"


@dataclass(frozen=True)
class Bars:
    """Of one network: the least ratio to the port at equal error of IG, and the most ms, minutes and compilation s."""

    ratio: float
    ms: float | None = None
    minutes: float | None = None
    compile_s: float = 30.0


TRAINING = {
    "mnist": Bars(20, 10, 17),
    "fashion": Bars(20, None, 9),
    "gtsrb": Bars(40, 12, 14),
    "flower": Bars(100, 25, 28),
    "mini": Bars(3.5),
}
AUDITED = ("resnet50", "vit_b_16")
AUDIT = {"paper": 6.0, "both": 20.0}  # minutes
PASSES = {"resnet50": 1500.0}  # second-order image passes a second in reduced precision
WITHIN = 2.0  # how many times an audit may take longer, or shorter, than the estimate

COLUMNS = ("case", "what", "bar", "measured", "met", "in the way")


def schedule(recipe: str, step_ms: float, how: str) -> Table:
    """Minutes of a recipe's whole training."""
    steps = recipes.get(recipe).steps
    return Table(SCHEDULE, ("recipe", "steps", "minutes", "by"), ((recipe, steps, steps * step_ms / 6e4, how),))


def rows(case: dict[str, Any]) -> Iterator[list[str]]:
    """The bars of a case as `benchmarks.results` stores it, in the order of COLUMNS."""
    bars, name = TRAINING.get(case["name"]), case["name"]
    equal = [c for c in case["comparisons"] if c["what"].startswith("training step, equal error of IG")]
    if bars is not None and equal:
        c = min(equal, key=lambda c: c["engine"]["times"]["ms"])
        why, ms, seconds = in_the_way(c), c["engine"]["times"]["ms"], c["compile_s"]
        how = "".join(c["what"].partition(", bf16")[1:2])
        yield row(
            name, f"step{how}, ratio to the port", f"≥ {bars.ratio:g}×", f"{c['ratio']:.3g}×", c["ratio"] >= bars.ratio,
            why,
        )  # fmt: skip
        if bars.ms is not None:
            yield row(name, f"step{how}", f"≤ {bars.ms:g} ms", f"{ms:.3g} ms", ms <= bars.ms, why)
        written = f"{c['kernels']} kernels to generate and compile" if c.get("kernels") else ""
        if phases := c.get("compiling"):
            written += ": " + ", ".join(f"{spent:.3g} s {phase}" for phase, spent in phases.items())
        yield row(
            name, "compilation", f"≤ {bars.compile_s:g} s", f"{seconds:.3g} s", seconds <= bars.compile_s, written
        )
    for table in case["tables"]:
        if table["title"] == SCHEDULE and bars and bars.minutes is not None:
            for _, _, minutes, how in table["rows"]:
                fastest = min(
                    (c for c in case["comparisons"] if c["what"].startswith("training step")),
                    key=lambda c: c["engine"]["times"]["ms"],
                )
                what = f"the paper's schedule, {how}"
                met = minutes <= bars.minutes
                yield row(name, what, f"≤ {bars.minutes:g} min", f"{minutes:.3g} min", met, in_the_way(fastest))
        if table["title"] == AUDITS:
            spent = [each["rows"] for each in case["tables"] if each["title"] == SPENT]
            yield from audit_rows(name, table["rows"], shares(dict(spent[0])) if spent else "")


def unmeasured(cases: Iterable[dict[str, Any]]) -> Iterator[list[str]]:
    """The bars of audits that no case has measured."""
    tables = [(case["name"], table) for case in cases for table in case["tables"] if table["title"] == AUDITS]
    known = {(name, what) for name, table in tables for what, *_ in table["rows"]}
    for name, (what, most) in product(AUDITED, AUDIT.items()):
        if (name, what) not in known:
            yield [name, f"audit, {what}", f"≤ {most:g} min", "not yet", "", ""]


def audit_rows(name: str, measured: list[list[Any]], why: str) -> Iterator[list[str]]:
    """Rows (what, value, estimate): minutes of an audit beside their estimate, and passes a second."""
    for what, value, estimate in measured:
        if what in AUDIT:
            yield row(name, f"audit, {what}", f"≤ {AUDIT[what]:g} min", f"{value:.3g} min", value <= AUDIT[what], why)
            if estimate:
                off = max(value / estimate, estimate / value)
                said = f"estimate of it, {estimate:.3g} min"
                yield row(name, said, f"within {WITHIN:g}×", f"{off:.2f}×", off <= WITHIN, "")
        elif name in PASSES:
            bar = PASSES[name]
            yield row(name, what, f"≥ {bar:,.0f} /s", f"{value:,.0f} /s", value >= bar, why)


def row(case: str, what: str, bar: str, measured: str, met: bool, why: str) -> list[str]:
    return [case, what, bar, measured, "yes" if met else "**no**", "" if met else why]


def in_the_way(c: dict[str, Any]) -> str:
    """The time between kernels, the largest shares of theirs, and the distance from the floor."""
    ms, busy = c["engine"]["times"]["ms"], c.get("busy_ms", 0.0)
    said = [f"{1 - busy / ms:.0%} between kernels, of theirs"] if 0 < busy < ms else []
    return ", ".join(
        [" ".join([*said, shares(c.get("spent", {}))]), f"{ms / c['roofline']['floor_ms']:.3g} times the floor"]
    )


def shares(spent: dict[str, float]) -> str:
    """The three largest shares of the time, in words."""
    largest = sorted(spent.items(), key=lambda pair: -pair[1])[:3]
    return ", ".join(f"{share:.0%} {kind}" for kind, share in largest)
