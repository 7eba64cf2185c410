"""The acceptance criteria of the published measurements, computed from the records and the paper's numbers.

All criteria use the `paper` protocol with IG maps, except the last one, on the same examples for all rows of a dataset.
Where a method has several seeds, the lowest of ours is compared with the highest of the other method.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from robattr.metrics.columns import COLUMN
from robattr.reporting.groups import Group
from robattr.reporting.published import INTEGRATED_GRADIENTS, published
from robattr.reporting.record import APPROACHES
from robattr.reporting.run_results import EvaluationResults, RunResults

Member = tuple[RunResults, EvaluationResults]
Values = Callable[[Iterable[Member], str], list[float]]  # the value of a column for each member

ATTRIBUTION = (COLUMN["topk"], COLUMN["kendall"])
LEAST_EXAMPLES = {"mnist": 1000, "fashion-mnist": 1000, "gtsrb": 2000, "flower": 136}
COMPARED = ("natural", "madry", "ig-sum-norm")
ACCURACY_SLACK = 0.015
TOLERATED = {"topk": 0.03, "kendall": 0.03}  # a value this much above the paper's row suggests a weak attack


@dataclass(frozen=True)
class Criterion:
    """A criterion, whether it is met (None: not measured yet), and by how much."""

    text: str
    met: bool | None
    detail: str

    @property
    def answer(self) -> str:
        return "not measured yet" if self.met is None else "yes" if self.met else "no"


def criteria(dataset: str, groups: Iterable[Group]) -> tuple[Criterion, ...]:
    """All criteria for one dataset of the paper."""
    found = [g.with_one_m() for g in groups if g.dataset == dataset and g.map_name == "ig"]
    members = _scored(found, "paper")
    return (
        _beats(members, "natural", apart=True),
        _beats(members, "madry", apart=False),
        _reaches_paper(dataset, members),
        _attack_strength(dataset, members),
        _examples(dataset, members),
        _seeds(dataset, members),
        _strict(_scored(found, "strict v2") or _scored(found, "strict")),
    )


def _beats(members: Sequence[Member], other: str, *, apart: bool) -> Criterion:
    """IG-SUM-NORM is above another method in both attribution columns; the best of its variants counts."""
    name = APPROACHES[other]
    text = f"IG-SUM-NORM beats {name} in both attribution columns{', intervals apart' if apart else ''}"
    theirs = _of(members, other)
    variants = dict.fromkeys(run.variant for run, _ in _of(members, "ig-sum-norm"))
    if not theirs or not variants:
        missing = [APPROACHES[m] for m in ("ig-sum-norm", other) if not _of(members, m)]
        return Criterion(text, None, f"no record of {' or of '.join(missing)}")
    judged = []
    for variant in variants:
        ours = [m for m in _of(members, "ig-sum-norm") if m[0].variant == variant]
        if not _same_examples([*ours, *theirs]):
            judged.append((-1.0, Criterion(text, None, f"{variant} and {name} were not measured on the same examples")))
            continue
        margins = [min(_each(ours, c.key)) - max(_each(theirs, c.key)) for c in ATTRIBUTION]
        gaps = [min(_each(ours, c.key, "low")) - max(_each(theirs, c.key, "high")) for c in ATTRIBUTION]
        detail = f"{_versus(ours, theirs)}{_intervals(gaps) if apart else ''}"
        least = min(gaps if apart else margins)
        named = f" ({variant})" if len(variants) > 1 else ""
        judged.append((least, Criterion(text, least > 0, f"{detail}{named}")))
    return max(judged, key=lambda entry: entry[0])[1]


def _reaches_paper(dataset: str, members: Sequence[Member]) -> Criterion:
    """One model reaches the paper's best value in every attribution column without losing accuracy."""
    least = _required(dataset)
    text = "One model has at least " + ", ".join(f"{COLUMN[k].title} {COLUMN[k].show(v)}" for k, v in least.items())
    if not members:
        return Criterion(text, None, "no record")
    short = _shortfalls(dataset, members)
    if met := [run.name for run, missed in short if not missed]:
        return Criterion(text, True, "; ".join(met))
    closest, missed = min(short, key=lambda entry: (-min(entry[1].values()), len(entry[1])))
    said = ", ".join(f"{COLUMN[key].title} {COLUMN[key].show_difference(by)}" for key, by in missed.items())
    return Criterion(text, False, f"closest is {closest.name}: {said}")


def _required(dataset: str) -> dict[str, float]:
    """What one model must reach: the paper's best in the attribution columns, and accuracies."""
    rows = [row for (of, _), row in INTEGRATED_GRADIENTS.items() if of == dataset]
    natural, robust = INTEGRATED_GRADIENTS[dataset, "natural"], INTEGRATED_GRADIENTS[dataset, "ig-sum-norm"]
    return {
        "topk": max(row.topk for row in rows),
        "kendall": max(row.kendall for row in rows),
        "nat_acc": natural.nat_acc - ACCURACY_SLACK,
        "adv_acc": robust.adv_acc,
    }


def _shortfalls(dataset: str, members: Sequence[Member]) -> list[tuple[RunResults, dict[str, float]]]:
    """Each run with the columns in which it is below the requirement, and by how much.

    Rounded to the digits the paper prints: 64 of 136 are its 47.06%.
    """
    least = _required(dataset)
    ours = [
        (run, {key: round(e.column(key).get("value", 0.0) - v, 4) for key, v in least.items()}) for run, e in members
    ]
    return [(run, {key: by for key, by in margins.items() if by < 0}) for run, margins in ours]


def _attack_strength(dataset: str, members: Sequence[Member]) -> Criterion:
    """On the paper's network, NATURAL and Madry are not above the paper's rows: a weak attack would show there."""
    text = (
        "The attack is no weaker than the paper's: on its network, NATURAL and Madry at most 3 points and 0.03 above "
        "its rows"
    )
    compared = [
        (run, column, float(e.column(column.key)["value"]) - (row.column(column.key) or 0.0))
        for method in ("natural", "madry")
        for run, e in _of(members, method)
        for column in ATTRIBUTION
        if not run.config.get("model") and (row := published(dataset, method))
    ]
    if not compared:
        return Criterion(text, None, "no record of NATURAL or of Madry et al. on the paper's network")
    above = [entry for entry in compared if entry[2] > TOLERATED[entry[1].key]]
    highest = [max((c for c in compared if c[1] is column), key=lambda entry: entry[2]) for column in ATTRIBUTION]
    detail = ", ".join(
        f"{run.name} {column.title} {column.show_difference(by)}" for run, column, by in above or highest
    )
    return Criterion(text, not above, detail)


def _examples(dataset: str, members: Sequence[Member]) -> Criterion:
    least = LEAST_EXAMPLES[dataset]
    text = f"Measured on at least {least:,} test examples, the same for all rows"
    if not members:
        return Criterion(text, None, "no record")
    counts = sorted({len(e.records) for _, e in members})
    same = _same_examples(members)
    words = f"{', '.join(f'{count:,}' for count in counts)} examples{'' if same else ', not the same for all rows'}"
    return Criterion(text, same and counts[0] >= least, words)


def _seeds(dataset: str, members: Sequence[Member]) -> Criterion:
    """Two seeds of every compared method, and of the method that reaches the paper where it is another one."""
    clear = [run.method for run, missed in _shortfalls(dataset, members) if not missed]
    headline = [*COMPARED, *(() if set(clear) & set(COMPARED) else clear[:1])]
    text = f"At least two seeds of the headline rows: {', '.join(APPROACHES.get(m, m) for m in headline)}"
    if not members:
        return Criterion(text, None, "no record")
    counts = {m: len({run.config.get("seed") for run, _ in _of(members, m)}) for m in headline}
    said = ", ".join(f"{APPROACHES.get(m, m)} {n}" for m, n in counts.items())
    return Criterion(text, min(counts.values()) > 1, said)


def _strict(strict: Sequence[Member]) -> Criterion:
    text = "IG-SUM-NORM is measured under the `strict` protocol, too, and stays above NATURAL"
    ours, theirs = _of(strict, "ig-sum-norm"), _of(strict, "natural")
    if not ours:
        return Criterion(text, None, "no record of IG-SUM-NORM under strict")
    if not theirs:
        return Criterion(text, None, "no record of NATURAL under strict")
    both = set.intersection(*({r["id"] for r in e.records if r.get("topk") is not None} for _, e in [*ours, *theirs]))
    if not both:
        return Criterion(text, None, "not measured on the same examples")

    def each(members: Iterable[Member], key: str) -> list[float]:
        return [fmean(r[key] for r in e.records if r["id"] in both) for _, e in members]

    least = min(min(each(ours, c.key)) - max(each(theirs, c.key)) for c in ATTRIBUTION)
    return Criterion(text, least > 0, f"{_versus(ours, theirs, each)}; the {len(both):,} examples of both")


def _scored(groups: Iterable[Group], protocol: str) -> list[Member]:
    return [
        (run, e)
        for group in groups
        if group.protocol == protocol
        for run, e in group.members
        if all(e.column(column.key).get("value") is not None for column in ATTRIBUTION)
    ]


def _of(members: Iterable[Member], method: str) -> list[Member]:
    return [(run, e) for run, e in members if run.method == method]


def _each(members: Iterable[Member], key: str, end: str = "value") -> list[float]:
    """The values of a column, or one end of their intervals; the value itself where there is no interval."""
    cells = [e.column(key) for _, e in members]
    return [float(cell["value"] if cell.get(end) is None else cell[end]) for cell in cells]


def _same_examples(members: Iterable[Member]) -> bool:
    return len({tuple(r.get("id") for r in e.records) for _, e in members}) == 1


def _versus(ours: Sequence[Member], theirs: Sequence[Member], each: Values = _each) -> str:
    """`TopK Inter. 72.08% against 39.01% (+33.07 points), …`, the lowest of ours against the highest of theirs."""
    said = []
    for column in ATTRIBUTION:
        low, high = min(each(ours, column.key)), max(each(theirs, column.key))
        said.append(
            f"{column.title} {column.show(low)} against {column.show(high)} ({column.show_difference(low - high)})"
        )
    several = len(ours) > 1 or len(theirs) > 1
    note = f"; the lowest of {len(ours)} against the highest of {len(theirs)}" if several else ""
    return ", ".join(said) + note


def _intervals(gaps: Sequence[float]) -> str:
    words = [f"{column.title} {column.show_difference(gap)}" for column, gap in zip(ATTRIBUTION, gaps, strict=True)]
    return f"; between the intervals: {', '.join(words)}"
