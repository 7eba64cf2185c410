"""The leaderboard: models whose explanations hold, rendered from our records in results and those in results/board.

    python -m results.leaderboard                  # write docs/leaderboard.md and docs/board.html
    python -m results.leaderboard --check RECORD…  # whether a record obeys the rules; writes nothing

docs/leaderboard_rules.md has the rules. A row with doubts is shown, with its flags.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from robattr.data.catalog import info
from robattr.engine.files import write_atomically
from robattr.errors import InvalidInput, RobattrError
from robattr.evaluation.protocol import paper, strict
from robattr.metrics.columns import COLUMN
from robattr.reporting.faithfulness import measured, unexplained
from robattr.reporting.published import DATASETS
from robattr.reporting.run_results import EvaluationResults, RunResults, read_runs
from robattr.reporting.tables import escape_markdown, grid, make_cell

RESULTS = Path(__file__).parent
RECORDS = RESULTS / "board"
PAGE = RESULTS.parent / "docs" / "leaderboard.md"
SORTABLE = PAGE.with_name("board.html")  # beside leaderboard.html, which the site makes of PAGE
EXAMPLES = 300  # fewest test examples; of a smaller test split, all
OF_A_VERSION = ("attacks", "budget", "keep", "tolerance", "version")  # settings of strict
SHOWN = ("nat_acc", "adv_acc", "topk", "kendall", "insertion_over_constant", "attacked_over_constant")
PREFACE = """\
Models in the order of TopK Inter. of their integrated-gradients maps under `strict`. A constant map
is perfectly robust, so the two columns *over constant* say what the maps explain: below 0, an order of the pixels from
the centre outwards explains the prediction better than the map. Brackets are 95% intervals over examples. *GPU minutes*
are the wall-clock time of the training that made the weights, and of the search for its settings where the record has
it. They include time in which it waited or shared the GPU with other work, and do not measure the cost of a method; a
dash is a training that was not on one GPU. *Searched* is the setting that was chosen on validation images, with the
values tried. Flags say why a row may be wrong. The [rules](leaderboard_rules.md) define the columns and say how to add
a model; [one page](board.html) sorts and filters the same rows."""


@dataclass(frozen=True)
class Entry:
    """A row of the board; `cells` are (text, number to sort by) in the order of `headings()`."""

    dataset: str
    name: str
    examples: int
    cells: tuple[tuple[str, float | None], ...]
    flags: tuple[str, ...]


def headings() -> tuple[str, ...]:
    """The titles of the cells of an entry."""
    return ("GPU minutes", "Searched", *(COLUMN[key].title for key in SHOWN))


def violations(run: RunResults, e: EvaluationResults, *, earlier: bool = False) -> list[str]:
    """The rules that a record breaks; [] for one that belongs on the board. `earlier` versions may be allowed."""
    summary, settings = e.summary, dict(e.summary.get("settings") or {})
    said = []
    if run.dataset not in DATASETS or summary.get("dataset", run.dataset) != run.dataset:
        said.append(f"expected a dataset of the board ({', '.join(DATASETS)}), got {summary.get('dataset')!r}")
    elif summary.get("protocol") != "strict":
        said.append(f"expected the strict protocol, got {summary.get('protocol')!r}: --protocol strict")
    else:
        wanted = strict(paper(run.dataset)).settings()
        free = ("seed", "name", *(OF_A_VERSION if earlier and e.outdated else ()))
        if odd := [k for k in wanted if k not in free and settings.get(k) != wanted[k]]:
            said.append(f"expected the settings of strict, got others ({', '.join(odd)}): evaluate with this version")
    if summary.get("map") != "ig":
        said.append(f"expected IG maps, got {summary.get('map')!r}: --maps ig")
    if summary.get("split", "test") != "test":
        said.append(f"expected the test split, got {summary.get('split')!r}: --split test")
    size = info(run.dataset).sizes[-1] if run.dataset in DATASETS else EXAMPLES
    fewest, ids = min(EXAMPLES, size), sorted({r["id"] for r in e.records})
    if e.examples < fewest:
        said.append(f"expected at least {fewest} examples, got {e.examples}: --examples {fewest}")
    elif len(ids) < size and ids != list(range(len(e.records))):
        said.append(f"expected the first examples of the test split, got others: --examples {fewest}")
    if not measured(e):
        said.append("expected the faithfulness scores, got none: evaluate with this version")
    if not e.weights:
        said.append("expected a digest of the weights, got none: record the run again")
    return said


def flags(e: EvaluationResults) -> tuple[str, ...]:
    """The reasons to doubt a row: flags and alarms of the evaluation, failed attacks, maps that explain nothing."""
    said = [str(alarm) for alarm in e.summary.get("alarms") or ()]
    return tuple(dict.fromkeys(filter(None, [*said, e.outdated, e.failures, *unexplained(e)])))


def entries(runs: Sequence[RunResults]) -> list[Entry]:
    """The rows, by dataset in the paper's order, then by top-k intersection; a record that breaks a rule is refused."""
    found = []
    for run in runs:
        for e in run.evaluations:
            if broken := violations(run, e, earlier=True):
                raise InvalidInput(f"{e.source.name} does not belong on the board: {'; '.join(broken)}")
            cells = (
                _cost(run),
                (_searched(run), None),
                *((str(c := make_cell(e, COLUMN[key])), c.value) for key in SHOWN),
            )
            found.append(Entry(run.dataset, run.name, e.examples, cells, flags(e)))
    place = headings().index(COLUMN["topk"].title)
    return sorted(found, key=lambda row: (DATASETS.index(row.dataset), -(row.cells[place][1] or 0.0), row.name))


def records() -> list[Path]:
    """What the board renders: published evaluations by strict, from its second version, and what was submitted.

    Of several of a model, the one by the latest version.
    """
    latest: dict[str, tuple[int, Path]] = {}
    for file in RESULTS.glob("*-strict-v*-ig.json"):
        model, _, version = file.name.removesuffix("-ig.json").rpartition("-strict-v")
        latest[model] = max(latest.get(model, (0, file)), (int(version), file))
    return sorted([*(file for _, file in latest.values()), *RECORDS.glob("*.json")])


def markdown(rows: Sequence[Entry]) -> str:
    """The board as Markdown, a table per dataset."""
    rows, shared = _shared_flags(rows)
    parts = ["# Leaderboard", "Rendered by `python -m results.leaderboard`; not edited by hand.", PREFACE]
    parts += [f"**Every row:** {escape_markdown(_joined(shared))}."] if shared else []
    for dataset in dict.fromkeys(row.dataset for row in rows):
        of = [row for row in rows if row.dataset == dataset]
        lines = [
            [
                escape_markdown(r.name),
                str(r.examples),
                *(text for text, _ in r.cells),
                escape_markdown(_joined(r.flags)),
            ]
            for r in of
        ]
        parts += [f"## {dataset}", grid(("Model", "Examples", *headings(), "Flags"), lines)]
    return "\n\n".join(parts) + "\n"


def html(rows: Sequence[Entry]) -> str:
    """The board as one page that sorts and filters, loads nothing, and is readable without its script."""
    rows, shared = _shared_flags(rows)
    script = (RESULTS / "leaderboard.js").read_text(encoding="utf-8")
    css = (files("robattr.reporting") / "page" / "page.css").read_text(encoding="utf-8")
    template = (RESULTS / "leaderboard.html.j2").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    made: str = environment.from_string(template).render(
        rows=rows,
        shared=shared,
        headings=headings(),
        datasets=list(dict.fromkeys(row.dataset for row in rows)),
        css=Markup(css),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )
    return made


def _shared_flags(rows: Sequence[Entry]) -> tuple[list[Entry], list[str]]:
    """The rows without the flags that several rows all have, and these flags, to be said once."""
    shared = [flag for flag in rows[0].flags if all(flag in row.flags for row in rows)] if len(rows) > 1 else []
    return [replace(row, flags=tuple(flag for flag in row.flags if flag not in shared)) for row in rows], shared


def _cost(run: RunResults) -> tuple[str, float | None]:
    """The minutes on one GPU: of the training, and of the search where the record has it."""
    device, processes = str(run.environment.get("device") or ""), run.environment.get("processes") or 1
    seconds = run.training.seconds
    if seconds is None or processes != 1 or device in ("", "cpu", "mps"):
        return "–", None
    searched = run.search.get("minutes")
    minutes = seconds / 60 + (searched or 0.0)
    said = [device, *(["search included"] if searched is not None else [])]
    said += [f"shared by {jobs}"] if (jobs := run.search.get("jobs", 1)) > 1 else []
    return f"{minutes:.1f} ({', '.join(said)})", minutes


def _searched(run: RunResults) -> str:
    """What was chosen, and from which values: `0.3 (weight of 0.1, 0.3, 1)`; a dash where the record does not say."""
    said = []
    for key, value in run.search.get("chosen", {}).items():
        tried = dict.fromkeys(_short(trial[key]) for trial in run.search.get("tried", []) if key in trial)
        said.append(f"{_short(value)} ({key}{' of ' if tried else ''}{', '.join(tried)})")
    return "; ".join(said) or "–"


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _joined(said: Sequence[str]) -> str:
    return "; ".join(said) or "–"


def main(arguments: Sequence[str] | None = None) -> int:
    """Render the board, or check records; the exit status is 1 where one breaks a rule."""
    parser = argparse.ArgumentParser(prog="python -m results.leaderboard", description=__doc__.split("\n")[0])
    parser.add_argument("--check", nargs="+", metavar="RECORD", type=Path, help="check these records, write nothing")
    asked = parser.parse_args(arguments)
    try:
        if asked.check:
            return _check(read_runs(asked.check))
        rows = entries(read_runs(records()))
    except RobattrError as error:
        print(error)
        return 1
    for page, text in ((PAGE, markdown(rows)), (SORTABLE, html(rows))):
        write_atomically(page, text.encode())
        print(f"wrote {page.relative_to(RESULTS.parent)}")
    return 0


def _check(runs: Sequence[RunResults]) -> int:
    every: list[tuple[Any, list[str]]] = [(e, violations(run, e)) for run in runs for e in run.evaluations]
    for e, broken in every:
        print(f"{e.source.name}: {'; '.join(broken) or 'obeys the rules'}")
        for flag in flags(e):
            print(f"  flag: {flag}")
    return int(any(broken for _, broken in every))


if __name__ == "__main__":
    raise SystemExit(main())
