"""What a page says of an audited model beside the numbers, as sections: the verdict before them, the rest after."""

from __future__ import annotations

from collections.abc import Sequence

from robattr._text import printable
from robattr.metrics import intervals
from robattr.reporting.runs import RunResults
from robattr.reporting.sections import Section
from robattr.reporting.verdict import by_class, column, scored, show, show_estimate, strictest, verdict

METHOD = "audit"  # of the runs that `robattr audit` makes
CONTROL = ("topk", "noise_topk", "kendall", "noise_kendall")
LISTED = 200  # skipped files named


def audits(runs: Sequence[RunResults]) -> list[RunResults]:
    """Those of the runs that `robattr audit` made and that hold an evaluation."""
    return [run for run in runs if run.method == METHOD and run.evaluations]


def opening(run: RunResults, *, of: str = "") -> list[Section]:
    """What a page says before the numbers; `of` names the model where there are several."""
    found = verdict(run)
    return [
        Section(_title("Verdict", of), (found.headline, *found.findings)),
        Section(_title("What to do next", of), points=found.next_steps),
    ]


def closing(run: RunResults, *, of: str = "", notes_of: RunResults | None = None) -> list[Section]:
    """What a page says after the numbers: the control, the classes, what was done to the model, what was left out."""
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
    """The scores under the attack beside those under random noise of the same size."""
    rows = []
    for e in run.evaluations:
        cells = [show(column(e, name), share="topk" in name) for name in CONTROL]
        rows.append((f"{e.summary['protocol']} · {e.summary['map']}", *cells))
    said = (
        "The worst of ten random sign changes of the same ε. Explanations that hold under noise but not under attack "
        "are safe from accidents, not from intent."
    )
    titles = ("", "TopK Inter., attack", "TopK Inter., noise", "Rank Corr., attack", "Rank Corr., noise")
    return Section(_title("Attack against random noise", of), (said,), columns=titles, rows=tuple(rows))


def classes(run: RunResults, *, of: str = "") -> Section:
    """Scores class by class, the most fragile first, of the evaluation that counts."""
    main = strictest(run)
    names = [str(name) for name in main.summary.get("classes") or ()]
    rows = []
    for label, records in by_class(main.records):
        name = printable(names[label]) if label < len(names) else str(label)
        right = intervals.proportion(r["correct"] for r in records)
        cells = (scored(records, "topk"), scored(records, "kendall"))
        order = cells[0].value if cells[0].n else 2.0
        shown = (
            show_estimate(right, share=True),
            show_estimate(cells[0], share=True),
            show_estimate(cells[1], share=False),
        )
        rows.append((order, (name, str(len(records)), *shown)))
    said = f"{main.summary['protocol']} protocol, {main.summary['map']} maps; the most fragile classes first."
    titles = ("Class", "Examples", "Nat Acc.", "TopK Inter.", "Rank Corr.")
    return Section(_title("Class by class", of), (said,), columns=titles, rows=tuple(row for _, row in sorted(rows)))


def _title(title: str, of: str) -> str:
    return f"{title}: {of}" if of else title
