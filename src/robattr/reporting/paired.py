"""Two models on the same examples: their paired difference, and which model of a group is the best.

Without torch, for `robattr compare`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from robattr.metrics import intervals
from robattr.metrics.columns import COLUMN, Column
from robattr.metrics.intervals import Comparison, Estimate

if TYPE_CHECKING:
    from robattr.reporting.groups import Group
    from robattr.reporting.run_results import EvaluationResults

FEW = 10  # with fewer examples than this nothing is settled, whatever the interval
MOST_RIVALS = 12  # models that the best one is compared with: those next to it
COMPARED = ("", "Difference", "95% interval", "p", "Examples", "Better")


def unlike(group: Group) -> list[str]:
    """The settings other than the seed in which the evaluations differ: `eps 0.03 and 0.1`; also `other examples`."""
    every = [e.summary.get("settings") or {} for _, e in group.members]
    odd = []
    for key in dict.fromkeys(key for settings in every for key in settings if key != "seed"):
        values = dict.fromkeys(_short(settings.get(key)) for settings in every)
        odd += [f"{key} {' and '.join(values)}"] if len(values) > 1 else []
    return [*odd, "other examples"] if _other_examples(group) else odd


def difference(first: EvaluationResults, second: EvaluationResults, key: str) -> Estimate:
    """The mean of second − first of a column over the examples that both have, with its 95% interval."""
    a, b = first.paired(second, key)
    return intervals.mean(b - a)


def settled(d: Estimate) -> bool:
    """Whether the interval of a difference excludes 0, of as many examples as a verdict needs."""
    return d.n >= FEW and (d.low > 0 or d.high < 0)


def winner(evaluations: Sequence[EvaluationResults], key: str) -> EvaluationResults | None:
    """The evaluation with the highest value of a column, if its lead over the MOST_RIVALS next ones is settled."""
    known = [e for e in evaluations if e.column(key).get("value") is not None]
    if len(known) < 2:
        return None
    first, *others = sorted(known, key=lambda e: -float(e.column(key)["value"]))
    leads = (difference(e, first, key) for e in others[:MOST_RIVALS])
    return first if all(settled(lead) and lead.low > 0 for lead in leads) else None


def shown(column: Column, d: Estimate) -> str:
    """`+2.10 points [+0.90, +3.30]`; of one example the value alone, of none a dash."""
    return f"{column.show_difference(d.value)} {_interval(column, d)}".strip() if d.value == d.value else "–"


def comparison(found: Mapping[str, Comparison], names: tuple[str, str]) -> list[tuple[str, ...]]:
    """The rows of COMPARED: second − first of every column, and which of the two `names` is better."""
    rows: list[tuple[str, ...]] = []
    for key, compared in found.items():
        d, column = compared.difference, COLUMN.get(key, Column(key, key, ""))
        title = column.title if column.higher_is_better else f"{column.title} (lower is better)"
        spread = ("–", "–", str(d.n), "–")
        if interval := _interval(column, d):
            better = names[(d.value > 0) == column.higher_is_better] if settled(d) else "not settled"
            spread = (interval, f"{compared.p_value:.4f}", str(d.n), better)
        rows.append((title, column.show_difference(d.value), *spread))
    return rows


def _other_examples(group: Group) -> bool:
    """Whether equal ids are different examples: folders of the same name may have other images.

    Their labels differ, or as many examples have another digest.
    """
    labels: dict[int, int] = {}
    for record in (r for _, e in group.members for r in e.records if r.get("label") is not None):
        if labels.setdefault(record["id"], record["label"]) != record["label"]:
            return True
    digests = {(e.examples, run.config["examples"]) for run, e in group.members if run.config.get("examples")}
    return len({count for count, _ in digests}) < len(digests)


def _interval(column: Column, d: Estimate) -> str:
    """`[+0.90, +3.30]`; "" without an interval."""
    ends = ", ".join(column.show_difference(end, unit=False) for end in (d.low, d.high))
    return f"[{ends}]" if d.low == d.low else ""


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
