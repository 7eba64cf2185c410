"""A training log in a few numbers: its end, its duration, and a thinned curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Lines = Sequence[Mapping[str, Any]]

END_LINES = 10
CURVE_POINTS = 60
LOGGED, VALIDATED = ("loss", "penalty"), ("val_accuracy",)


@dataclass(frozen=True)
class TrainingSummary:
    """The end of a training: means over its last logged lines, each the mean of a batch. None: not logged.

    lines         number of log lines in the means
    loss          ℓ(x, y)
    penalty       what is maximised, before λ: ‖IG‖₁ for IG-NORM, ℓ(x') − ℓ(x) + β‖IG‖₁ for IG-SUM-NORM
    ig            ‖IG(x, x')‖₁ alone, at the worst x'
    val_accuracy  the last one measured
    seconds       duration of the loop with validation and compilation; steps that a resumed run repeated count once
    """

    steps: int | None = None
    seconds: float | None = None
    lines: int = 0
    loss: float | None = None
    penalty: float | None = None
    ig: float | None = None
    val_accuracy: float | None = None


def summarise(metrics: Lines) -> TrainingSummary:
    """Summarise a training log; its end is the last tenth of its lines, at most END_LINES."""
    logged = [line for line in metrics if line.get("loss") is not None and "step" in line]
    validated = [line["val_accuracy"] for line in metrics if line.get("val_accuracy") is not None]
    end = logged[-min(END_LINES, max(1, len(logged) // 10)) :]
    return TrainingSummary(
        steps=max((int(line["step"]) for line in metrics if "step" in line), default=None),
        seconds=_seconds(logged),
        lines=len(end),
        loss=_mean(end, "loss"),
        penalty=_mean(end, "penalty"),
        ig=_mean(end, "ig"),
        val_accuracy=_rounded(validated[-1]) if validated else None,
    )


def curve(metrics: Lines) -> dict[str, dict[str, list[float]]]:
    """The log as columns of at most CURVE_POINTS points: {"logged": {"step", "loss", "penalty"}, "validated": …}."""
    found = {}
    for name, keys in (("logged", ("step", *LOGGED)), ("validated", ("step", *VALIDATED))):
        lines = [[float(m[key]) for key in keys] for m in metrics if all(m.get(key) is not None for key in keys)]
        if lines:
            columns = thin(lines, CURVE_POINTS).T
            found[name] = {key: [_rounded(v) for v in column] for key, column in zip(keys, columns, strict=True)}
    return found


def thin(rows: Sequence[Sequence[float]], most: int) -> np.ndarray[Any, Any]:
    """Means over at most `most` equal stretches of the rows."""
    pieces = np.array_split(np.array(rows, dtype=np.float64), min(most, len(rows)))
    return np.stack([piece.mean(axis=0) for piece in pieces])


def _seconds(logged: Lines) -> float | None:
    """The sum over the lines; of older logs Σ Δstep / rate, steps per second since the line before."""
    total, before = 0.0, 0
    for line in logged:
        if not line.get("rate"):
            return None
        total, before = total + line.get("seconds", (line["step"] - before) / line["rate"]), line["step"]
    return round(total, 1) if logged else None


def _mean(lines: Lines, key: str) -> float | None:
    values = [float(line[key]) for line in lines if line.get(key) is not None]
    return _rounded(sum(values) / len(values)) if values else None


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")
