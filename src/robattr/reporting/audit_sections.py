"""The sections of a page about an audited model: the verdict before the numbers, the rest after them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from robattr._text import printable
from robattr.evaluation.gallery import read_gallery
from robattr.metrics import intervals
from robattr.metrics.columns import COLUMN
from robattr.reporting import certified
from robattr.reporting.figures import certified_maps, inline_svg, page_style
from robattr.reporting.run_results import RunResults
from robattr.reporting.tables import cell_of
from robattr.reporting.verdict import mean_score, records_by_class, strictest, verdict

METHOD = "audit"  # of the runs that `robattr audit` makes
LISTED = 200  # skipped files named


@dataclass(frozen=True)
class Section:
    """A heading, sentences, a list of points, a table and figures; what is empty is not shown. All text is escaped."""

    title: str
    sentences: tuple[str, ...] = ()
    points: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    figures: tuple[str, ...] = ()  # SVG elements that `inline_svg` made


def audits(runs: Sequence[RunResults]) -> list[RunResults]:
    """The evaluated runs that `robattr audit` made."""
    return [run for run in runs if run.method == METHOD and run.evaluations]


def opening(run: RunResults, *, title: str = "Verdict") -> list[Section]:
    """The sections before the numbers: the verdict, and what to do next."""
    found = verdict(run)
    return [
        Section(title, (found.headline, *found.findings), points=tuple(f"Doubt: {each}." for each in found.doubts)),
        Section("What to do next", points=found.next_steps),
    ]


def closing(run: RunResults, *, notes_of: RunResults | None = None) -> list[Section]:
    """The sections after the numbers: certificates, the classes, changes to the model, skipped files."""
    sections = [*certified_section(run), classes(run)]
    config = (notes_of or run).config
    notes, skipped = config.get("notes") or (), config.get("skipped") or ()
    if notes:
        sections.append(Section("What was done to the model", points=tuple(map(str, notes))))
    if skipped:
        said = f"{len(skipped)} files could not be read as images and were left out."
        more = f" The first {LISTED} are:" if len(skipped) > LISTED else ""
        shown = tuple(printable(str(name)) for name in skipped[:LISTED])
        sections.append(Section("Files that were skipped", (said + more,), points=shown))
    return sections


def certified_section(run: RunResults) -> list[Section]:
    """The certificates, if the audit was asked for them, with the certified pixels of a few examples."""
    if not run.certificates:
        return []
    gallery = next((read_gallery(e.gallery) for e in run.evaluations if e.gallery), None)
    figures = []
    with page_style():
        for found in run.certificates:
            drawn = None if gallery is None else certified_maps(found, gallery)
            if drawn is not None:
                figures.append(inline_svg(drawn, name=f"Certified pixels of {found.summary['map']} maps"))
    columns = ("", *(column.title for column in certified.COLUMNS))
    said, rows = certified.sentences(run.certificates[0]), certified.rows(run.certificates)
    return [Section("What no attack can move", said, columns=columns, rows=rows, figures=tuple(figures))]


def classes(run: RunResults) -> Section:
    """The scores of each class in the strictest evaluation, the most fragile class first."""
    main = strictest(run)
    rows = []
    for label, records in records_by_class(main.records):
        correct = intervals.proportion(r["correct"] for r in records)
        topk, kendall = (mean_score(records, key) for key in ("topk", "kendall"))
        order = topk.value if topk.n else 2.0
        found = {"nat_acc": correct, "topk": topk, "kendall": kendall}
        shown = (str(cell_of(COLUMN[key], asdict(e))) for key, e in found.items())
        rows.append((order, (main.class_name(label), str(len(records)), *shown)))
    said = f"{main.summary['protocol']} protocol, {main.summary['map']} maps; the most fragile classes first."
    titles = ("Class", "Examples", *(COLUMN[key].title for key in ("nat_acc", "topk", "kendall")))
    return Section("Class by class", (said,), columns=titles, rows=tuple(row for _, row in sorted(rows)))
