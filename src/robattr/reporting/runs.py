"""Runs as they are read, from directories or from records: configuration, training log and every evaluation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from robattr import data
from robattr.errors import CheckpointError
from robattr.evaluation import gallery
from robattr.evaluation.records import read_settings
from robattr.reporting.files import read_lines, read_object
from robattr.reporting.record import Record, measured_on, read_record, rows, variant
from robattr.reporting.training import Training, training

APPROACHES = {
    "natural": "NATURAL",
    "madry": "Madry et al.",
    "ig-norm": "IG-NORM",
    "ig-sum-norm": "IG-SUM-NORM",
}
ORDER = tuple(APPROACHES)
TELLING = ("m", "weight", "eps", "steps", "seed")


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of one run: its summary, its records (one per example), where its gallery lies, and its file."""

    summary: Mapping[str, Any]
    records: tuple[Mapping[str, Any], ...]
    gallery: Path | None
    source: Path
    weights: str | None = None

    @property
    def examples(self) -> int:
        """How many examples it is of."""
        return int(self.summary.get("examples") or len(self.records))

    @property
    def k(self) -> int:
        """The k of its top-k intersection (the evaluation's, where it differs from the attack's)."""
        settings = self.summary.get("settings", {})
        return int(settings.get("eval_k", settings.get("k", 100)))

    def scores(self, name: str, *, of: Container[Any] | None = None) -> list[float]:
        """The values of a score over the examples that have one (the correctly classified), or over those in `of`."""
        shown = (r for r in self.records if of is None or r["id"] in of)
        return [float(r[name]) for r in shown if r.get(name) is not None]


@dataclass(frozen=True)
class RunResults:
    """A run, read once from its directory or its records. `name` is what tables call it: the paper's for its method;
    `variant` is what its files are called. A record's `metrics` are thinned; `training` is always of the whole log."""

    name: str
    variant: str
    path: Path
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    metrics: tuple[Mapping[str, Any], ...]
    training: Training
    evaluations: tuple[Evaluation, ...]

    @property
    def dataset(self) -> str:
        return str(self.config.get("dataset", "unknown"))

    @property
    def method(self) -> str:
        return str(self.config.get("method", self.path.name))

    @property
    def own_network(self) -> bool:
        """Whether the network is the dataset's own, on the paper's datasets the paper's."""
        return not self.config.get("model")


@dataclass(frozen=True)
class Group:
    """Runs measured alike, so that their numbers may be compared: one dataset, one protocol, one kind of map, one k.

    `beside` others of another k (images of another size) it says its own.
    """

    dataset: str
    protocol: str
    map_name: str
    members: tuple[tuple[RunResults, Evaluation], ...]
    beside: bool = False

    @property
    def title(self) -> str:
        k = f" · k = {self.k}" if self.beside else ""
        return f"{self.dataset} · {self.protocol} protocol · {self.map_name} maps{k}"

    @property
    def key(self) -> str:
        return f"{self.dataset}-{self.protocol}-{self.map_name}" + (f"-k{self.k}" if self.beside else "")

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes: those the evaluation wrote down, else those of the dataset; () where unknown."""
        written = next((e.summary["classes"] for _, e in self.members if e.summary.get("classes")), None)
        if written is None and self.dataset in data.names():
            written = data.info(self.dataset).classes
        return tuple(map(str, written or ()))

    @property
    def k(self) -> int:
        """The k of its members' top-k intersections."""
        return self.members[0][1].k

    @property
    def counts(self) -> tuple[int, ...]:
        """The numbers of examples that the evaluations are of."""
        return tuple(sorted({evaluation.examples for _, evaluation in self.members}))

    @property
    def points(self) -> tuple[int, ...]:
        """The values of m (points of the training integral) among the IG-NORM runs."""
        return tuple(sorted({int(run.config["m"]) for run, _ in self.members if _varies_m(run)}))

    def of_one_m(self) -> Group:
        """Without the runs that only vary m: the m of most runs stays; of equals that of most examples, then of the
        longest training, then IG-SUM-NORM's, then the paper's 50.
        """
        if len(self.points) < 2:
            return self
        count, examples, steps = Counter[int](), Counter[int](), Counter[int]()
        for run, evaluation in self.members:
            if _varies_m(run):
                m = int(run.config["m"])
                count[m] += 1
                examples[m] += len(evaluation.records)
                steps[m] += int(run.config.get("steps") or 0)
        others = {run.config.get("m") for run, _ in self.members if run.method == "ig-sum-norm"}
        chosen = max(count, key=lambda m: (count[m], examples[m], steps[m], m in others, m == 50, m))
        return self.of(run for run, _ in self.members if not _varies_m(run) or int(run.config["m"]) == chosen)

    def of(self, runs: Iterable[RunResults]) -> Group:
        """The group with these of its runs alone."""
        kept = {id(run) for run in runs}
        return replace(self, members=tuple(member for member in self.members if id(member[0]) in kept))


def read_run(path: str | Path) -> RunResults:
    """Read a run directory; a missing or damaged file is named in the error."""
    root = Path(path)
    if not (root / "config.json").is_file():
        raise CheckpointError(
            f"{root} is neither a run directory (it has no config.json) nor a folder of records: `robattr train` and "
            "`robattr record` write them"
        )
    config = read_object(root / "config.json")
    environment = root / "environment.json"
    metrics = read_lines(root / "metrics.jsonl", torn_end=True)
    return RunResults(
        name=_approach(config, root),
        variant=variant(config),
        path=root,
        config=config,
        environment=read_object(environment) if environment.is_file() else {},
        metrics=metrics,
        training=training(metrics),
        evaluations=tuple(_evaluation(found) for found in sorted((root / "records").glob("*.json"))),
    )


def read_runs(paths: Iterable[str | Path]) -> tuple[RunResults, ...]:
    """Read runs (directories, records, folders of records), in the paper's order of methods.

    Runs that would share a name say what sets them apart. Galleries are found by their records: of `results/mnist*`
    they are passed over.
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
    runs = sorted([*map(read_run, dict.fromkeys(directories)), *_recorded(records)], key=_order)
    if not runs:
        raise CheckpointError("no run was given: name at least one directory or record")
    return tuple(_told_apart(run, [r for r in runs if (r.dataset, r.name) == (run.dataset, run.name)]) for run in runs)


def groups(runs: Iterable[RunResults]) -> tuple[Group, ...]:
    """The evaluations of the runs, gathered where they are comparable, in order of appearance."""
    gathered: dict[tuple[str, str, str, int], list[tuple[RunResults, Evaluation]]] = {}
    for run in runs:
        for evaluation in run.evaluations:
            summary = evaluation.summary
            dataset, foreign = measured_on(run.config, summary)
            key = (dataset, str(summary.get("protocol", "?")), str(summary.get("map", "?")), evaluation.k)
            named = replace(run, name=f"{run.name}, trained on {run.dataset}") if foreign else run
            gathered.setdefault(key, []).append((named, evaluation))
    alike = Counter(key[:3] for key in gathered)
    return tuple(Group(*key[:3], tuple(m), beside=alike[key[:3]] > 1) for key, m in gathered.items())


def measured(runs: Iterable[RunResults]) -> tuple[Group, ...]:
    """`groups`, or an error that says how to get one."""
    found = groups(runs)
    if not found:
        raise CheckpointError("none of the runs holds an evaluation: run `robattr evaluate RUN` first")
    return found


def _order(run: RunResults) -> tuple[str, int, str, str, float, int, str]:
    rank = ORDER.index(run.method) if run.method in ORDER else len(ORDER)
    return (
        run.dataset,
        rank,
        run.method,
        str(run.config.get("model") or ""),
        float(run.config.get("m") or 0),
        int(run.config.get("seed") or 0),
        run.path.name,
    )


def _approach(config: Mapping[str, Any], path: Path) -> str:
    """The paper's name of the method, and the network where it is not the dataset's own."""
    method = str(config.get("method", path.name))
    network = f", {config['model']}" if config.get("model") else ""
    return str(config.get("name") or f"{APPROACHES.get(method, method.upper())}{network}")


def _varies_m(run: RunResults) -> bool:
    """Whether the paper varies m for it (table 2)."""
    return (run.dataset, run.method) == ("mnist", "ig-norm") and run.config.get("m") is not None


def _told_apart(run: RunResults, twins: Sequence[RunResults]) -> RunResults:
    """The run named by all the telling settings that its twins do not share, where these tell them apart, else by its
    folder.
    """
    if len(twins) == 1:
        return run
    differing = [key for key in TELLING if len({str(twin.config.get(key)) for twin in twins}) > 1]
    if len({tuple(str(twin.config.get(key)) for key in differing) for twin in twins}) < len(twins):
        return replace(run, name=f"{run.name} ({run.path.name})")
    return replace(run, name=", ".join([run.name, *(f"{key} = {run.config.get(key)}" for key in differing)]))


def _evaluation(summary: Path) -> Evaluation:
    """A summary and the records it is about: an evaluation of fewer examples leaves those of a longer one before it."""
    settings = summary.with_suffix(".settings")
    weights = read_settings(summary).get("weights") if settings.is_file() else None
    found = read_object(summary)
    records = read_lines(summary.with_suffix(".jsonl"))[: found.get("examples")]
    return Evaluation(found, records, _gallery(summary), summary, weights)


def _recorded(paths: Iterable[Path]) -> list[RunResults]:
    """The runs that the records are of: records of one model are its evaluations."""
    gathered: dict[Path, list[tuple[Path, Record]]] = {}
    for path in dict.fromkeys(paths):
        record = read_record(path)
        gathered.setdefault(path.with_name(record.run), []).append((path, record))
    return [_of_records(path, records) for path, records in gathered.items()]


def _of_records(path: Path, records: Sequence[tuple[Path, Record]]) -> RunResults:
    source, first = records[0]
    for other, record in records[1:]:
        if (record.config, record.environment) != (first.config, first.environment):
            raise CheckpointError(
                f"{source} and {other} go by one name but were trained apart: record one of the runs again, with "
                "--force or under another --name"
            )
    given = "" if first.variant == variant(first.config) else f" ({first.variant})"  # by `robattr record --name`
    return RunResults(
        name=_approach(first.config, path) + given,
        variant=first.variant,
        path=path,
        config=first.config,
        environment=first.environment,
        metrics=tuple(row for columns in first.curve.values() for row in rows(columns)),
        training=Training(**first.training),
        evaluations=tuple(
            Evaluation(record.summary, tuple(rows(record.examples)), _gallery(file), file, record.weights)
            for file, record in records
        ),
    )


def _gallery(of: Path) -> Path | None:
    path = gallery.path_for(of)
    return path if path.is_file() else None
