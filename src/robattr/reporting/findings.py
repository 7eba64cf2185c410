"""What the records say, in sentences. Every number is computed; nothing is claimed that the intervals do not carry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from robattr.reporting.runs import Evaluation, Group, RunResults


@dataclass(frozen=True)
class Finding:
    """The headline of a group and the reservations a careful reader should have."""

    headline: str
    cautions: tuple[str, ...]


def finding(group: Group) -> Finding:
    """Compare the reference model (NATURAL where there is one, else the most fragile) with the most robust one."""
    scored = [(run, e) for run, e in group.members if _column(e, "topk").get("value") is not None]
    if not scored:
        return Finding(f"On {group.dataset} no example was scored, so there is nothing to compare.", ())
    if odd := unlike(group):
        said = (
            f"On {group.dataset} the models were not measured alike ({', '.join(odd)}): their numbers do not compare."
        )
        return Finding(said, tuple(_cautions(scored, scored[0], scored[0])))
    best, worst = (choose(scored, key=lambda member: _mean(member[1], "topk")) for choose in (max, min))
    reference = next((member for member in scored if member[0].method == "natural"), worst)
    return Finding(_headline(group, reference, best), tuple(_cautions(scored, reference, best)))


def unlike(group: Group) -> list[str]:
    """The settings, but for the seed, on which the evaluations differ (`eps 0.03 and 0.1`): each audit has its own.

    And the examples, where as many have another digest: folders of one name may hold other images.
    """
    every = [e.summary.get("settings") or {} for _, e in group.members]
    odd = []
    for key in dict.fromkeys(key for settings in every for key in settings if key != "seed"):
        values = dict.fromkeys(_short(settings.get(key)) for settings in every)
        odd += [f"{key} {' and '.join(values)}"] if len(values) > 1 else []
    digests = {(e.examples, run.config["examples"]) for run, e in group.members if run.config.get("examples")}
    return [*odd, "other examples"] if len({count for count, _ in digests}) < len(digests) else odd


def alarms(group: Group) -> list[tuple[str, str]]:
    """(model, sentence) for everything the evaluations hold against themselves."""
    return [(run.name, str(alarm)) for run, e in group.members for alarm in e.summary.get("alarms") or ()]


def _headline(group: Group, reference: tuple[RunResults, Evaluation], best: tuple[RunResults, Evaluation]) -> str:
    k = group.k
    opening = (
        f"On {group.dataset}, the attack replaced {_moved(reference[1])} of the {k} most important pixels of the "
        f"{reference[0].name} model"
    )
    if best[0] is reference[0]:
        return f"{opening}."
    sentence = f"{opening}, and {_moved(best[1])} of those of the {best[0].name} model"
    before, after = _column(reference[1], "nat_acc").get("value"), _column(best[1], "nat_acc").get("value")
    if before is None or after is None:
        return f"{sentence}."
    points = 100 * (float(before) - float(after))
    if abs(points) < 0.05:
        return f"{sentence}, at the same accuracy on clean images."
    direction = "lower" if points > 0 else "higher"
    return f"{sentence}, whose accuracy on clean images is {abs(points):.1f} points {direction}."


def _cautions(
    scored: list[tuple[RunResults, Evaluation]],
    reference: tuple[RunResults, Evaluation],
    best: tuple[RunResults, Evaluation],
) -> list[str]:
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
        if unsettled := [words for key, words in compared.items() if _overlap(*(_column(e, key) for e in both))]:
            said.append(
                f"The two models' intervals of {' and of '.join(unsettled)} overlap: this many examples do not settle "
                "the difference."
            )
        others = [(run.name, e) for run, e in scored if run is not best[0] and run is not reference[0]]
        if close := [name for name, e in others if _overlap(_column(e, "topk"), _column(best[1], "topk"))]:
            said.append(
                f"Whether {best[0].name} keeps more than {' and '.join(close)} is not settled: their intervals overlap."
            )
    for run, e in scored:
        share = e.summary.get("never_kept")
        if share is not None and float(share) >= 0.02:
            counted = (
                "those count as unmoved, which flatters this model"
                if str(e.summary.get("protocol")).startswith("paper")
                else "those have no score"
            )
            said.append(
                f"{run.name}: on {100 * float(share):.0f}% of the examples no attack step kept the prediction; "
                f"{counted}."
            )
    return said


def _overlap(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether two intervals meet; of columns without intervals nothing is said."""
    ends = [column.get(end) for column in (a, b) for end in ("low", "high")]
    return None not in ends and max(float(a["low"]), float(b["low"])) <= min(float(a["high"]), float(b["high"]))


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _moved(evaluation: Evaluation) -> str:
    return f"{100 * (1 - _mean(evaluation, 'topk')):.0f}%"


def _mean(evaluation: Evaluation, key: str) -> float:
    return float(_column(evaluation, key)["value"])


def _column(evaluation: Evaluation, key: str) -> Mapping[str, Any]:
    return evaluation.summary.get("columns", {}).get(key) or {}
