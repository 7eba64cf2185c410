"""Two models on the same examples: their paired difference, and which model of a group is the best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from robattr.evaluation.summary import ACCURACIES
from robattr.metrics import intervals
from robattr.metrics.intervals import Estimate
from robattr.reporting.groups import Group
from robattr.reporting.run_results import EvaluationResults

MOST_RIVALS = 12  # that the best model is compared with: those next to it


def unlike(group: Group) -> list[str]:
    """The settings other than the seed in which the evaluations differ: `eps 0.03 and 0.1`.

    Also the examples, where as many have another digest: folders of the same name may have other images.
    """
    every = [e.summary.get("settings") or {} for _, e in group.members]
    odd = []
    for key in dict.fromkeys(key for settings in every for key in settings if key != "seed"):
        values = dict.fromkeys(_short(settings.get(key)) for settings in every)
        odd += [f"{key} {' and '.join(values)}"] if len(values) > 1 else []
    digests = {(e.examples, run.config["examples"]) for run, e in group.members if run.config.get("examples")}
    return [*odd, "other examples"] if len({count for count, _ in digests}) < len(digests) else odd


def difference(first: EvaluationResults, second: EvaluationResults, key: str) -> Estimate:
    """The mean of second − first of a column over the examples that both have, with its 95% interval."""
    name = ACCURACIES.get(key, key)
    a, b = ({r["id"]: float(r[name]) for r in e.records if r.get(name) is not None} for e in (first, second))
    return intervals.mean(b[i] - a[i] for i in sorted(a.keys() & b.keys()))


def settled(d: Estimate) -> bool:
    """Whether the interval of a difference excludes 0."""
    return d.low > 0 or d.high < 0


def winner(evaluations: Sequence[EvaluationResults], key: str) -> EvaluationResults | None:
    """The evaluation with the highest value of a column, if its lead over the MOST_RIVALS next ones is settled."""
    known = [e for e in evaluations if e.column(key).get("value") is not None]
    if len(known) < 2:
        return None
    first, *others = sorted(known, key=lambda e: -float(e.column(key)["value"]))
    return first if all(difference(e, first, key).low > 0 for e in others[:MOST_RIVALS]) else None


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
