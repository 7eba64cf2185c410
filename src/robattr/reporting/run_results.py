"""Evaluated runs, read from run directories or from records: settings, training log and every evaluation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from robattr._form import uncollected
from robattr._text import printable
from robattr.engine.files import read_object
from robattr.errors import CheckpointError
from robattr.evaluation import gallery
from robattr.evaluation.flags import TRANSFER
from robattr.evaluation.protocol import STRICT_VERSION
from robattr.evaluation.records import read_settings
from robattr.evaluation.scores import SATURATED
from robattr.evaluation.summary import ACCURACIES, read_checked, records_of
from robattr.metrics.intervals import Floats
from robattr.reporting.certified import CertificateResults, read_certificates
from robattr.reporting.record import (
    APPROACHES,
    CONFIG,
    ENVIRONMENT,
    SEARCH,
    approach,
    integrates,
    method_of,
    protocol_of,
    read_log,
    read_record,
    rows,
    run_name,
    variant,
)
from robattr.reporting.training_log import TrainingSummary, summarise

FAILURES = 0.02  # a share of examples without a prediction-keeping attack step that is worth a sentence
DISTINGUISHING = ("m", "weight", "eps", "steps", "seed")  # settings that tell runs of one method apart


@dataclass(frozen=True)
class EvaluationResults:
    """One evaluation of one run: its summary, one record per example, its gallery and its summary file."""

    summary: Mapping[str, Any]
    records: tuple[Mapping[str, Any], ...] = field(repr=False)
    gallery: Path | None
    source: Path
    weights: str | None = None

    @property
    def protocol(self) -> str:
        """The protocol with its version, `strict v2`: scores of different versions do not compare."""
        return protocol_of(self.summary)

    @property
    def strict(self) -> bool:
        """Whether the protocol is a stronger one than the paper's: `strict`, `exhaustive`."""
        return not self.protocol.startswith("paper")

    @property
    def failures(self) -> str:
        """A sentence about the examples on which every attack step changed the prediction; "" where they are few."""
        share = float(self.summary.get("never_kept") or 0)
        counted = "they have no score" if self.strict else "they count as unmoved, which raises the score"
        said = f"on {share:.0%} of the attacked examples no attack step kept the prediction: {counted}"
        return said if share >= FAILURES else ""

    @property
    def examples(self) -> int:
        return int(self.summary.get("examples") or len(self.records))

    @property
    def k(self) -> int:
        """The k of the top-k intersection; the attack may use another one."""
        settings = self.summary.get("settings", {})
        return int(settings.get("eval_k", settings.get("k", 100)))

    @property
    def outdated(self) -> str:
        """That an earlier version of the strict protocol made the record; "" if the present one did."""
        version = int((self.summary.get("settings") or {}).get("version", 1))
        old = self.summary.get("protocol") == "strict" and version < STRICT_VERSION
        return f"measured by {self.protocol}, a weaker attack than strict v{STRICT_VERSION}" if old else ""

    @property
    def radius(self) -> str:
        """ε with the range of the inputs, which says its unit: `8 (inputs from 0 to 255)`."""
        settings = self.summary["settings"]
        unit = "" if settings.get("bounds") is None else " (inputs from {:g} to {:g})".format(*settings["bounds"])
        return f"{float(settings['eps']):.4g}{unit}"

    def column(self, name: str) -> Mapping[str, Any]:
        """A column of the summary: value, low, high and n, as far as it has them; {} where it was not measured."""
        if name == "never_kept":
            return {"value": self.summary.get(name)}
        if name == "same_class_cosine":  # of several examples together: no column of the records
            return self.summary.get(name) or {}
        return (self.summary.get("columns") or {}).get(name) or {}

    def class_name(self, label: int) -> str:
        """The name of a class, printable; its number where the summary has none."""
        names = self.summary.get("classes") or ()
        return printable(str(names[label])) if label < len(names) else str(label)

    def record(self, example: int) -> Mapping[str, Any]:
        """The record of an example; {} where there is none."""
        return next((r for r in self.records if r.get("id") == example), {})

    def scores(self, name: str) -> list[float]:
        """A score over the examples that have one: those that were classified correctly."""
        return [float(r[name]) for r in self.records if r.get(name) is not None]

    def paired(self, other: EvaluationResults, name: str) -> tuple[Floats, Floats]:
        """A column of both evaluations on the examples that have it in both."""
        key = ACCURACIES.get(name, name)
        one, two = ({r["id"]: float(r[key]) for r in e.records if r.get(key) is not None} for e in (self, other))
        both = sorted(one.keys() & two.keys())
        return np.array([one[i] for i in both]), np.array([two[i] for i in both])


@dataclass(frozen=True)
class RunResults:
    """A run with its evaluations, read from its directory or its records.

    name         the name in tables: the method, and what distinguishes the run from others of it
    variant      the name in files
    metrics      the training log; a record has a thinned one
    training     the end of the training, always from the whole log
    search       how its settings were found (`record.SEARCH`); {} where nothing says it
    """

    name: str
    variant: str
    path: Path
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    metrics: tuple[Mapping[str, Any], ...] = field(repr=False)
    training: TrainingSummary
    evaluations: tuple[EvaluationResults, ...]
    certificates: tuple[CertificateResults, ...] = ()
    search: Mapping[str, Any] = field(default_factory=dict)

    @property
    def dataset(self) -> str:
        return str(self.config.get("dataset", "unknown"))

    @property
    def method(self) -> str:
        return method_of(self.config, self.path.name)

    def flags(self, evaluation: EvaluationResults) -> tuple[str, ...]:
        """The flags of one of its evaluations; also that a transfer attack on the same examples was stronger."""
        name = f"{evaluation.summary.get('protocol')}@transfer"
        others = [e for e in self.evaluations if e.summary.get("protocol") == name]
        same = [e for e in others if e.summary.get("map") == evaluation.summary.get("map")]
        lowered = [b - a for e in same for a, b in (e.paired(evaluation, key) for key in ("topk", "kendall"))]
        stronger = any(len(d) and d.mean() > SATURATED for d in lowered)
        return (*map(str, evaluation.summary.get("flags") or ()), *([TRANSFER] if stronger else []))

    def flagged(self, evaluation: EvaluationResults) -> str:
        """` (flagged: masked gradients)`; "" without a flag."""
        flags = self.flags(evaluation)
        return f" (flagged: {', '.join(flags)})" if flags else ""

    @property
    def regularised(self) -> bool:
        """Whether the objective is more than the clean loss; a user-defined one counts as regularised.

        A model before its hardening ("before") counts as not regularised: it is what the hardened one is compared with.
        """
        return self.config.get("method") not in ("natural", "before")

    @property
    def m(self) -> int | None:
        """The nodes of the integral in training; None where the objective has none."""
        m = self.config.get("m")
        return int(m) if m is not None and integrates(self.config.get("method")) else None


def read_run(path: str | Path) -> RunResults:
    """Read a run directory."""
    root = Path(path)
    if not (root / "config.json").is_file():
        inside = next((config.parent for config in sorted(root.glob("*/config.json"))), None)
        remedy = f"give its runs, such as {inside}" if inside else "`robattr train` and `robattr record` write them"
        why = "it has no config.json" if root.exists() else "it does not exist"
        raise CheckpointError(f"{root} is neither a run directory ({why}) nor a folder of records: {remedy}")
    config = read_object(root / "config.json", CONFIG)
    environment = root / "environment.json"
    metrics = read_log(root / "metrics.jsonl")
    return RunResults(
        name=approach(config, root.name),
        variant=variant(config),
        path=root,
        config=config,
        environment=read_object(environment, ENVIRONMENT) if environment.is_file() else {},
        metrics=metrics,
        training=summarise(metrics),
        evaluations=tuple(_read_evaluation(found) for found in sorted((root / "records").glob("*.json"))),
        certificates=read_certificates(root / "certificates"),
        search=read_object(search, SEARCH) if (search := root / "search.json").is_file() else {},
    )


@uncollected()
def read_runs(paths: Iterable[str | Path]) -> tuple[RunResults, ...]:
    """Read runs (directories, records, folders of records), in the order of `APPROACHES`.

    Runs of the same name get the settings that differ added to it. Gallery files (from `results/mnist*`, say) are
    ignored: records find their own.
    """
    directories: list[Path] = []
    records: list[Path] = []
    for path in map(Path, paths):
        if path.name.endswith(gallery.ENDING):
            continue
        inside = [] if (path / "config.json").is_file() else sorted(path.glob("*.json"))
        if path.is_file() or inside:
            records += inside or [path]
        else:
            directories.append(path)
    runs = sorted([*map(read_run, dict.fromkeys(directories)), *_read_records(records)], key=_order)
    if not runs:
        raise CheckpointError("no run was given: name at least one directory or record")
    twins: dict[tuple[str, str], list[RunResults]] = {}
    for run in runs:
        twins.setdefault((run.dataset, run.name), []).append(run)
    named = {id(run): new for of in twins.values() for run, new in zip(of, _distinguish(of), strict=True)}
    return tuple(named[id(run)] for run in runs)


def _order(run: RunResults) -> tuple[str, int, str, str, float, int, str]:
    rank = [*APPROACHES, run.method].index(run.method)
    network, m, seed = (run.config.get(key) for key in ("model", "m", "seed"))
    return run.dataset, rank, run.method, str(network or ""), float(m or 0), int(seed or 0), run.path.name


def _distinguish(twins: Sequence[RunResults]) -> list[RunResults]:
    """Add the distinguishing settings that differ to the names of the runs; their folders where they do not suffice."""
    if len(twins) == 1:
        return [*twins]
    differing = [key for key in DISTINGUISHING if len({str(twin.config.get(key)) for twin in twins}) > 1]
    if len({tuple(str(twin.config.get(key)) for key in differing) for twin in twins}) < len(twins):
        return [replace(run, name=f"{run.name} ({run.path.name})") for run in twins]
    return [
        replace(run, name=", ".join([run.name, *(f"{key} = {run.config.get(key)}" for key in differing)]))
        for run in twins
    ]


def _read_evaluation(path: Path) -> EvaluationResults:
    """A summary and its records, with which it must agree."""
    weights = read_settings(path).get("weights") if path.with_suffix(".settings").is_file() else None
    summary, records = read_checked(path)
    return EvaluationResults(summary, tuple(records_of(summary, records)), _gallery(path), path, weights)


def _read_records(paths: Iterable[Path]) -> list[RunResults]:
    """One run for all records of one model."""
    runs: dict[Path, RunResults] = {}
    for path in dict.fromkeys(paths):
        run = _read_record(path)
        first = runs.setdefault(run.path, run)
        if (run.config, run.environment) != (first.config, first.environment):
            raise CheckpointError(
                f"{first.evaluations[0].source} and {path} have one name but come from different trainings: record one "
                "of the runs again, with --force or under another --name"
            )
        if run is not first:
            runs[run.path] = replace(first, evaluations=(*first.evaluations, *run.evaluations))
    return list(runs.values())


def _read_record(file: Path) -> RunResults:
    """A run with one evaluation."""
    record = read_record(file)
    config, path = record["config"], file.with_name(run_name(record))
    given = "" if record["variant"] == variant(config) else f" ({record['variant']})"  # by `robattr record --name`
    examples = tuple(rows(record["examples"]))
    return RunResults(
        name=approach(config, path.name) + given,
        variant=record["variant"],
        path=path,
        config=config,
        environment=record["environment"],
        metrics=tuple(row for columns in record["curve"].values() for row in rows(columns)),
        training=TrainingSummary(**record["training"]),
        evaluations=(EvaluationResults(record["summary"], examples, _gallery(file), file, record["weights"]),),
        search=record.get("search", {}),
    )


def _gallery(summary: Path) -> Path | None:
    path = gallery.path_for(summary)
    return path if path.is_file() else None
