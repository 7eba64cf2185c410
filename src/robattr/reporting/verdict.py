"""The verdict of an audit in sentences, and what to do next, computed from the records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from robattr.metrics import intervals
from robattr.metrics.columns import COLUMN
from robattr.metrics.intervals import Estimate
from robattr.reporting import faithfulness
from robattr.reporting.paired import FEW
from robattr.reporting.run_results import EvaluationResults, RunResults
from robattr.reporting.tables import cell_of

HOLDS, FRAGILE = 0.7, 0.5  # thresholds of the top-k intersection: for its interval's lower end, and for its value
CLEARLY = 0.1  # a difference in top-k intersection between noise and the attack that matters
MANY = 0.1  # a share of examples scored 1, because no attack step kept the answer, that decides the score
WIDE = 0.15  # an interval wider than this is inconclusive
LOW_ACCURACY = 0.6  # below this, check the labels and the preprocessing first

Level = Literal["holds", "partly", "fragile", "vacuous", "unclear"]
WORDS: dict[Level, str] = {
    "holds": "hold",
    "partly": "hold in part",
    "fragile": "cannot be relied on",
    "vacuous": "are not shown to explain the predictions",
    "unclear": "are not judged",
}
HARDEN = (
    "Fine-tune the model against this attack with robattr harden (objective ig-sum-norm, or ig-norm, which usually "
    "costs less clean accuracy); it ends with an audit before and after."
)
HARDEN_MORE = (
    "Harden it further, and compare with the audit before: more updates (--steps), a larger learning rate (--lr), or "
    "more weight on the explanations (--set weight=…, which costs clean accuracy)."
)


@dataclass(frozen=True)
class Verdict:
    """Whether the explanations can be trusted: `level` for programs, the rest for people."""

    level: Level
    headline: str
    findings: tuple[str, ...]
    next_steps: tuple[str, ...]
    doubts: tuple[str, ...] = ()  # reasons why the measurement itself may be wrong


def verdict(run: RunResults) -> Verdict:
    """Judge the audited model by its strictest evaluation.

    Where there are doubts about the measurement, a failed attack proves nothing: the level is then `unclear`, unless
    the maps are fragile. Stable maps must also explain something: otherwise they are `vacuous`, doubts or not.
    """
    main = strictest(run)
    settings, topk = main.summary["settings"], main.column("topk")
    doubts = (*_unfinished(run), *doubts_of(main))
    level = level_of(main, doubts)
    k = int(settings["eval_k"])
    places = "most important place" if k == 1 else f"{k} most important places"
    what = f"{main.summary['map']} maps, {main.summary['protocol']} protocol"
    kept = (
        f"A change of at most ε = {main.radius} in any value, chosen to mislead, leaves the answer as "
        f"it was and keeps {_percent(topk)} of the {places} of the map (brackets: 95% interval)."
    )
    if judge(topk) == "unclear":
        headline = (
            f"Nothing can be said about the explanations ({what}): {int(topk.get('n') or 0)} of the audited examples "
            f"were classified correctly and scored, and {FEW} are needed."
        )
    elif level == "unclear":
        headline = (
            f"Nothing can be said about the explanations ({what}) until the doubts about the measurement are settled. "
            + kept
        )
    else:
        reasons = f": {'; '.join(faithfulness.unexplained(main))}." if level == "vacuous" else "."
        headline = f"The explanations {WORDS[level]} ({what}){reasons} {kept}"
    return Verdict(level, headline, tuple(_findings(run, main)), tuple(_next_steps(run, main, level)), doubts)


def judge(topk: Mapping[str, Any]) -> Level:
    """The level of a top-k intersection: `holds` by its interval's lower end, `fragile` by its value.

    A wide interval thus makes neither: it cannot show that maps hold, nor raise a low value.
    """
    value = topk.get("value")
    if value is None or (topk.get("n") or 0) < FEW:
        return "unclear"
    return "holds" if topk["low"] >= HOLDS else "fragile" if value < FRAGILE else "partly"


def level_of(e: EvaluationResults, doubts: tuple[str, ...]) -> Level:
    """The level of an evaluation with these doubts; fragile maps stay fragile, and vacuous ones vacuous."""
    level = judge(e.column("topk"))
    if level == "holds" and faithfulness.unexplained(e):
        return "vacuous"
    return "unclear" if level in ("holds", "partly") and doubts else level


def doubts_of(e: EvaluationResults) -> tuple[str, ...]:
    """Doubts about an evaluation: its alarms, noise stronger than the attack, too many examples scored 1."""
    return (*(str(alarm) for alarm in e.summary.get("alarms") or ()), *(said for said, _ in _reservations(e)))


def _unfinished(run: RunResults) -> tuple[str, ...]:
    """The evaluations that were asked for and are missing, because the audit was stopped."""
    done = {(str(e.summary["protocol"]), str(e.summary["map"])) for e in run.evaluations}
    asked = [(str(p), str(m)) for p in run.config.get("protocols", ()) for m in run.config.get("maps", ())]
    missing = [f"{protocol} protocol, {name} maps" for protocol, name in asked if (protocol, name) not in done]
    return (f"the audit is unfinished: still missing are {'; '.join(missing)}",) if missing else ()


def _reservations(e: EvaluationResults) -> Iterable[tuple[str, str]]:
    """Doubts that follow from the columns, each with its remedy."""
    topk, noise = e.column("topk").get("value"), e.column("noise_topk").get("value")
    if topk is not None and noise is not None and noise < topk - CLEARLY:
        yield (
            f"random noise of the same ε keeps less of the map ({noise:.0%}) than the attack found ({topk:.0%})",
            "Audit by a harder attack (robattr audit --protocol strict, more --iterations): noise does more.",
        )
    share = float(e.summary["never_kept"])
    if share >= MANY and not e.strict:
        yield (
            f"{share:.0%} of the attacked examples count as unmoved because every attack step changed the answer",
            "Audit by the strict protocol, where those without a kept answer have no score, or at a smaller ε.",
        )
    if judge(e.column("topk")) == "holds" and not faithfulness.measured(e):
        yield (
            "whether the maps explain the predictions was not measured",
            "Audit again: this evaluation was made before robattr measured what maps explain.",
        )


def strictest(run: RunResults) -> EvaluationResults:
    """The evaluation that decides: of the maps asked for last, strict before paper, then the first map."""
    return strictest_first(run).evaluations[0]


def strictest_first(run: RunResults) -> RunResults:
    """The run with its evaluations sorted: maps asked for last, strict before paper, in the order of the maps."""
    wanted = [str(name) for name in run.config.get("maps", ())]

    def rank(e: EvaluationResults) -> tuple[bool, bool, int]:
        name = str(e.summary["map"])
        return name not in wanted, not e.strict, wanted.index(name) if name in wanted else 0

    return replace(run, evaluations=tuple(sorted(run.evaluations, key=rank)))


def _findings(run: RunResults, main: EvaluationResults) -> Iterable[str]:
    topk, noise = main.column("topk").get("value"), main.column("noise_topk").get("value")
    if topk is not None and noise is not None:
        if (main.column("topk").get("n") or 0) < FEW:
            kind = "too few examples to say more"
        elif noise < topk:
            kind = "the attack does not do more"
        elif noise < HOLDS:
            kind = "random noise moves them too"
        elif noise - topk > CLEARLY:
            kind = "only an attack moves them, not random noise"
        else:
            kind = "the attack does little more"
        yield f"Random noise of the same size keeps {noise:.0%}: {kind}."
    if faithfulness.measured(main):
        yield faithfulness.finding(main)
    yield (
        f"The predictions: {_percent(main.column('nat_acc'))} of {main.summary['examples']} examples are "
        f"classified correctly, {_percent(main.column('adv_acc'))} after an attack of the same ε on the predictions."
    )
    others = [
        e for e in strictest_first(run).evaluations if e is not main and e.column("topk").get("value") is not None
    ]
    for e in others:
        found = f"{e.summary['protocol']} protocol, {e.summary['map']} maps: {_percent(e.column('topk'))} kept"
        alike = e.summary["protocol"] == main.summary["protocol"]
        level = level_of(e, doubts_of(e))
        yield f"Also measured: {found}: they {WORDS[level]}." if alike else f"Also measured: {found}."
    if any(str(e.summary["map"]).startswith("captum-") for e in (main, *others)):
        yield (
            "Captum's maps have no usable derivative, so the attack followed robattr's nearest map: they can be moved "
            "at least this far."
        )
    if main.failures:
        yield f"{main.failures[0].upper()}{main.failures[1:]}."


def _next_steps(run: RunResults, main: EvaluationResults, level: Level) -> Iterable[str]:
    accuracy, topk = main.column("nat_acc").get("value"), main.column("topk")
    if _unfinished(run):
        yield "Finish the audit: run the same command again."
    if main.summary.get("alarms"):
        yield "Read the warnings of the measurement: until they are settled, the scores may be too high."
    for _, remedy in _reservations(main):
        yield remedy
    if accuracy is not None and accuracy < LOW_ACCURACY:
        yield (
            f"Only {accuracy:.0%} are classified correctly: check the order of the classes, the mean and std of the "
            "preprocessing and the bounds (robattr doctor does)."
        )
    if level in ("fragile", "partly"):
        yield HARDEN_MORE if run.config.get("recipe") == "harden" else HARDEN
        yield "Until then, do not rely on a single map: whoever can change the input a little can change what it shows."
    if level == "vacuous":
        yield (
            "Do not rely on these maps, however stable: audit another kind of map (--maps), or more examples if a gain "
            "is above 0 but its interval is not."
        )
    if better := _better_map(run, main):
        yield better
    if (topk.get("n") or 0) < FEW:
        yield f"Audit more examples (--examples): fewer than {FEW} scored ones show nothing."
    if level == "holds":
        if not main.strict:
            yield "Audit by the strict protocol before you rely on this: its search is harder than the paper's."
        yield "Audit again after every retraining, and at a larger ε: the curves show where the maps begin to move."
    if topk.get("low") is not None and topk["high"] - topk["low"] > WIDE:
        yield f"The interval is wide: audit more than {main.summary['examples']} examples."
    if (weak := _weakest(main)) is not None:
        yield weak


def _better_map(run: RunResults, main: EvaluationResults) -> str:
    """Advice to prefer another audited map whose interval is higher; "" where there is none."""
    same = [e for e in run.evaluations if e.summary["protocol"] == main.summary["protocol"] and e is not main]
    if min((e.column("topk").get("n") or 0) for e in (main, *same)) < FEW:
        return ""
    sound = [e for e in same if not doubts_of(e) and not faithfulness.unexplained(e)]
    better = [e for e in sound if e.column("topk")["low"] > main.column("topk")["high"]]
    if not better:
        return ""
    best = max(better, key=lambda e: float(e.column("topk")["value"]))
    return f"Of the audited maps {best.summary['map']} holds best ({_percent(best.column('topk'))}): prefer it."


def _weakest(main: EvaluationResults) -> str | None:
    """Advice about the class whose interval is entirely below the interval of all examples; None without one."""
    low = main.column("topk").get("low")
    found = [(mean_score(records, "topk"), label) for label, records in records_by_class(main.records)]
    below = [(e.value, label) for e, label in found if e.n > 4 and low is not None and e.high < low]
    if not below:
        return None
    value, label = min(below)
    return f"Class {main.class_name(label)!r} is the most fragile ({value:.0%} kept): look at its examples first."


def records_by_class(records: Iterable[Mapping[str, Any]]) -> list[tuple[int, list[Mapping[str, Any]]]]:
    """(label, its records), sorted by label."""
    gathered: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for record in records:
        gathered[int(record["label"])].append(record)
    return sorted(gathered.items())


def mean_score(records: Iterable[Mapping[str, Any]], key: str) -> Estimate:
    """The mean of a score over the attacked examples that have one."""
    return intervals.mean(r.get(key) for r in records if r.get("kept") is not None)


def _percent(column: Mapping[str, Any]) -> str:
    return str(cell_of(COLUMN["topk"], column))
