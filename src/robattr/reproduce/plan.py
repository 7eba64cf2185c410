"""A plan: train and evaluate each job, skipping what is done. Stopping and starting again continues it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from robattr.reporting.run_results import RunResults, read_runs
from robattr.reproduce import estimate
from robattr.reproduce.job import Job, Progress

Bar = Callable[[str], AbstractContextManager[Progress]]


@dataclass(frozen=True)
class Task:
    """Half a job, and whether it is done."""

    kind: Literal["train", "evaluate"]
    job: Job
    done: bool

    @property
    def title(self) -> str:
        size = f"{self.job.run.steps:,} steps" if self.kind == "train" else f"{self.job.examples:,} examples"
        return f"{self.kind} {self.job.name} ({size})"

    def seconds(self, device: str) -> float:
        """An estimate of the time that is left, as if nothing of it had been done."""
        if self.done:
            return 0.0
        of = estimate.seconds_to_train if self.kind == "train" else estimate.seconds_to_evaluate
        return of(self.job, device)


@dataclass(frozen=True)
class Stopped:
    """A signal interrupted the plan at this step."""

    step: Task
    signal: int


def steps(jobs: Sequence[Job]) -> list[Task]:
    """What the jobs ask for, in order; the evaluation of a model that must be trained again is not done."""
    made = []
    for job in jobs:
        trained = job.trained
        made.append(Task("train", job, trained))
        if job.examples:
            made.append(Task("evaluate", job, trained and job.evaluated))
    return made


def execute(
    plan: Sequence[Task], *, say: Callable[[str], None], bar: Bar, device: str = "auto", data_dir: Path | None = None
) -> Stopped | None:
    """Do what is left of the plan, telling each step as it begins; an interrupt stops it, and what was done is kept."""
    for number, step in enumerate(plan, start=1):
        say(f"{number}/{len(plan)} {step.title}{': done before' if step.done else ''}")
        if step.done:
            continue
        if step.kind == "train":
            outcome = step.job.train(device=device, data_dir=data_dir)
            if not outcome.finished:
                return Stopped(step, outcome.stopped_by or 15)
        else:
            try:
                with bar(step.job.name) as progress:
                    step.job.evaluate(device=device, data_dir=data_dir, progress=progress)
            except KeyboardInterrupt:  # a training takes the signal itself, an evaluation is always ready to end
                return Stopped(step, signal.SIGINT)
    return None


def results(jobs: Sequence[Job]) -> tuple[RunResults, ...]:
    """The jobs' runs with the evaluations the jobs name: the directories may hold others."""
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
