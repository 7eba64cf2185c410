"""Summary of the records: the paper's columns with confidence intervals, further scores, diagnostics and curves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from robattr.evaluation.diagnostics import curve_points
from robattr.evaluation.evaluate_batch import SCORES
from robattr.evaluation.protocol import Protocol
from robattr.metrics import intervals
from robattr.metrics.intervals import Estimate

Rows = Sequence[Mapping[str, Any]]

FURTHER = ("foreground_topk", "foreground_kendall", "ceiling", "noise_topk", "noise_kendall")


def columns(records: Rows) -> dict[str, dict[str, float | None]]:
    """Nat Acc and Adv Acc over all examples, each score over the examples that have it, with 95% intervals.

    {"nat_acc": {"value", "low", "high", "n"}, "adv_acc": …, "topk": …, "kendall": …, …}
    """
    shares = {
        "nat_acc": intervals.proportion(r["correct"] for r in records),
        "adv_acc": intervals.proportion(r["adv_correct"] for r in records),
    }
    scored = [r for r in records if r["kept"] is not None]
    means = {name: intervals.mean(r.get(name) for r in scored) for name in (*SCORES, *FURTHER)}
    return {name: _plain(e) for name, e in {**shares, **means}.items()}


def summarise(records: Rows, protocol: Protocol) -> dict[str, Any]:
    """The part of a summary that is a function of the records."""
    scored = [r for r in records if r["kept"] is not None]
    about = [r["diagnostics"] for r in scored]
    points = curve_points(protocol.steps)
    curves = {name: _curve(d["curves"][name] for d in about) for name in ("topk", "kendall")}
    return {
        "protocol": protocol.name,
        "dataset": protocol.dataset,
        "examples": len(records),
        "correct": sum(bool(r["correct"]) for r in records),
        "excluded": sum(r["excluded"] is not None for r in records),
        "settings": protocol.settings(),
        "seed": protocol.seed,
        "columns": columns(records),
        "never_kept": _share(not r["kept"] for r in scored),
        "diagnostics": {
            "completeness_gap": _median(d["completeness_gap"] for d in about),
            "vanishing_loss": _share(r["diagnostics"]["vanishing_loss"] for r in records if r["correct"]),
            "vanishing_map": _share(d["vanishing_map"] for d in about),
            "label_flips": _share(d["flips"] for d in about),
            "still_falling": _still_falling(points, curves["kendall"]),
        },
        "curves": {"score_vs_iterations": {"iterations": points, **curves}},
    }


def compare(first: Rows, second: Rows) -> dict[str, intervals.Comparison]:
    """Second minus first, paired by example, for every column of both: difference, interval and p-value."""
    found = {}
    for name in ("nat_acc", "adv_acc", *SCORES):
        key = {"nat_acc": "correct", "adv_acc": "adv_correct"}.get(name, name)
        sides = [{r["id"]: r[key] for r in rows if r.get(key) is not None} for rows in (first, second)]
        if sides[0].keys() & sides[1].keys():
            found[name] = intervals.paired(sides[0], sides[1])
    return found


def _plain(estimate: Estimate) -> dict[str, float | None]:
    return {key: None if value != value else value for key, value in asdict(estimate).items()}


def _curve(curves: Iterable[Sequence[float]]) -> list[float]:
    return [sum(at) / len(at) for at in zip(*curves, strict=True)]


def _still_falling(points: Sequence[int], curve: Sequence[float]) -> float:
    """The decrease of the mean score over the last tenth of the iterations."""
    late = [value for t, value in zip(points, curve, strict=False) if t >= 0.9 * points[-1]]
    return late[0] - late[-1] if late else 0.0


def _share(hits: Iterable[float]) -> float:
    values = [float(h) for h in hits]
    return sum(values) / len(values) if values else 0.0


def _median(values: Iterable[float | None]) -> float | None:
    known = sorted(v for v in values if v is not None)
    return known[len(known) // 2] if known else None
