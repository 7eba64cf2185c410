"""The paper's claims, judged from the records of its networks.

A claim is a set of measurements, one for each dataset and method of the paper's tables. Most are paired differences,
second − first over the examples that both models have a score for, with a 95% interval over the examples. Of several
seeds the pair with the lowest difference counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import nan
from typing import Literal

import numpy as np

from results.values import RATIO, show_range, title
from robattr import recipes
from robattr.metrics import intervals
from robattr.metrics.intervals import Estimate, Floats
from robattr.reporting.published import DATASETS, DIFFERENT_M, INTEGRATED_GRADIENTS, SIMPLE_GRADIENT, published
from robattr.reporting.record import APPROACHES
from robattr.reporting.run_results import EvaluationResults, RunResults

Outcome = Literal["reproduced", "reproduced in part", "not reproduced", "not yet measured"]
Pair = tuple[EvaluationResults, EvaluationResults]

ATTRIBUTION = ("topk", "kendall")
REGULARISED = ("ig-norm", "ig-sum-norm")
TOLERATED = 0.03  # 3 points, or 0.03 of rank correlation: a value further from the paper's is far from it
LARGE, LARGER = 10.0, 1.0  # ‖IG‖₁ / ℓ: the paper has 10 to 20; above 1 the regulariser is still the larger term
QUARTILES = (0.25, 0.5, 0.75)
RESAMPLES = 2000


@dataclass(frozen=True)
class Measurement:
    """One comparison of a claim: `found` by column, beside the paper's differences where it prints them."""

    dataset: str
    compared: str
    outcome: Outcome
    found: Mapping[str, Estimate]
    paper: Mapping[str, float]


@dataclass(frozen=True)
class Claim:
    """A claim of the paper; `measure(runs, protocol)` yields its measurements, also those without a record."""

    text: str
    measure: Callable[[Sequence[RunResults], str], Iterable[Measurement]]
    of_training: bool = False  # it is about the training, so no protocol plays a part


@dataclass(frozen=True)
class Verdict:
    """The outcome of a claim, how many of its measurements agree, and by how much."""

    outcome: Outcome
    detail: str

    def __str__(self) -> str:
        return f"**{self.outcome}**{self.detail}"


def judge(measurements: Iterable[Measurement]) -> Verdict:
    """The verdict of all measurements: `reproduced` if each one made is, in part if some are, or all are in part."""
    every = list(measurements)
    made = [m for m in every if m.found]
    if not made:
        return Verdict("not yet measured", "")
    count = Counter(m.outcome for m in made)
    mixed: Outcome = "reproduced in part" if count["reproduced"] else "not reproduced"
    outcome = made[0].outcome if len(count) == 1 else mixed
    said = f"{count['reproduced']} of {len(made)} comparisons"
    said += f", {len(every) - len(made)} not yet measured" if len(made) < len(every) else ""
    ranges = ", ".join(_ranges(made, key) for key in made[0].found)
    return Verdict(outcome, f" ({said}): {ranges}")


def is_papers(run: RunResults) -> bool:
    """Whether a run has the paper's network and recipe."""
    tuned = str(run.config.get("recipe") or "").endswith("-tuned")
    return run.dataset in DATASETS and not run.config.get("model") and not tuned


def sweep_over_m(runs: Iterable[RunResults]) -> list[RunResults]:
    """The runs of the paper's table 2, by m: IG-NORM on MNIST, right ends, one number of steps.

    They are those with fewer steps than their recipe's; without such, those with all steps if they have several m.
    """
    by_steps: dict[int, dict[int, RunResults]] = {}
    for run in _of(runs, "mnist", "ig-norm"):
        if run.m in DIFFERENT_M and run.config.get("rule", "right") == "right":
            by_steps.setdefault(_missing_steps(run), {}).setdefault(run.m, run)
    whole = by_steps.pop(0, {})
    swept = max(by_steps.values(), key=len, default={}) or (whole if len(whole) > 1 else {})
    return [swept[m] for m in sorted(swept)]


def without_sweep(runs: Iterable[RunResults]) -> list[RunResults]:
    """The runs without those of table 2; the one with m = 50 and all steps is in table 1 as well."""
    runs = list(runs)
    only = {id(run) for run in sweep_over_m(runs) if run.m != 50 or _missing_steps(run)}
    return [run for run in runs if id(run) not in only]


def pairs(first: Iterable[RunResults], second: Iterable[RunResults], protocol: str, map_name: str = "ig") -> list[Pair]:
    """Every evaluation of the one with every one of the other, by the newest version of the protocol that both have."""
    a, b = (_by_version(runs, protocol, map_name) for runs in (first, second))
    newest = max(a.keys() & b.keys(), default=None)
    return [] if newest is None else [*product(a[newest], b[newest])]


def mean_difference(a: Floats, b: Floats) -> Estimate:
    """The mean of b − a with its bootstrap interval."""
    return intervals.mean(b - a, resamples=RESAMPLES)


def quartile_difference(a: Floats, b: Floats) -> Estimate:
    """The lowest of the three differences between the quartiles of b and of a, with its bootstrap interval.

    Examples are drawn in pairs, as for the mean.
    """
    drawn = np.random.default_rng(0).integers(0, len(a), (RESAMPLES, len(a)))
    values = np.quantile(b, QUARTILES) - np.quantile(a, QUARTILES)
    spread = np.quantile(b[drawn], QUARTILES, axis=1) - np.quantile(a[drawn], QUARTILES, axis=1)
    least = int(values.argmin())
    low, high = np.quantile(spread[least], intervals.TAILS)
    return Estimate(float(values[least]), float(low), float(high), len(a))


def lowest(
    compared: Iterable[Pair], key: str, estimate: Callable[[Floats, Floats], Estimate] = mean_difference
) -> Estimate | None:
    """The difference of the pair of seeds whose mean difference is lowest; None without common examples."""
    scores = [scored for first, second in compared if len((scored := first.paired(second, key))[0])]
    return estimate(*min(scores, key=lambda s: float((s[1] - s[0]).mean()))) if scores else None


def differences(
    compared: Iterable[Pair],
    keys: Iterable[str],
    estimate: Callable[[Floats, Floats], Estimate] = mean_difference,
) -> dict[str, Estimate]:
    """The lowest differences in these columns; {} unless all were measured."""
    every = list(compared)
    found = {key: lowest(every, key, estimate) for key in keys}
    return {key: value for key, value in found.items() if value} if all(found.values()) else {}


def beats(
    runs: Sequence[RunResults],
    protocol: str,
    *,
    others: Sequence[str],
    methods: Sequence[str] = REGULARISED,
    map_name: str = "ig",
    estimate: Callable[[Floats, Floats], Estimate] = mean_difference,
) -> Iterator[Measurement]:
    """Regularised models against others in the attribution columns.

    A column counts where the paper's table has the difference. It is reproduced if its interval is above 0 and, where
    the two can be compared, it is at least half as large as the paper's; in part, if one of these holds.
    """
    for dataset, method, other in product(DATASETS, methods, others):
        paper = _papers_differences(dataset, method, other, ATTRIBUTION, map_name)
        claimed = [key for key, value in paper.items() if value > 0]
        if claimed:
            found = _measured(runs, dataset, method, other, protocol, ATTRIBUTION, map_name, estimate)
            printed = paper if protocol == "paper" and estimate is mean_difference else {}
            agrees = [found[key].low > 0 for key in claimed if found]
            agrees += [found[key].value >= printed[key] / 2 for key in claimed if found and printed]
            outcome = _outcome(agrees)
            yield Measurement(dataset, _names(method, other), outcome, found, printed)


def costs(runs: Sequence[RunResults], protocol: str, *, other: str, key: str) -> Iterator[Measurement]:
    """Regularised models against another in an accuracy: reproduced if they lose at most 3 points more than there.

    In part, if the mean does, and the lower end of its interval does not.
    """
    for dataset, method in product(DATASETS, REGULARISED):
        paper = _papers_differences(dataset, method, other, (key,))
        found = _measured(runs, dataset, method, other, protocol, (key,))
        least = min(paper[key], 0.0) - TOLERATED
        lost = (found[key].value, found[key].low) if found else ()
        outcome = _outcome([round(value - least, 4) >= 0 for value in lost])
        yield Measurement(dataset, _names(method, other), outcome, found, paper if protocol == "paper" else {})


def range_over_m(runs: Sequence[RunResults], protocol: str) -> Iterator[Measurement]:
    """The best m against the worst: reproduced if they differ by no more than in the paper. All ten m are needed."""
    swept = sweep_over_m(runs)
    found: dict[str, Estimate] = {}
    paper = {key: _spread(row[key] for row in DIFFERENT_M.values()) for key in ATTRIBUTION}
    every = [e for run in swept for e in _by_version([run], protocol, "ig").get(_newest(swept, protocol), ())[:1]]
    if len(every) == len(DIFFERENT_M):
        for key in ATTRIBUTION:
            ranked = sorted(every, key=lambda e: float(e.column(key)["value"]))
            found |= {key: estimate} if (estimate := lowest([(ranked[0], ranked[-1])], key)) else {}
    outcome = _outcome([found[key].value <= paper[key] for key in found])
    yield Measurement("mnist", "IG-NORM, best − worst m", outcome, found, paper)


def stays_large(runs: Sequence[RunResults], protocol: str) -> Iterator[Measurement]:
    """‖IG‖₁ / ℓ at the end of training: reproduced from 10, in part above 1; of several seeds the lowest counts."""
    for dataset, method in product(DATASETS, REGULARISED):
        ends = [r.training for r in without_sweep(runs) if (r.dataset, r.method) == (dataset, method)]
        ratios = [end.ig / end.loss for end in ends if end.loss and end.ig is not None]
        found = {RATIO.key: Estimate(min(ratios), nan, nan, 0)} if ratios else {}
        outcome = _outcome([min(ratios) >= LARGE, min(ratios) > LARGER] if ratios else [])
        yield Measurement(dataset, APPROACHES[method], outcome, found, {})


CLAIMS = (
    Claim("IG-NORM and IG-SUM-NORM have more robust attributions than NATURAL", partial(beats, others=("natural",))),
    Claim("… than Madry et al.", partial(beats, others=("madry",))),
    Claim(
        "IG-SUM-NORM also with simple-gradient maps, except against Madry et al. on Fashion-MNIST",
        partial(beats, others=("natural", "madry"), methods=("ig-sum-norm",), map_name="sg"),
    ),
    Claim("They cost a little natural accuracy", partial(costs, other="natural", key="nat_acc")),
    Claim("Their adversarial accuracy is comparable with Madry's", partial(costs, other="madry", key="adv_acc")),
    Claim(
        "In the box plots (figure 2) they are above NATURAL in every quartile",
        partial(beats, others=("natural",), estimate=quartile_difference),
    ),
    Claim("m does not matter much", range_over_m),
    Claim("‖IG‖₁ stays large beside ℓ (ineffective optimisation)", stays_large, of_training=True),
)


def far(run: RunResults, evaluation: EvaluationResults, *, m: int | None = None) -> bool:
    """Whether a column is more than 3 points, or 0.03 of rank correlation, from the paper's row."""
    row = published(run.dataset, run.method, map_name=str(evaluation.summary.get("map")), m=m)
    values = {key: evaluation.column(key).get("value") for key in ("nat_acc", "adv_acc", *ATTRIBUTION)}
    return row is not None and any(
        value is not None and round(abs(value - row[key]), 4) > TOLERATED for key, value in values.items()
    )


def _measured(
    runs: Sequence[RunResults],
    dataset: str,
    method: str,
    other: str,
    protocol: str,
    keys: Iterable[str],
    map_name: str = "ig",
    estimate: Callable[[Floats, Floats], Estimate] = mean_difference,
) -> dict[str, Estimate]:
    """The differences in these columns; {} unless all were measured."""
    chosen = without_sweep(runs)
    compared = pairs(_of(chosen, dataset, other), _of(chosen, dataset, method), protocol, map_name)
    return differences(compared, keys, estimate)


def _by_version(runs: Iterable[RunResults], protocol: str, map_name: str) -> dict[str, list[EvaluationResults]]:
    found: dict[str, list[EvaluationResults]] = {}
    for e in (e for run in runs for e in run.evaluations):
        if (e.summary.get("protocol"), e.summary.get("map")) == (protocol, map_name):
            found.setdefault(e.protocol, []).append(e)
    return found


def _newest(runs: Iterable[RunResults], protocol: str) -> str:
    return max(_by_version(runs, protocol, "ig"), default="")


def _of(runs: Iterable[RunResults], dataset: str, method: str) -> list[RunResults]:
    return [run for run in runs if (run.dataset, run.method) == (dataset, method)]


def _missing_steps(run: RunResults) -> int:
    """How many steps fewer than its recipe's a run had."""
    full = recipes.get(str(run.config.get("recipe") or f"{run.dataset}/{run.method}")).steps
    return max(0, full - int(run.config.get("steps") or full))


def _papers_differences(
    dataset: str, method: str, other: str, keys: Iterable[str], map_name: str = "ig"
) -> dict[str, float]:
    rows = {"ig": INTEGRATED_GRADIENTS, "sg": SIMPLE_GRADIENT}[map_name]
    ours, theirs = rows[dataset, method], rows[dataset, other]
    return {key: round(ours[key] - theirs[key], 4) for key in keys}


def _outcome(agrees: Sequence[bool]) -> Outcome:
    if not agrees:
        return "not yet measured"
    return "reproduced" if all(agrees) else "reproduced in part" if any(agrees) else "not reproduced"


def _names(method: str, other: str) -> str:
    return f"{APPROACHES[method]} − {APPROACHES[other]}"


def _spread(values: Iterable[float]) -> float:
    every = list(values)
    return round(max(every) - min(every), 4)


def _ranges(made: Sequence[Measurement], key: str) -> str:
    """`TopK Inter. +12.30 to +47.11 points (paper +20.00 to +58.21 points)`."""
    paper = [m.paper[key] for m in made if key in m.paper]
    said = f"{title(key)} {show_range(key, [m.found[key].value for m in made])}"
    return f"{said} (paper {show_range(key, paper)})" if paper else said
