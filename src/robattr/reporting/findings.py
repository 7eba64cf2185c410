"""The comparison of a group in sentences, with the reservations that follow from the intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb

from robattr.metrics.columns import COLUMN
from robattr.metrics.intervals import Estimate
from robattr.reporting.faithfulness import unexplained
from robattr.reporting.groups import Group
from robattr.reporting.paired import MOST_RIVALS, difference, settled, shown, unlike
from robattr.reporting.run_results import EvaluationResults, RunResults

Member = tuple[RunResults, EvaluationResults]

DIFFERENCES = ("topk", "kendall", "nat_acc", "adv_acc")  # columns of the differences between two models
MOST_PAIRS = 10  # of more, those with the most robust model alone


@dataclass(frozen=True)
class Finding:
    """The headline of a group, and reservations."""

    headline: str
    cautions: tuple[str, ...]


def finding(group: Group) -> Finding:
    """Compare the reference (a model trained by the clean loss alone, else the most fragile) with the most robust."""
    scored = _scored(group)
    if not scored:
        return Finding(f"On {group.dataset} no example was scored, so there is nothing to compare.", ())
    if odd := unlike(group):
        said = (
            f"On {group.dataset} the models were measured differently ({', '.join(odd)}): their numbers do not compare."
        )
        return Finding(said, tuple(_cautions(scored, scored[0], scored[0])))
    best, worst = _best(scored), min(scored, key=lambda member: _topk(member[1]))
    reference = next((member for member in scored if not member[0].regularised), worst)
    return Finding(_headline(group, reference, best), tuple(_cautions(scored, reference, best)))


def differences(group: Group) -> list[tuple[str, ...]]:
    """A row for each pair of models: `B − A`, the DIFFERENCES, and the number of examples scored in both.

    Of more than MOST_PAIRS pairs, those of the most robust model with MOST_RIVALS others. [] for one model, and for
    models that were measured differently.
    """
    scored = _scored(group)
    if unlike(group) or len(scored) < 2:
        return []
    best = _best(scored)
    few = comb(len(scored), 2) <= MOST_PAIRS
    pairs = combinations(scored, 2) if few else ((member, best) for member in _rivals(scored, best))
    rows = []
    for first, second in pairs:
        found = {key: difference(first[1], second[1], key) for key in DIFFERENCES}
        cells = (shown(COLUMN[key], d) + ("" if settled(d) else ", not settled") for key, d in found.items())
        rows.append((f"{second[0].name} − {first[0].name}", *cells, f"{found['topk'].n:,}"))
    return rows


def examples_differ(group: Group) -> str:
    """A sentence where the scores of the models are over different examples; else ""."""
    counts = [int(e.column("topk").get("n") or 0) for _, e in group.members]
    if len({*counts}) < 2 and len(group.counts) < 2:
        return ""
    return (
        "Scores are over the examples that a model classifies correctly, so each row has its own: from "
        f"{min(counts):,} to {max(counts):,}."
    )


def groups_differ(groups: Sequence[Group]) -> str:
    """A sentence where the tables of a page are about different things; else ""."""
    parts = {
        "datasets": [g.dataset for g in groups],
        "protocols": [g.protocol for g in groups],
        "maps": [g.map_name for g in groups],
        "k": [str(g.k) for g in groups],
    }
    odd = [f"{name} ({', '.join(dict.fromkeys(of))})" for name, of in parts.items() if len({*of}) > 1]
    return (
        f"The tables have different {' and '.join(odd)}: do not compare their numbers with each other." if odd else ""
    )


def alarms(group: Group) -> list[tuple[str, str]]:
    """(model, warning) for every warning of the evaluations about their own validity."""
    return [(run.name, str(alarm)) for run, e in group.members for alarm in e.summary.get("alarms") or ()]


def _headline(group: Group, reference: Member, best: Member) -> str:
    opening = (
        f"On {group.dataset}, the attack replaced {_moved(reference[1])} of the {group.k} most important pixels of the "
        f"{reference[0].name} model{_noise(reference[1], 'random noise of the same size')}"
    )
    if best[0] is reference[0]:
        return f"{opening}; no other model keeps more." if len(_scored(group)) > 1 else f"{opening}."
    sentence = f"{opening}, and {_moved(best[1])} of those of the {best[0].name} model{_noise(best[1], 'noise')}"
    accuracy = difference(reference[1], best[1], "nat_acc")
    if not accuracy.n:
        return f"{sentence}."
    points = -100 * accuracy.value
    if abs(points) < 0.05:
        return f"{sentence}, at the same accuracy on clean images."
    direction = "lower" if points > 0 else "higher"
    return f"{sentence}, whose accuracy on clean images is {abs(points):.1f} points {direction}."


def _cautions(scored: list[Member], reference: Member, best: Member) -> list[str]:
    said = []
    if best[0] is not reference[0]:
        both = reference[1], best[1]
        counts = [e.examples for e in both]
        if counts[0] != counts[1]:
            said.append(
                f"The two models were measured on {counts[0]:,} and {counts[1]:,} examples: differences are on those "
                "of both."
            )
        for key, words in {"topk": "pixels kept", "nat_acc": "accuracy"}.items():
            if not settled(d := difference(*both, key)):
                said.append(f"Whether the two models differ in {words} is not settled: {_measured(key, d)}.")
        others = [(run, e) for run, e in _rivals(scored, best) if run is not reference[0]]
        for run, e in others:
            if not settled(d := difference(e, best[1], "topk")):
                said.append(
                    f"Whether {best[0].name} keeps more than {run.name} is not settled: {_measured('topk', d)}."
                )
        if len(scored) - 1 > MOST_RIVALS:
            said.append(
                f"Of {len(scored):,} models, the most robust one is compared with the {MOST_RIVALS} next to it."
            )
    said += [f"The maps of {run.name}: {reason}." for run, e in scored for reason in unexplained(e)]
    said += [f"{run.name}: {e.failures}." for run, e in scored if e.failures]
    return said


def _scored(group: Group) -> list[Member]:
    return [(run, e) for run, e in group.members if e.column("topk").get("value") is not None]


def _best(scored: Sequence[Member]) -> Member:
    return max(scored, key=lambda member: _topk(member[1]))


def _rivals(scored: Sequence[Member], best: Member) -> list[Member]:
    """The MOST_RIVALS most robust models but the best, in their order."""
    others = [member for member in scored if member is not best]
    nearest = {id(member) for member in sorted(others, key=lambda m: -_topk(m[1]))[:MOST_RIVALS]}
    return [member for member in others if id(member) in nearest]


def _measured(key: str, d: Estimate) -> str:
    return f"{shown(COLUMN[key], d)} on the {d.n:,} examples of both"


def _moved(evaluation: EvaluationResults) -> str:
    return f"{100 * (1 - _topk(evaluation)):.0f}%"


def _noise(evaluation: EvaluationResults, words: str) -> str:
    """` (noise: 32%)`: what the control replaced; "" where there is none."""
    kept = evaluation.column("noise_topk").get("value")
    return "" if kept is None else f" ({words}: {100 * (1 - float(kept)):.0f}%)"


def _topk(evaluation: EvaluationResults) -> float:
    return float(evaluation.column("topk")["value"])
