"""The plan for a table or figure: its runs, which of them are done, and how long the others take here."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch

from robattr import recipes
from robattr._form import parse_json
from robattr.attacks.maps import by_name
from robattr.data import from_tensors, info
from robattr.engine.processes import choose_device
from robattr.errors import InvalidInput, nearest
from robattr.evaluation.job import Job as Evaluation
from robattr.evaluation.protocol import named, paper
from robattr.formula import Distributional, Joint, Robust
from robattr.reporting.published import DATASETS
from robattr.reporting.run_results import RunResults, read_runs
from robattr.training import custom
from robattr.training.config import TrainConfig
from robattr.training.run_directory import RunDirectory
from robattr.training.settings import FORMULA, change_by_words, parse_word
from robattr.training.setup import build_model


@dataclass(frozen=True)
class Target:
    """A table or figure: the methods compared, the map attacked, the datasets; `points` varies m in training."""

    title: str
    methods: tuple[str, ...]
    map: str = "ig"
    datasets: tuple[str, ...] = DATASETS
    points: tuple[int, ...] = ()


TARGETS = {
    "table1": Target("Attribution robustness of four training methods", recipes.METHODS),
    "table2": Target("IG-NORM with different m", ("ig-norm",), datasets=("mnist",), points=tuple(range(10, 101, 10))),
    "table3": Target("Robustness of simple-gradient maps", ("natural", "madry", "ig-sum-norm"), map="sg"),
    "figure1": Target("Attribution maps before and after the attack", ("natural", "ig-norm", "ig-sum-norm")),
    "figure2": Target("How attribution robustness spreads over examples", recipes.METHODS),
}
"""The tables and figures of the paper that can be reproduced, by name."""


@dataclass(frozen=True)
class Job:
    """Train `run` in `path`, then attack `map` on the first `examples` test examples, by `paper` or `strict`.

    A job with 0 examples is not evaluated: another job starts from its weights.
    """

    run: TrainConfig
    path: Path
    map: str
    examples: int
    protocol: str = "paper"

    @property
    def name(self) -> str:
        return f"{self.run.dataset}/{self.path.name}"

    @property
    def trained(self) -> bool:
        """Whether the final weights exist; raises if the directory contains another run."""
        here = RunDirectory(self.path)
        here.check_same(self.run, "move it away, or choose another --out")
        return here.config.exists() and here.weights.exists()

    @property
    def evaluated(self) -> bool:
        """Whether a summary of this many examples exists."""
        summary = self.path / "records" / f"{self.protocol}-{self.map}.json"
        with suppress(OSError, ValueError, KeyError, TypeError):
            return bool(parse_json(summary.read_text(encoding="utf-8"))["examples"] == self.examples)
        return False

    def starts_from(self, other: Job) -> bool:
        return self.run.warm_start == other.path.as_posix()


def jobs(
    name: str,
    out: Path,
    *,
    datasets: Sequence[str] = (),
    kind: str = "paper",
    examples: int | None = None,
    seed: int = 0,
    protocol: str = "paper",
    objectives: Sequence[str] = (),
    changes: Sequence[str] = (),
) -> list[Job]:
    """The jobs of the target `name`, in order. Runs are in OUT/DATASET/METHOD, shared by tables and figures.

    `objectives` replaces the target's methods: other methods, or custom objectives as "module:function". `changes` are
    settings `key=value` of the trainings; a run takes those that its objective has, so that m of NATURAL stays.
    """
    if name not in TARGETS:
        raise InvalidInput(f"unknown target {name!r}; {nearest(name, TARGETS)}")
    if kind not in ("paper", "tuned"):
        raise InvalidInput(f"expected recipes paper or tuned, got {kind!r}")
    target = TARGETS[name]
    fixed = {"dataset", "method", "seed", *(("m",) if target.points else ())}
    if decided := next((key for key, _ in map(parse_word, changes) if key in fixed), None):
        raise InvalidInput(f"cannot set {decided}, which {name}, --datasets and --seed decide: omit it")
    made: list[Job] = []
    for dataset in dict.fromkeys(datasets or target.datasets):
        test = info(dataset).sizes[2]
        named(protocol, paper(dataset))  # raises now if the name is unknown, not after the training
        for method in dict.fromkeys(objectives or target.methods):
            suffix = "-tuned" if kind == "tuned" and dataset != "fashion-mini" else ""
            run = _own(dataset, method) if ":" in method else recipes.get(f"{dataset}/{method}{suffix}")
            run = _changed(replace(run, seed=seed), changes)
            if first := recipes.before(run):
                first = _changed(first, changes)
                start = Job(first, out / dataset / _folder(first), target.map, 0, protocol)
                run = replace(run, warm_start=start.path.as_posix())
                made += [] if any(job.path == start.path for job in made) else [start]
            for m in target.points or (None,):
                varied = run if m is None else replace(run, m=m)
                path = out / dataset / _folder(varied, several=m is not None)
                made.append(Job(varied, path, target.map, min(examples or test, test), protocol))
    return made


def _changed(run: TrainConfig, changes: Sequence[str]) -> TrainConfig:
    """`run` with the changes that have an effect on it."""
    if not changes:  # building the objective would call the factory of a custom one
        return run
    rho = run.objective()

    def counts(key: str, value: Any) -> bool:
        if key in ("weight_ramp", "eps_ramp"):
            return run.own is not None or run.uses(key.removesuffix("_ramp"))
        return key not in FORMULA or replace(run, **{key: value}).objective() != rho

    return change_by_words(run, [word for word in changes if counts(*parse_word(word))])


def _own(dataset: str, ref: str) -> TrainConfig:
    """The run of a custom objective with the settings of `natural`; a function has no ε, so it gets no ramps."""
    base, own = recipes.get(f"{dataset}/natural"), custom.named(ref)
    made = own.objective(base, paper(dataset).bounds)
    ramps = isinstance(made, Robust | Joint | Distributional) or own.follows_config
    return (base if ramps else replace(base, eps_ramp=(), weight_ramp=())).with_objective(own)


def _folder(run: TrainConfig, *, several: bool = False) -> str:
    name = run.method if run.own is None else run.own.name
    return name + (f"-m{run.m}" if several else "") + (f"-seed{run.seed}" if run.seed else "")


@dataclass(frozen=True)
class Task:
    """The training or the evaluation of a job, and whether it is done."""

    kind: Literal["train", "evaluate"]
    job: Job
    done: bool

    @property
    def title(self) -> str:
        size = f"{self.job.run.steps:,} steps" if self.kind == "train" else f"{self.job.examples:,} examples"
        return f"{self.kind} {self.job.name} ({size})"

    def seconds(self, device: str) -> float:
        """Estimated time of the whole task, 0 if it is done."""
        if self.done:
            return 0.0
        return training_seconds(self.job, device) if self.kind == "train" else evaluation_seconds(self.job, device)


def tasks(jobs: Sequence[Job]) -> list[Task]:
    """The tasks of the jobs, in order. A model that must be trained again must be evaluated again."""
    made = []
    for job in jobs:
        trained = job.trained
        made.append(Task("train", job, trained))
        if job.examples:
            made.append(Task("evaluate", job, trained and job.evaluated))
    return made


def results(jobs: Sequence[Job]) -> tuple[RunResults, ...]:
    """The results of the jobs' runs, without evaluations that other jobs left in their directories."""
    shown = [job for job in jobs if job.examples]
    asked = {(job.path, job.protocol, job.map) for job in shown}
    return tuple(
        replace(
            run,
            evaluations=tuple(
                e for e in run.evaluations if (run.path, e.summary.get("protocol"), e.summary.get("map")) in asked
            ),
        )
        for run in read_runs([job.path for job in shown])
    )


def training_seconds(job: Job, device: str = "auto") -> float:
    """Estimated seconds of a training: steps × batch × gradients of an example.

    A first-order gradient (3 passes) takes half the time of a second-order one (6 passes).
    """
    run = job.run
    first_order = 1 + (run.attack_steps if run.uses("attack_steps") else 0)
    return run.steps * run.batch * (run.second_order + first_order / 2) * _probe(job, device).per_pass


def evaluation_seconds(job: Job, device: str = "auto") -> float:
    """Estimated seconds of an evaluation."""
    probe = _probe(job, device)
    return probe.seconds(probe.passes * job.examples)


def _probe(job: Job, device: str) -> Evaluation:
    return _timed(job.run.dataset, job.run.model, job.map, job.protocol, device)


@cache
def _timed(dataset: str, network: str, map: str, protocol: str, device: str) -> Evaluation:
    """An evaluation of the network on a random image, which times its gradients."""
    about, rules = info(dataset), named(protocol, paper(dataset))
    (low, high), y = rules.bounds, torch.zeros(1, dtype=torch.int64)
    x = low + (high - low) * torch.rand(1, *about.shape, generator=torch.Generator().manual_seed(0))
    data = from_tensors(x, y, bounds=rules.bounds, classes=about.classes, name=dataset)
    model = build_model(TrainConfig(dataset=dataset, model=network), data).to(choose_device(device)).eval()
    chosen = by_name(map, N=rules.N, bounds=rules.bounds)
    return Evaluation(model, chosen, x, y, [0], rules, compiled=False)
