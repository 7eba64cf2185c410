"""What an audit found, in plain language, and what to do next. Every sentence is a function of the records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from robattr._text import printable
from robattr.metrics import intervals
from robattr.metrics.intervals import Estimate
from robattr.reporting.runs import Evaluation, RunResults

HOLDS, FRAGILE = 0.7, 0.5  # of the top-k intersection: the lower end above the first; the value below the second
FEW = 10  # fewer scored examples than this carry no verdict, whatever their interval
CLEARLY = 0.1  # a difference between noise and the attack, of the top-k intersection, that says something
MANY = 0.1  # a share of examples, counted as unmoved because no attack step kept the answer, that carries a score
WIDE = 0.15  # an interval wider than this settles little
FLIMSY = 0.6  # an accuracy below this makes one doubt the labels or the preprocessing first

Level = Literal["holds", "partly", "fragile", "unclear"]
WORDS: dict[Level, str] = {
    "holds": "hold",
    "partly": "hold in part",
    "fragile": "cannot be relied on",
    "unclear": "are not judged",
}


@dataclass(frozen=True)
class Verdict:
    """Can the explanations be trusted? `level` for programs, the rest for people."""

    level: Level
    headline: str
    findings: tuple[str, ...]
    next_steps: tuple[str, ...]
    doubts: tuple[str, ...] = ()  # what the measurement holds against itself


def verdict(run: RunResults) -> Verdict:
    """Judge the audited model by its sternest evaluation: the strict protocol where it was run, of the first map.

    An attack that failed is no proof where the measurement has doubts about itself: then nothing is said to hold, not
    even in part.
    """
    main = strictest(run)
    settings, topk = main.summary["settings"], column(main, "topk")
    level = judged(topk)
    doubts = (*_unfinished(run), *doubts_of(main))
    doubted = _doubted(level, doubts)
    k = int(settings["eval_k"])
    places = "most important place" if k == 1 else f"{k} most important places"
    what = f"{main.summary['map']} maps, {main.summary['protocol']} protocol"
    kept = (
        f"A change of at most ε = {float(settings['eps']):.4g} in any value, chosen to mislead, leaves the answer as "
        f"it was and keeps {_percent(topk)} of the {places} of the map (brackets: 95% interval)."
    )
    if level == "unclear":
        headline = (
            f"Nothing can be said about the explanations ({what}): {int(topk.get('n') or 0)} of the audited examples "
            f"were classified correctly and scored, and {FEW} are needed."
        )
    elif doubted:
        headline = (
            f"Nothing can be said about the explanations ({what}) before its measurement's doubts are settled. {kept}"
        )
    else:
        headline = f"The explanations {WORDS[level]} ({what}). {kept}"
    level = "unclear" if doubted else level
    return Verdict(level, headline, tuple(_findings(run, main)), tuple(_next_steps(run, main, level)), doubts)


def judged(topk: Mapping[str, Any]) -> Level:
    """By the top-k intersection, where enough examples were scored: who says that maps hold has to show it.

    So the interval's lower end makes them hold, and a wide interval does not lift a low value.
    """
    value = topk.get("value")
    if value is None or (topk.get("n") or 0) < FEW:
        return "unclear"
    return "holds" if topk["low"] >= HOLDS else "fragile" if value < FRAGILE else "partly"


def doubts_of(e: Evaluation) -> tuple[str, ...]:
    """What an evaluation holds against itself: its alarms, noise that outdoes the attack, scores nobody measured."""
    return (*(str(alarm) for alarm in e.summary.get("alarms") or ()), *(said for said, _ in _reservations(e)))


def _unfinished(run: RunResults) -> tuple[str, ...]:
    """What the audit was asked for and has not measured: it was stopped before."""
    done = {(str(e.summary["protocol"]), str(e.summary["map"])) for e in run.evaluations}
    asked = [(str(p), str(m)) for p in run.config.get("protocols", ()) for m in run.config.get("maps", ())]
    missing = [f"{protocol} protocol, {name} maps" for protocol, name in asked if (protocol, name) not in done]
    return (f"the audit is unfinished: not measured yet are {'; '.join(missing)}",) if missing else ()


def _doubted(level: Level, doubts: tuple[str, ...]) -> bool:
    """Whether doubts forbid the judgement. What did move, moved: they cannot make a fragile model better."""
    return level in ("holds", "partly") and bool(doubts)


def _reservations(e: Evaluation) -> Iterable[tuple[str, str]]:
    """Doubts that the columns of the verdict alone give rise to, each with what to do about it."""
    topk, noise = column(e, "topk").get("value"), column(e, "noise_topk").get("value")
    if topk is not None and noise is not None and noise < topk - CLEARLY:
        yield (
            f"random noise of the same ε keeps less of the map ({noise:.0%}) than the attack found ({topk:.0%})",
            "Audit by a harder attack (robattr audit --protocol strict, more --steps): noise does more than this one.",
        )
    share = float(e.summary["never_kept"])
    if share >= MANY and not _strict(e):
        yield (
            f"{share:.0%} of the attacked examples count as unmoved because every attack step changed the answer",
            "Audit by the strict protocol, where those without a kept answer have no score, or at a smaller ε.",
        )


def _strict(e: Evaluation) -> bool:
    return str(e.summary["protocol"]).startswith("strict")


def strictest(run: RunResults) -> Evaluation:
    """The evaluation that counts: strict before paper; of the maps, the first that was asked for."""
    return by_weight(run).evaluations[0]


def by_weight(run: RunResults) -> RunResults:
    """The run with the evaluation that counts first, then the others as they were asked for."""
    wanted = [str(name) for name in run.config.get("maps", ())]

    def rank(e: Evaluation) -> tuple[bool, int]:
        name = str(e.summary["map"])
        return not _strict(e), wanted.index(name) if name in wanted else 99

    return replace(run, evaluations=tuple(sorted(run.evaluations, key=rank)))


def show(column: Mapping[str, Any], *, share: bool) -> str:
    """A column's value with its interval."""
    value, low, high = (column.get(key) for key in ("value", "low", "high"))
    if value is None:
        return "–"
    scale, digits, unit = (100, 1, "%") if share else (1, 3, "")
    spread = "" if low is None or high is None else f" [{scale * low:.{digits}f}, {scale * high:.{digits}f}]"
    return f"{scale * value:.{digits}f}{unit}{spread}"


def _findings(run: RunResults, main: Evaluation) -> Iterable[str]:
    topk, noise = column(main, "topk").get("value"), column(main, "noise_topk").get("value")
    if topk is not None and noise is not None:
        if (column(main, "topk").get("n") or 0) < FEW:
            kind = "too few examples to say more"
        elif noise < topk:
            kind = "the attack does no more than that"
        elif noise < HOLDS:
            kind = "accidents move them too"
        elif noise - topk > CLEARLY:
            kind = "it takes an adversary, not an accident, to move them"
        else:
            kind = "the attack does little more than that"
        yield f"Random noise of the same size keeps {noise:.0%}: {kind}."
    yield (
        f"The predictions: {_percent(column(main, 'nat_acc'))} of {main.summary['examples']} examples are "
        f"classified correctly, {_percent(column(main, 'adv_acc'))} still are under an attack of the same ε."
    )
    others = [e for e in by_weight(run).evaluations if e is not main and column(e, "topk").get("value") is not None]
    for e in others:
        found = f"{e.summary['protocol']} protocol, {e.summary['map']} maps: {_percent(column(e, 'topk'))} kept"
        alike = e.summary["protocol"] == main.summary["protocol"]
        level = judged(column(e, "topk"))
        level = "unclear" if _doubted(level, doubts_of(e)) else level
        yield f"Beside it, {found}: they {WORDS[level]}." if alike else f"Beside it, {found}."
    if any(str(e.summary["map"]).startswith("captum-") for e in (main, *others)):
        yield (
            "Captum's maps have no usable derivative, so the attack followed robattr's nearest map: they can be moved "
            "at least this far."
        )
    if (share := float(main.summary["never_kept"])) >= 0.02:
        counted = "they have no score" if _strict(main) else "they count as unmoved, which flatters the score"
        yield f"On {share:.0%} of the attacked examples every attack step changed the answer: {counted}."


def _next_steps(run: RunResults, main: Evaluation, level: Level) -> Iterable[str]:
    accuracy, topk = column(main, "nat_acc").get("value"), column(main, "topk")
    if _unfinished(run):
        yield "Finish the audit: the command that began it continues."
    if main.summary.get("alarms"):
        yield "Read what the measurement holds against itself: until that is settled the numbers may flatter."
    for _, remedy in _reservations(main):
        yield remedy
    if accuracy is not None and accuracy < FLIMSY:
        yield (
            f"Only {accuracy:.0%} are classified correctly: check the order of the classes, the mean and std of the "
            "preprocessing and the bounds (robattr doctor does)."
        )
    if level in ("fragile", "partly"):
        yield (
            "Fine-tune the model against this attack with robattr harden (objective ig-sum-norm, or ig-norm, which "
            "usually costs less clean accuracy); it ends with an audit before and after."
        )
        yield "Until then, let no single map decide: whoever can change the input a little can choose what it shows."
    if steadier := _steadier(run, main):
        yield steadier
    if (topk.get("n") or 0) < FEW:
        yield f"Audit more examples (--examples): fewer than {FEW} scored ones say nothing either way."
    if level == "holds":
        if not _strict(main):
            yield "Audit by the strict protocol before you rely on this: its search is harder than the paper's."
        yield "Audit again after every retraining, and at a larger ε: the curves show where the maps begin to move."
    if topk.get("low") is not None and topk["high"] - topk["low"] > WIDE:
        yield f"The interval is wide: audit more than {main.summary['examples']} examples."
    if (weak := _weakest(main)) is not None:
        yield weak


def _steadier(run: RunResults, main: Evaluation) -> str:
    """Another audited map that holds clearly better, if there is one."""
    same = [e for e in run.evaluations if e.summary["protocol"] == main.summary["protocol"] and e is not main]
    if min((column(e, "topk").get("n") or 0) for e in (main, *same)) < FEW:
        return ""
    sound = [e for e in same if not doubts_of(e)]
    better = [e for e in sound if (column(e, "topk").get("low") or 0) > (column(main, "topk").get("high") or 1)]
    if not better:
        return ""
    best = max(better, key=lambda e: float(column(e, "topk")["value"]))
    return f"Of the audited maps {best.summary['map']} holds best ({_percent(column(best, 'topk'))}): prefer it."


def _weakest(main: Evaluation) -> str | None:
    """The class whose interval lies wholly below that of all examples."""
    low = column(main, "topk").get("low")
    names = main.summary.get("classes") or ()
    found = [(scored(records, "topk"), label) for label, records in by_class(main.records)]
    below = [(e.value, label) for e, label in found if e.n > 4 and low is not None and e.high < low]
    if not below:
        return None
    value, label = min(below)
    name = printable(str(names[label])) if label < len(names) else str(label)
    return f"Class {name!r} is the most fragile ({value:.0%} kept): look at its examples first."


def by_class(records: Iterable[Mapping[str, Any]]) -> list[tuple[int, list[Mapping[str, Any]]]]:
    """The records of each label, by rising label."""
    gathered: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for record in records:
        gathered[int(record["label"])].append(record)
    return sorted(gathered.items())


def scored(records: Iterable[Mapping[str, Any]], key: str) -> Estimate:
    """The mean of a score over the attacked examples that have one."""
    return intervals.mean(r.get(key) for r in records if r.get("kept") is not None)


def column(e: Evaluation, name: str) -> Mapping[str, Any]:
    """A column of the summary, {} where it has none."""
    return e.summary["columns"].get(name) or {}


def _percent(column: Mapping[str, Any]) -> str:
    return show(column, share=True)


def show_estimate(found: Estimate, *, share: bool) -> str:
    """`show` of an estimate, whose unknown parts are NaN."""
    known = {key: None if value != value else value for key, value in vars(found).items()}
    return show(known, share=share)
