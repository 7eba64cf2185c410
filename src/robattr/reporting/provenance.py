"""Where numbers come from: for each record the commands, the date, the machine in general terms, and the file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from robattr.reporting.export import portable
from robattr.reporting.runs import Evaluation, RunResults
from robattr.reporting.tables import escape_markdown, grid

HEADINGS = ("Model", "Protocol", "Map", "Examples", "Seed", "Trained", "Evaluated", "Versions", "Weights", "File")


def provenance(runs: Sequence[RunResults], beside: Path) -> str:
    """A section: a row for each evaluation, then what was typed. Links lead from the folder `beside`."""
    parts = ["## Provenance"]
    for dataset in dict.fromkeys(run.dataset for run in runs):
        chosen = [run for run in runs if run.dataset == dataset]
        rows = [_row(run, evaluation, beside) for run in chosen for evaluation in run.evaluations]
        parts += [f"### {escape_markdown(dataset)}", grid(HEADINGS, rows), *_typed(chosen)]
    return "\n\n".join(parts)


def _row(run: RunResults, evaluation: Evaluation, beside: Path) -> list[str]:
    summary, environment = evaluation.summary, run.environment
    trained = _made(environment.get("started"), environment.get("device"), run.training.seconds)
    evaluated = _made(summary.get("finished"), summary.get("device"), summary.get("seconds"))
    if earlier := summary.get("earlier"):  # the seconds are those of the command that finished it
        evaluated += f" for the last {len(evaluation.records) - earlier:,}"
    cells = (
        run.name, summary.get("protocol"), summary.get("map"), len(evaluation.records), run.config.get("seed"), trained,
        evaluated, _versions(environment, summary), evaluation.weights or "–",
    )  # fmt: skip
    return [*(escape_markdown(str(cell)) for cell in cells), _file(evaluation.source, beside)]


def _made(when: Any, device: Any, seconds: float | None) -> str:
    """`2026-11-15, NVIDIA H200, 512 s`, as far as it is known."""
    parts = [str(when)[:10] if when else "", str(device or ""), "" if seconds is None else f"{seconds:,.0f} s"]
    return ", ".join(part for part in parts if part) or "–"


def _versions(environment: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    """Those of training, and those of the evaluation that were others."""
    trained, evaluated = (of.get("versions") or {} for of in (environment, summary))
    commit, _, dirty = str(environment.get("git") or "").partition("-")
    said = [f"{name} {version}" for name, version in trained.items()]
    said += [f"git {commit[:12]}{' with changes' if dirty else ''}"] if commit else []
    said += [f"evaluated with {name} {v}" for name, v in evaluated.items() if trained and trained.get(name) != v]
    return ", ".join(said) or "–"


def _file(source: Path, beside: Path) -> str:
    """A link, where the file was named by a path from here; what lies above says more about a machine than a run."""
    if source.is_absolute() or beside.is_absolute():
        return escape_markdown(source.name)
    return f"[{escape_markdown(source.name)}]({quote(Path(os.path.relpath(source, beside)).as_posix())})"


def _typed(runs: Sequence[RunResults]) -> list[str]:
    commands = dict.fromkeys(
        " ".join(portable(str(command)).split())
        for command in [
            *(run.environment.get("command") for run in runs),
            *(e.summary.get("command") for run in runs for e in run.evaluations),
        ]
        if command
    )
    return ["\n".join(f"    {command}" for command in commands)] if commands else []
