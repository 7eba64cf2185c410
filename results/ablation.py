"""What each attack of the strict protocol adds, as Markdown: `python -m results.ablation PATH…`.

A path is a run directory, a record, a folder of records, or the records of an evaluation (.jsonl). Under `exhaustive`
every attack ran on every example; under `strict` the later ones ran where the earlier ones had not converged.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from robattr.evaluation.records import Rows, read
from robattr.evaluation.scores import COMPARED
from robattr.evaluation.summary import lowest
from robattr.reporting.run_results import RunResults, read_runs
from robattr.reporting.tables import escape_markdown, grid

NOTE = """\
*Examples* are those that it ran on with the label kept, *alone* the mean score on them, *adds* how much higher the
worst case over all examples would be without it (top-k in points), *wins* the examples whose worst case it alone
reaches (top-k, Kendall). An attack that adds nothing on any dataset leaves the schedule;
`random` stays as the control."""


@dataclass(frozen=True)
class Contribution:
    """One attack. alone, adds and wins are (top-k, Kendall).

    kept    examples that it ran on, with the label kept
    alone   its mean score on them
    adds    how much the worst case over all examples would be higher without it
    wins    examples whose worst case it alone reaches
    """

    attack: str
    kept: int
    alone: tuple[float | None, float | None]
    adds: tuple[float, float]
    wins: tuple[int, int]


def contributions(records: Rows) -> list[Contribution]:
    """Leave each attack out in turn; in the order of the schedule."""
    rows = [r["attacks"] for r in records if r.get("attacks")]
    names = sorted(dict.fromkeys(name for row in rows for name in row), key=lambda name: _order(name, rows))
    found = []
    for name in names:
        ran = [row[name] for row in rows if name in row]
        alone, adds, wins = [], [], []
        for at in range(len(COMPARED)):
            known = [pair[at] for pair in ran if pair[at] is not None]
            gaps = [lowest(row, at, but=(name,)) - lowest(row, at) for row in rows]
            alone.append(fmean(known) if known else None)
            adds.append(fmean(gaps))
            wins.append(sum(gap > 0 for gap in gaps))
        kept = sum(None not in pair for pair in ran)
        found.append(Contribution(name, kept, (alone[0], alone[1]), (adds[0], adds[1]), (wins[0], wins[1])))
    return found


def _order(name: str, rows: Sequence[Mapping[str, Any]]) -> int:
    """The latest place of an attack among those that ran on an example."""
    return max(list(row).index(name) for row in rows if name in row)


def section(title: str, records: Sequence[Mapping[str, Any]]) -> str:
    """The table of one evaluation, under a heading."""
    return f"### {escape_markdown(title)}\n\n{table(records)}"


def table(records: Rows) -> str:
    """A row for each attack."""
    rows = []
    for c in contributions(records):
        alone = ("–" if v is None else f"{100 * v:.2f}%" if at == 0 else f"{v:.4f}" for at, v in enumerate(c.alone))
        adds = f"{100 * c.adds[0]:.2f}", f"{c.adds[1]:.4f}"
        rows.append([c.attack, str(c.kept), *alone, *adds, f"{c.wins[0]}, {c.wins[1]}"])
    headings = ("Attack", "Examples", "TopK alone", "Rank alone", "TopK adds", "Rank adds", "Wins")
    return grid(headings, rows)


def by_dataset(runs: Sequence[RunResults]) -> str:
    """A table for each dataset, of all evaluations by `strict` that recorded their attacks; "" without."""
    parts = []
    for dataset in dict.fromkeys(run.dataset for run in runs):
        chosen = [(run, e) for run in runs if run.dataset == dataset for e in run.evaluations]
        strict = [(run, e) for run, e in chosen if e.summary.get("protocol") == "strict"]
        found = [(run, e) for run, e in strict if any(r.get("attacks") for r in e.records)]
        if found:
            names = ", ".join(f"{run.name} ({e.summary.get('map')})" for run, e in found)
            parts.append(f"{escape_markdown(dataset)}: {escape_markdown(names)}, all examples together.")
            parts.append(table([r for _, e in found for r in e.records]))
    return "\n\n".join([*parts, NOTE]) if parts else ""


def sections(paths: Sequence[Path]) -> Iterator[str]:
    """A section for every evaluation that has recorded its attacks."""
    for path in (p for p in paths if p.suffix == ".jsonl"):
        yield section(f"{path.parent.parent.name}, {path.stem}", read(path))
    if others := [p for p in paths if p.suffix != ".jsonl"]:
        for run in read_runs(others):
            for e in run.evaluations:
                if any(r.get("attacks") for r in e.records):
                    yield section(f"{run.dataset}, {run.name}, {e.protocol}, {e.summary.get('map')} maps", e.records)


def main(words: Sequence[str]) -> int:
    parser = ArgumentParser(prog="python -m results.ablation", description=__doc__)
    parser.add_argument("paths", nargs="*", type=Path, metavar="PATH")
    found = list(sections(parser.parse_args(words).paths))
    if not found:
        print(f"{__doc__}\nexpected evaluations by strict or exhaustive, got none")
        return 1
    print("\n\n".join([*found, NOTE]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
