"""Audit runs with invented numbers, for tests of verdicts and pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from robattr.reporting.run_results import EvaluationResults, RunResults
from robattr.reporting.training_log import TrainingSummary

Written = tuple[dict[str, Any], list[dict[str, Any]]]


def column(value: float | None, half: float = 0.05) -> dict[str, Any]:
    return {
        "value": value,
        "low": None if value is None else value - half,
        "high": None if value is None else value + half,
        "n": 0 if value is None else 20,
    }


def evaluation(
    protocol: str,
    map: str,
    topk: float | None,
    *,
    noise: float = 0.9,
    accuracy: float = 0.9,
    gains: dict[str, float | None] | None = None,
    cosine: float = 0.5,
    **more: Any,
) -> Written:
    """A summary and its records; `gains` are faithfulness scores, by default of maps that explain something."""
    explained = dict.fromkeys(("random", "edges", "constant"), 0.2) if gains is None else gains
    records = [
        {
            "id": i,
            "label": i % 2,
            "correct": True,
            "kept": True,
            "topk": None if topk is None else topk - 0.2 * (i % 2),
            "kendall": 0.1,
        }
        for i in range(20)
    ]
    summary = {
        "protocol": protocol, "map": map, "examples": 20,
        "settings": {"eps": 8 / 255, "eval_k": 10, "bounds": [0.0, 1.0]},
        "never_kept": 0.0, "alarms": [],
        "classes": ["first", "second\x1b[0m"],
        "columns": {
            "topk": column(topk), "kendall": column(topk), "noise_topk": column(noise), "noise_kendall": column(noise),
            "nat_acc": column(accuracy), "adv_acc": column(0.3),
            **{f"insertion_over_{control}": column(gain) for control, gain in explained.items()},
        },
        "same_class_cosine": column(cosine, 0.01),
        **more,
    }  # fmt: skip
    return summary, records


def run(*evaluations: Written, **config: Any) -> RunResults:
    """The run of an audit that holds these."""
    about = {"name": "net", "method": "audit", "dataset": "images", "maps": ["ig", "sg"], **config}
    path = Path("audit")
    found = [
        EvaluationResults(
            summary, tuple(records), None, path / "records" / f"{summary['protocol']}-{summary['map']}.json"
        )
        for summary, records in evaluations
    ]
    ordered = sorted(found, key=lambda e: e.source)
    return RunResults(str(about["name"]), "audit", path, about, {}, (), TrainingSummary(), tuple(ordered))
