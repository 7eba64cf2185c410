"""What a benchmark says, as frozen values that JSON can hold; tables on a terminal or a page are renderings of them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from robattr.bench.timing import Times
from robattr.errors import InvalidInput

SCHEMA = 1


@dataclass(frozen=True)
class Agreement:
    """How far the two sides are apart: ‖engine − port‖ / ‖port‖ (or another stated distance), and what is allowed."""

    of: str
    measured: float
    allowed: float


@dataclass(frozen=True)
class Roofline:
    """The floor under the engine's time: counted work over the device's measured rates.

    operations        of convolutions and matrix products; `baseline_operations` those of the port
    bytes             each input and parameter read once, each result written once
    kept_bytes        what a forward pass keeps for the backward pass, written once and read once: hard to avoid
    """

    operations: float
    bytes: float
    kept_bytes: float
    baseline_operations: float
    floor_ms: float
    kept_ms: float
    bound: str

    def times_floor(self, ms: float) -> float:
        return ms / self.floor_ms


@dataclass(frozen=True)
class Side:
    """One of the two ways: what it is, and how long it takes."""

    what: str
    times: Times


@dataclass(frozen=True)
class Comparison:
    """The obvious way and the engine, in one run, on the same numbers. `spent`: shares of the engine's time by kind."""

    what: str
    baseline: Side
    engine: Side
    agreement: tuple[Agreement, ...] = ()
    roofline: Roofline | None = None
    compile_s: float = 0.0
    per: str = "call"
    spent: dict[str, float] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        return self.baseline.times.ms / self.engine.times.ms


@dataclass(frozen=True)
class Table:
    """Anything else worth a table: the quadrature errors beside a comparison, a sweep, memory against m."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str | float, ...], ...]


@dataclass(frozen=True)
class Case:
    """Everything measured of one case; `error` instead where it failed, and then no number."""

    name: str
    setting: str = ""
    comparisons: tuple[Comparison, ...] = ()
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()
    error: str = ""
    disagreed: bool = False
    seconds: float = 0.0


@dataclass(frozen=True)
class Report:
    """One run of the benchmark."""

    date: str
    command: str
    device: str
    precision: str
    quick: bool
    versions: dict[str, str]
    rates: dict[str, float] = field(default_factory=dict)
    cases: tuple[Case, ...] = ()
    seconds: float = 0.0
    schema: int = SCHEMA

    @property
    def failed(self) -> tuple[Case, ...]:
        return tuple(case for case in self.cases if case.error)

    def to_json(self) -> str:
        plain = asdict(self)
        for case, made in zip(plain["cases"], self.cases, strict=True):
            for row, comparison in zip(case["comparisons"], made.comparisons, strict=True):
                row["ratio"] = comparison.ratio
        return json.dumps(plain, indent=2, ensure_ascii=False) + "\n"


@dataclass(frozen=True)
class Evaluation:
    """A published evaluation (`robattr record`), which says itself how long it took."""

    of: str
    map: str
    attacked: int
    repeats: int
    iterations: int
    nodes: str
    device: str
    precision: str
    date: str
    seconds: float


def read(path: Path) -> Report | Evaluation:
    """A report from its file, or an evaluation from its record."""
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        if "summary" in plain:
            return _evaluation(path, plain)
        if plain["schema"] != SCHEMA:
            raise InvalidInput(f"{path} has schema {plain['schema']}, expected {SCHEMA}: run the benchmark again")
        return Report(**{**plain, "cases": tuple(_case(case) for case in plain["cases"])})
    except OSError as cause:
        raise InvalidInput(f"cannot read {path}: {cause.strerror}") from cause
    except (ValueError, KeyError, TypeError) as cause:
        if isinstance(cause, InvalidInput):
            raise
        raise InvalidInput(f"{path} is not a file that `robattr bench --json` or `robattr record` wrote") from cause


def _evaluation(path: Path, record: dict[str, Any]) -> Evaluation:
    summary = record["summary"]
    if earlier := summary.get("earlier"):
        raise InvalidInput(
            f"expected an evaluation by one command, got {path}, whose {summary['seconds']:.0f} s do not count the "
            f"{earlier} examples of an earlier one: evaluate anew with --fresh for a time to publish"
        )
    settings = summary["settings"]
    restarts = settings["repeats"] + sum(n for _, n in settings["sweep"])
    return Evaluation(
        of=f"{summary['dataset']} {record['variant']}, {summary['protocol']}",
        map=summary["map"],
        attacked=summary["correct"] - summary["excluded"],
        repeats=restarts,
        iterations=settings["steps"],
        nodes=str(settings["N"]) if summary["map"] == "ig" else "–",
        device=summary["device"],
        precision=summary["precision"],
        date=summary["finished"],
        seconds=summary["seconds"],
    )


def _case(plain: dict[str, Any]) -> Case:
    tables = (Table(t["title"], tuple(t["columns"]), tuple(tuple(row) for row in t["rows"])) for t in plain["tables"])
    return Case(
        **{
            **plain,
            "comparisons": tuple(_comparison(c) for c in plain["comparisons"]),
            "tables": tuple(tables),
            "notes": tuple(plain["notes"]),
        }
    )


def _comparison(plain: dict[str, Any]) -> Comparison:
    rest = {key: value for key, value in plain.items() if key != "ratio"}
    roofline = plain["roofline"]
    return Comparison(
        **{
            **rest,
            "baseline": Side(plain["baseline"]["what"], Times(**plain["baseline"]["times"])),
            "engine": Side(plain["engine"]["what"], Times(**plain["engine"]["times"])),
            "agreement": tuple(Agreement(**a) for a in plain["agreement"]),
            "roofline": None if roofline is None else Roofline(**roofline),
        }
    )
