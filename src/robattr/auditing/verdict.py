"""What an audit found, in plain language, and what to do next. Every sentence is a function of the records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from robattr._text import printable
from robattr.evaluate import intervals
from robattr.evaluate.intervals import Estimate
from robattr.report.runs import Evaluation, Run
from robattr.report.sections import Section

HOLDS, FRAGILE = 0.7, 0.5  # of the top-k intersection: the lower end above the first, the upper end below the second
FEW = 10  # fewer scored examples than this carry no verdict, whatever their interval
WIDE = 0.15  # an interval wider than this settles little
FLIMSY = 0.6  # an accuracy below this makes one doubt the labels or the preprocessing first

Level = Literal["holds", "partly", "fragile", "unclear"]


@dataclass(frozen=True)
class Verdict:
    """Can the explanations be trusted? `level` for programs, the rest for people."""

    level: Level
    headline: str
    findings: tuple[str, ...]
    next_steps: tuple[str, ...]


def verdict(run: Run) -> Verdict:
    """Judge the audited model by its sternest evaluation: the strict protocol where it was run, of the first map."""
    main = sternest(run)
    topk = _column(main, "topk")
    level = judged(topk)
    eps = float(main.summary["settings"]["eps"])
    words = {
        "holds": "The explanations hold",
        "partly": "The explanations hold in part",
        "fragile": "The explanations cannot be relied on",
        "unclear": "Nothing can be said about the explanations",
    }[level]
    if level == "unclear":
        scored = int(topk.get("n") or 0)
        headline = (
            f"{words}: {scored} of the audited examples were classified correctly and scored, and {FEW} are needed."
        )
    else:
        headline = (
            f"{words}. A change of at most ε = {eps:.4g} in any value, chosen to mislead, leaves the answer as it was "
            f"and keeps {_percent(topk)} of the most important places of the map."
        )
    return Verdict(level, headline, tuple(_findings(run, main)), tuple(_next_steps(run, main, level)))


def judged(topk: Mapping[str, Any]) -> Level:
    """By the interval of the top-k intersection, where enough examples were scored."""
    value = topk.get("value")
    if value is None or (topk.get("n") or 0) < FEW:
        return "unclear"
    return "holds" if topk["low"] >= HOLDS else "fragile" if topk["high"] < FRAGILE else "partly"


def sternest(run: Run) -> Evaluation:
    """The evaluation that counts: strict before paper; of the maps, the first that was asked for."""
    wanted = [str(name) for name in run.config.get("maps", ())]

    def rank(e: Evaluation) -> tuple[bool, int]:
        name = str(e.summary["map"])
        return not str(e.summary["protocol"]).startswith("strict"), wanted.index(name) if name in wanted else 99

    return min(run.evaluations, key=rank)


def opening(run: Run) -> list[Section]:
    """What a page says before the numbers."""
    found = verdict(run)
    return [
        Section("Verdict", (found.headline, *found.findings)),
        Section("What to do next", points=found.next_steps),
    ]


def closing(run: Run, *, notes_of: Run | None = None) -> list[Section]:
    """What a page says after the numbers: the control, the classes, what was done to the model, what was left out."""
    sections = [control(run), classes(run)]
    config = (notes_of or run).config
    notes, skipped = config.get("notes") or (), config.get("skipped") or ()
    if notes:
        sections.append(Section("What was done to the model", points=tuple(map(str, notes))))
    if skipped:
        said = f"{len(skipped)} files could not be read as images and were left out."
        shown = tuple(printable(str(name)) for name in skipped[:200])
        sections.append(Section("Files that were skipped", (said,), points=shown))
    return sections


def control(run: Run) -> Section:
    """The scores under the attack beside those under random noise of the same size."""
    rows = []
    for e in run.evaluations:
        summary = e.summary
        cells = [show(_column(e, name), share="topk" in name) for name in CONTROL]
        rows.append((f"{summary['protocol']} · {summary['map']}", *cells))
    said = (
        "The worst of ten random sign changes of the same ε. Explanations that hold under noise but not under attack "
        "are safe from accidents, not from intent."
    )
    titles = ("", "TopK Inter., attack", "TopK Inter., noise", "Rank Corr., attack", "Rank Corr., noise")
    return Section("Attack against random noise", (said,), columns=titles, rows=tuple(rows))


CONTROL = ("topk", "noise_topk", "kendall", "noise_kendall")


def classes(run: Run) -> Section:
    """Scores class by class, the most fragile first, of the evaluation that counts."""
    main = sternest(run)
    names = [str(name) for name in main.summary.get("classes") or ()]
    rows = []
    for label, records in _by_class(main.records):
        name = printable(names[label]) if label < len(names) else str(label)
        right = intervals.proportion(r["correct"] for r in records)
        cells = (_of(records, "topk"), _of(records, "kendall"))
        order = cells[0].value if cells[0].n else 2.0
        shown = (_estimate(right, share=True), _estimate(cells[0], share=True), _estimate(cells[1], share=False))
        rows.append((order, (name, str(len(records)), *shown)))
    said = f"{main.summary['protocol']} protocol, {main.summary['map']} maps; the most fragile classes first."
    titles = ("Class", "Examples", "Nat Acc.", "TopK Inter.", "Rank Corr.")
    return Section("Class by class", (said,), columns=titles, rows=tuple(row for _, row in sorted(rows)))


def show(column: Mapping[str, Any], *, share: bool) -> str:
    """A column's value with its interval."""
    value, low, high = (column.get(key) for key in ("value", "low", "high"))
    if value is None:
        return "–"
    scale, digits, unit = (100, 1, "%") if share else (1, 3, "")
    spread = "" if low is None or high is None else f" [{scale * low:.{digits}f}, {scale * high:.{digits}f}]"
    return f"{scale * value:.{digits}f}{unit}{spread}"


def _findings(run: Run, main: Evaluation) -> Iterable[str]:
    columns = main.summary["columns"]
    topk, noise = columns["topk"]["value"], columns["noise_topk"]["value"]
    if topk is not None and noise is not None:
        kind = "an adversary, not accidents, moves them" if noise - topk > 0.1 else "plain noise does nearly as much"
        yield f"Random noise of the same size keeps {noise:.0%}: {kind}."
    yield (
        f"The predictions: {show(columns['nat_acc'], share=True)} of {main.summary['examples']} examples are "
        f"classified correctly, {show(columns['adv_acc'], share=True)} still are under an attack of the same ε."
    )
    for e in run.evaluations:
        if e is not main and _column(e, "topk").get("value") is not None:
            what = f"{e.summary['protocol']} protocol, {e.summary['map']} maps"
            yield f"Beside it, {what}: {_percent(_column(e, 'topk'))} kept."
    if (share := float(main.summary["never_kept"])) >= 0.02:
        yield f"On {share:.0%} of the scored examples every attack step changed the answer."


def _next_steps(run: Run, main: Evaluation, level: Level) -> Iterable[str]:
    accuracy = main.summary["columns"]["nat_acc"]["value"]
    topk = _column(main, "topk")
    if main.summary.get("alarms"):
        yield "Read what the measurement holds against itself below: until that is settled the numbers may flatter."
    if accuracy is not None and accuracy < FLIMSY:
        yield (
            f"Only {accuracy:.0%} are classified correctly: check the order of the classes, the mean and std of the "
            "preprocessing and the bounds (robattr doctor does)."
        )
    if level in ("fragile", "partly"):
        yield (
            "Fine-tune the model against this attack with robattr harden (objective ig-sum-norm, or ig-norm, which "
            "costs less clean accuracy); it ends with an audit before and after."
        )
        yield "Until then, let no single map decide: whoever can change the input a little can choose what it shows."
    if steadier := _steadier(run, main):
        yield steadier
    if level == "unclear":
        yield f"Audit more examples (--examples): fewer than {FEW} scored ones say nothing either way."
    if level == "holds":
        yield "Audit again after every retraining, and at a larger ε: the curves show where the maps begin to move."
    if topk.get("low") is not None and topk["high"] - topk["low"] > WIDE:
        yield f"The interval is wide: audit more than {main.summary['examples']} examples."
    if (weak := _weakest(main)) is not None:
        yield weak


def _steadier(run: Run, main: Evaluation) -> str:
    """Another audited map that holds clearly better, if there is one."""
    same = [e for e in run.evaluations if e.summary["protocol"] == main.summary["protocol"] and e is not main]
    better = [e for e in same if (_column(e, "topk").get("low") or 0) > (_column(main, "topk").get("high") or 1)]
    if not better:
        return ""
    best = max(better, key=lambda e: float(_column(e, "topk")["value"]))
    return f"Of the audited maps {best.summary['map']} holds best ({_percent(_column(best, 'topk'))}): prefer it."


def _weakest(main: Evaluation) -> str | None:
    """The class whose interval lies wholly below that of all examples."""
    low = _column(main, "topk").get("low")
    names = main.summary.get("classes") or ()
    found = [(_of(records, "topk"), label) for label, records in _by_class(main.records)]
    below = [(e.value, label) for e, label in found if e.n > 4 and low is not None and e.high < low]
    if not below:
        return None
    value, label = min(below)
    name = printable(str(names[label])) if label < len(names) else str(label)
    return f"Class {name!r} is the most fragile ({value:.0%} kept): look at its examples first."


def _by_class(records: Iterable[Mapping[str, Any]]) -> list[tuple[int, list[Mapping[str, Any]]]]:
    gathered: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for record in records:
        gathered[int(record["label"])].append(record)
    return sorted(gathered.items())


def _of(records: Iterable[Mapping[str, Any]], key: str) -> Estimate:
    return intervals.mean(r.get(key) for r in records if r.get("kept") is not None)


def _column(e: Evaluation, name: str) -> Mapping[str, Any]:
    return e.summary["columns"].get(name) or {}


def _percent(column: Mapping[str, Any]) -> str:
    return show(column, share=True)


def _estimate(found: Estimate, *, share: bool) -> str:
    known = {key: None if value != value else value for key, value in vars(found).items()}
    return show(known, share=share)
