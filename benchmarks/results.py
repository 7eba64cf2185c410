"""The results of a benchmark, stored as JSON; docs/benchmarks.md is rendered from these files."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from robattr.engine.files import write_atomically

SCHEMA = 1


@dataclass(frozen=True)
class Times:
    """Milliseconds per call: median, fastest and slowest of `repeats` samples of `calls` calls each."""

    ms: float
    low: float
    high: float
    repeats: int
    calls: int = 1

    def per(self, n: int) -> Times:
        """The time of one of n equal parts of the call."""
        return Times(self.ms / n, self.low / n, self.high / n, self.repeats, self.calls)


@dataclass(frozen=True)
class Agreement:
    """The distance ‖engine − port‖ / ‖port‖ (or another stated one) and the largest distance allowed."""

    of: str
    measured: float
    allowed: float


@dataclass(frozen=True)
class Roofline:
    """The least time that the counted work takes at the measured rates of the device.

    operations   of convolutions and matrix products; `baseline_operations` are those of the port
    bytes        each input and parameter read once, each result written once
    kept_bytes   activations that the forward pass keeps for the backward pass, written once and read once
    """

    operations: float
    bytes: float
    kept_bytes: float
    baseline_operations: float
    floor_ms: float
    kept_ms: float
    bound: str


@dataclass(frozen=True)
class Side:
    """One implementation and its time."""

    what: str
    times: Times


@dataclass(frozen=True)
class Comparison:
    """The port and the engine on the same inputs.

    spent      shares of the engine's time by kind of kernel
    slowest    its slowest kernels: name, ms and launches per call
    busy_ms    milliseconds of all its kernels; of a GPU, the rest of its time is waiting between them
    kernels    how many the compiler wrote in `compile_s` seconds
    compiling  where these went: {phase: seconds}
    """

    what: str
    baseline: Side
    engine: Side
    agreement: tuple[Agreement, ...] = ()
    roofline: Roofline | None = None
    compile_s: float = 0.0
    per: str = "call"
    spent: dict[str, float] = field(default_factory=dict)
    slowest: tuple[tuple[str, float, float], ...] = ()
    busy_ms: float = 0.0
    kernels: int = 0
    compiling: dict[str, float] = field(default_factory=dict)
    ratio: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ratio", self.baseline.times.ms / self.engine.times.ms)


@dataclass(frozen=True)
class Table:
    """Any other measurements of a case."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str | float, ...], ...]


@dataclass(frozen=True)
class Case:
    """All measurements of one case, or the `error` that stopped it."""

    name: str
    setting: str = ""
    comparisons: tuple[Comparison, ...] = ()
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()
    error: str = ""
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
    rates: dict[str, float]
    cases: tuple[Case, ...] = ()
    seconds: float = 0.0
    schema: int = SCHEMA

    def plain(self) -> dict[str, Any]:
        """As JSON has it: dictionaries and lists."""
        made: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return made

    def write(self, path: Path) -> None:
        write_atomically(path, (json.dumps(self.plain(), indent=2, ensure_ascii=False) + "\n").encode())


def read(path: Path) -> dict[str, Any]:
    """A report, or the record of an evaluation that `robattr record` wrote."""
    plain: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if "summary" not in plain and plain.get("schema") != SCHEMA:
        raise ValueError(f"expected a benchmark of schema {SCHEMA}, got schema {plain.get('schema')} in {path}")
    return plain
