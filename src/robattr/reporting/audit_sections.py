"""The sections of a page about an audited model: the verdict before the numbers, the rest after them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from robattr._text import printable
from robattr.metrics import intervals
from robattr.reporting.run_results import RunResults
from robattr.reporting.verdict import mean_score, records_by_class, show, strictest, verdict

METHOD = "audit"  # of the runs that `robattr audit` makes
CONTROL = ("topk", "noise_topk", "kendall", "noise_kendall")
LISTED = 200  # skipped files named


@dataclass(frozen=True)
class Section:
    """A heading, sentences, a list of points and a table; what is empty is not shown. The page escapes all text."""

    title: str
    sentences: tuple[str, ...] = ()
    points: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


def audits(runs: Sequence[RunResults]) -> list[RunResults]:
    """The evaluated runs that `robattr audit` made."""
    return [run for run in runs if run.method == METHOD and run.evaluations]


def opening(run: RunResults, *, of: str = "") -> list[Section]:
    """The sections before the numbers; `of` names the model where there are several."""
    found = verdict(run)
    return [
        Section(_title("Verdict", of), (found.headline, *found.findings)),
        Section(_title("What to do next", of), points=found.next_steps),
    ]


def closing(run: RunResults, *, of: str = "", notes_of: RunResults | None = None) -> list[Section]:
    """The sections after the numbers: the control, the classes, changes to the model, skipped files."""
    sections = [control(run, of=of), classes(run, of=of)]
    config = (notes_of or run).config
    notes, skipped = config.get("notes") or (), config.get("skipped") or ()
    if notes:
        sections.append(Section(_title("What was done to the model", of), points=tuple(map(str, notes))))
    if skipped:
        said = f"{len(skipped)} files could not be read as images and were left out."
        more = f" The first {LISTED} are:" if len(skipped) > LISTED else ""
        shown = tuple(printable(str(name)) for name in skipped[:LISTED])
        sections.append(Section(_title("Files that were skipped", of), (said + more,), points=shown))
    return sections


def control(run: RunResults, *, of: str = "") -> Section:
    """The scores under the attack and under random noise of the same size."""
    rows = []
    for e in run.evaluations:
        cells = [show(e.column(name), share="topk" in name) for name in CONTROL]
        rows.append((f"{e.summary['protocol']} · {e.summary['map']}", *cells))
    said = (
        "The worst of ten random sign changes of the same ε. Explanations that hold under noise but not under attack "
        "are safe from random changes, not from an adversary."
    )
    titles = ("", "TopK Inter., attack", "TopK Inter., noise", "Rank Corr., attack", "Rank Corr., noise")
    return Section(_title("Attack against random noise", of), (said,), columns=titles, rows=tuple(rows))


def classes(run: RunResults, *, of: str = "") -> Section:
    """The scores of each class in the strictest evaluation, the most fragile class first."""
    main = strictest(run)
    names = [str(name) for name in main.summary.get("classes") or ()]
    rows = []
    for label, records in records_by_class(main.records):
        name = printable(names[label]) if label < len(names) else str(label)
        correct = intervals.proportion(r["correct"] for r in records)
        topk, kendall = (mean_score(records, key) for key in ("topk", "kendall"))
        order = topk.value if topk.n else 2.0
        shown = (show(asdict(e), share=e is not kendall) for e in (correct, topk, kendall))
        rows.append((order, (name, str(len(records)), *shown)))
    said = f"{main.summary['protocol']} protocol, {main.summary['map']} maps; the most fragile classes first."
    titles = ("Class", "Examples", "Nat Acc.", "TopK Inter.", "Rank Corr.")
    return Section(_title("Class by class", of), (said,), columns=titles, rows=tuple(row for _, row in sorted(rows)))


def _title(title: str, of: str) -> str:
    return f"{title}: {of}" if of else title
