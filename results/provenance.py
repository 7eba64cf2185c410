"""The provenance of the published numbers: commands, dates, devices, versions and files of each record."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from robattr.reporting.run_results import EvaluationResults, RunResults
from robattr.reporting.tables import escape_markdown, folded, grid

RENAMED = """\
Commands are as typed: a recipe `…-fast` is now `…-tuned`, and so are the zoo's names in commands of tuned networks
(`evaluate gtsrb/ig-norm` of `wide_resnet` is now `gtsrb/ig-norm-tuned`)."""
HEADINGS = ("Model", "Protocol", "Map", "Examples", "Seed", "Trained", "Evaluated", "Versions", "Weights", "File")


def provenance(runs: Sequence[RunResults], folder: Path) -> str:
    """A section with a row for each evaluation and the commands; links are relative to `folder`."""
    parts = ["## Provenance", RENAMED]
    for dataset in dict.fromkeys(run.dataset for run in runs):
        chosen = [run for run in runs if run.dataset == dataset]
        rows = [_row(run, evaluation, folder) for run in chosen for evaluation in run.evaluations]
        summary = f"{dataset}: {len(rows)} evaluations, with versions, weights and commands"
        parts.append(folded(summary, "\n\n".join([grid(HEADINGS, rows), *_commands(chosen)])))
    return "\n\n".join(parts)


def _row(run: RunResults, evaluation: EvaluationResults, folder: Path) -> list[str]:
    summary, environment = evaluation.summary, run.environment
    trained = _made(environment.get("started"), environment.get("device"), run.training.seconds)
    evaluated = _made(summary.get("finished"), summary.get("device"), summary.get("seconds"))
    if earlier := summary.get("earlier"):  # `seconds` is the time of the command that finished it
        evaluated += f" for the last {len(evaluation.records) - earlier:,}"
    cells = (
        run.name, evaluation.protocol, summary.get("map"), len(evaluation.records), run.config.get("seed"), trained,
        evaluated, _versions(environment, summary), evaluation.weights or "–",
    )  # fmt: skip
    link = Path(os.path.relpath(evaluation.source, folder)).as_posix()
    return [*(escape_markdown(str(cell)) for cell in cells), f"[{escape_markdown(evaluation.source.name)}]({link})"]


def _made(when: Any, device: Any, seconds: float | None) -> str:
    """`2026-11-15, NVIDIA H200, 512 s`, as far as it is known."""
    parts = [str(when)[:10] if when else "", str(device or ""), "" if seconds is None else f"{seconds:,.0f} s"]
    return ", ".join(part for part in parts if part) or "–"


def _versions(environment: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    """The versions of the training, and those of the evaluation that differ."""
    trained, evaluated = (of.get("versions") or {} for of in (environment, summary))
    commit, _, dirty = str(environment.get("git") or "").partition("-")
    said = [f"{name} {version}" for name, version in trained.items()]
    said += [f"git {commit[:12]}{' with changes' if dirty else ''}"] if commit else []
    said += [f"evaluated with {name} {v}" for name, v in evaluated.items() if trained and trained.get(name) != v]
    return ", ".join(said) or "–"


def _commands(runs: Sequence[RunResults]) -> list[str]:
    """One block with the commands of the trainings, then of the evaluations."""
    trained = [run.environment.get("command") for run in runs]
    evaluated = [e.summary.get("command") for run in runs for e in run.evaluations]
    commands = dict.fromkeys(" ".join(str(command).split()) for command in [*trained, *evaluated] if command)
    return ["\n".join(f"    {command}" for command in commands)] if commands else []
