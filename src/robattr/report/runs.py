"""What a run directory says: configuration, environment, training log and every evaluation recorded in it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from robattr import data
from robattr.errors import CheckpointError

APPROACHES = {
    "natural": "NATURAL",
    "madry": "Madry et al.",
    "ig-norm": "IG-NORM",
    "ig-sum-norm": "IG-SUM-NORM",
}
ORDER = tuple(APPROACHES)


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of one run: its summary, its records (one per example) and where its gallery lies."""

    summary: Mapping[str, Any]
    records: tuple[Mapping[str, Any], ...]
    gallery: Path | None

    def scores(self, name: str) -> list[float]:
        """The values of a score over the examples that have one (the correctly classified)."""
        return [float(r[name]) for r in self.records if r.get(name) is not None]


@dataclass(frozen=True)
class Run:
    """A run directory, read once. `name` is what tables call it: the paper's name of its method."""

    name: str
    path: Path
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    metrics: tuple[Mapping[str, Any], ...]
    evaluations: tuple[Evaluation, ...]

    @property
    def dataset(self) -> str:
        return str(self.config.get("dataset", "unknown"))

    @property
    def method(self) -> str:
        return str(self.config.get("method", self.path.name))


@dataclass(frozen=True)
class Group:
    """Runs measured alike, so that their numbers may be compared: one dataset, one protocol, one kind of map."""

    dataset: str
    protocol: str
    map_name: str
    members: tuple[tuple[Run, Evaluation], ...]

    @property
    def title(self) -> str:
        return f"{self.dataset} · {self.protocol} protocol · {self.map_name} maps"

    @property
    def key(self) -> str:
        return f"{self.dataset}-{self.protocol}-{self.map_name}"

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes: those the evaluation wrote down, else those of the dataset; () where unknown."""
        written = next((e.summary["classes"] for _, e in self.members if e.summary.get("classes")), None)
        if written is None and self.dataset in data.names():
            written = data.card(self.dataset).classes
        return tuple(map(str, written or ()))

    @property
    def k(self) -> int:
        """The k of top-k (the evaluation's, where it differs from the attack's)."""
        settings = self.members[0][1].summary.get("settings", {})
        return int(settings.get("eval_k", settings.get("k", 100)))


def read_run(path: str | Path) -> Run:
    """Read a run directory; a missing or damaged file is named in the error."""
    root = Path(path)
    if not (root / "config.json").is_file():
        raise CheckpointError(
            f"{root} is not a run directory: expected {root / 'config.json'}; `robattr train` writes one"
        )
    config = _object(root / "config.json")
    method = str(config.get("method", root.name))
    environment = root / "environment.json"
    return Run(
        name=str(config.get("name") or APPROACHES.get(method, method.upper())),
        path=root,
        config=config,
        environment=_object(environment) if environment.is_file() else {},
        metrics=_lines(root / "metrics.jsonl", torn_end=True),
        evaluations=tuple(_evaluation(found) for found in sorted((root / "records").glob("*.json"))),
    )


def read_runs(paths: Iterable[str | Path]) -> tuple[Run, ...]:
    """Read several runs, in the paper's order of methods; runs that would share a name say what sets them apart."""
    runs = sorted((read_run(path) for path in paths), key=_order)
    if not runs:
        raise CheckpointError("no run directory was given: name at least one")
    return tuple(_told_apart(run, [r for r in runs if (r.dataset, r.name) == (run.dataset, run.name)]) for run in runs)


def groups(runs: Iterable[Run]) -> tuple[Group, ...]:
    """The evaluations of the runs, gathered where they are comparable, in order of appearance."""
    gathered: dict[tuple[str, str, str], list[tuple[Run, Evaluation]]] = {}
    for run in runs:
        for evaluation in run.evaluations:
            summary = evaluation.summary
            key = (run.dataset, str(summary.get("protocol", "?")), str(summary.get("map", "?")))
            gathered.setdefault(key, []).append((run, evaluation))
    return tuple(Group(*key, tuple(members)) for key, members in gathered.items())


def measured(runs: Iterable[Run]) -> tuple[Group, ...]:
    """`groups`, or an error that says how to get one."""
    found = groups(runs)
    if not found:
        raise CheckpointError("none of the runs holds an evaluation: run `robattr evaluate RUN` first")
    return found


def _order(run: Run) -> tuple[str, int, str, float, str]:
    rank = ORDER.index(run.method) if run.method in ORDER else len(ORDER)
    return run.dataset, rank, run.method, float(run.config.get("m") or 0), run.path.name


def _told_apart(run: Run, twins: Sequence[Run]) -> Run:
    """The run named by the setting on which it differs from every twin, else by its folder."""
    if len(twins) == 1:
        return run
    for key in ("m", "weight", "eps", "steps", "seed"):
        if len({str(twin.config.get(key)) for twin in twins}) == len(twins):
            return replace(run, name=f"{run.name}, {key} = {run.config.get(key)}")
    return replace(run, name=f"{run.name} ({run.path.name})")


def _evaluation(summary: Path) -> Evaluation:
    gallery = summary.with_name(f"{summary.stem}-gallery.npz")
    return Evaluation(
        summary=_object(summary),
        records=_lines(summary.with_suffix(".jsonl")),
        gallery=gallery if gallery.is_file() else None,
    )


def _object(path: Path) -> Mapping[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as cause:
        raise CheckpointError(f"{path} could not be read as JSON ({cause}): the file is damaged") from cause
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value


def _lines(path: Path, *, torn_end: bool = False) -> tuple[Mapping[str, Any], ...]:
    """The objects of a JSON-lines file, none where it is absent. A log still being written may end mid-line."""
    if not path.is_file():
        return ()
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    rows: list[Mapping[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(json.loads(line))
        except ValueError as cause:
            if torn_end and number == len(lines):
                break
            raise CheckpointError(f"{path}, line {number} is not JSON ({cause}): the file is damaged") from cause
    return tuple(rows)
