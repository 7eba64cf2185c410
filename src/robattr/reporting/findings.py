"""The comparison of a group in sentences, with the reservations that follow from the intervals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from robattr.reporting.faithfulness import unexplained
from robattr.reporting.run_results import EvaluationResults, Group, RunResults

Member = tuple[RunResults, EvaluationResults]


@dataclass(frozen=True)
class Finding:
    """The headline of a group, and reservations."""

    headline: str
    cautions: tuple[str, ...]


def finding(group: Group) -> Finding:
    """Compare the reference (a model trained by the clean loss alone, else the most fragile) with the most robust."""
    scored = [(run, e) for run, e in group.members if e.column("topk").get("value") is not None]
    if not scored:
        return Finding(f"On {group.dataset} no example was scored, so there is nothing to compare.", ())
    if odd := unlike(group):
        said = (
            f"On {group.dataset} the models were measured differently ({', '.join(odd)}): their numbers do not compare."
        )
        return Finding(said, tuple(_cautions(scored, scored[0], scored[0])))
    best, worst = (choose(scored, key=lambda member: _topk(member[1])) for choose in (max, min))
    reference = next((member for member in scored if not member[0].regularised), worst)
    return Finding(_headline(group, reference, best), tuple(_cautions(scored, reference, best)))


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


def alarms(group: Group) -> list[tuple[str, str]]:
    """(model, warning) for every warning of the evaluations about their own validity."""
    return [(run.name, str(alarm)) for run, e in group.members for alarm in e.summary.get("alarms") or ()]


def _headline(group: Group, reference: Member, best: Member) -> str:
    opening = (
        f"On {group.dataset}, the attack replaced {_moved(reference[1])} of the {group.k} most important pixels of the "
        f"{reference[0].name} model{_noise(reference[1], 'random noise of the same size')}"
    )
    if best[0] is reference[0]:
        return f"{opening}."
    sentence = f"{opening}, and {_moved(best[1])} of those of the {best[0].name} model{_noise(best[1], 'noise')}"
    before, after = (member[1].column("nat_acc").get("value") for member in (reference, best))
    if before is None or after is None:
        return f"{sentence}."
    points = 100 * (float(before) - float(after))
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
                f"The two models were measured on {counts[0]:,} and {counts[1]:,} examples: robattr compare takes "
                "those of both."
            )
        compared = {"topk": "pixels kept", "nat_acc": "accuracy"}
        if unsettled := [words for key, words in compared.items() if _overlap(*(e.column(key) for e in both))]:
            said.append(
                f"The two models' intervals of {' and of '.join(unsettled)} overlap: this many examples do not settle "
                "the difference."
            )
        others = [(run.name, e) for run, e in scored if run is not best[0] and run is not reference[0]]
        if close := [name for name, e in others if _overlap(e.column("topk"), best[1].column("topk"))]:
            said.append(
                f"Whether {best[0].name} keeps more than {' and '.join(close)} is not settled: their intervals overlap."
            )
    said += [f"The maps of {run.name}: {reason}." for run, e in scored for reason in unexplained(e)]
    for run, e in scored:
        share = e.summary.get("never_kept")
        if share is not None and float(share) >= 0.02:
            counted = (
                "those count as unmoved, which raises this model's score"
                if str(e.summary.get("protocol")).startswith("paper")
                else "those have no score"
            )
            said.append(
                f"{run.name}: on {100 * float(share):.0f}% of the examples no attack step kept the prediction; "
                f"{counted}."
            )
    return said


def _overlap(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether two intervals overlap; False where one of them is missing."""
    ends = [column.get(end) for column in (a, b) for end in ("low", "high")]
    return None not in ends and max(float(a["low"]), float(b["low"])) <= min(float(a["high"]), float(b["high"]))


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _moved(evaluation: EvaluationResults) -> str:
    return f"{100 * (1 - _topk(evaluation)):.0f}%"


def _noise(evaluation: EvaluationResults, words: str) -> str:
    """` (noise: 32%)`: what the control replaced; "" where there is none."""
    kept = evaluation.column("noise_topk").get("value")
    return "" if kept is None else f" ({words}: {100 * (1 - float(kept)):.0f}%)"


def _topk(evaluation: EvaluationResults) -> float:
    return float(evaluation.column("topk")["value"])
