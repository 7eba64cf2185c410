"""How a training went, in a few numbers: where it ended, how long it took, and its curve, thinned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Lines = Sequence[Mapping[str, Any]]
Columns = dict[str, list[float]]

END_LINES = 10
CURVE_POINTS = 60
LOGGED, VALIDATED = ("loss", "penalty"), ("val_accuracy",)


@dataclass(frozen=True)
class Training:
    """The end of a training: means over its last logged lines, each the mean of a batch. None: not logged.

    lines         how many log lines the means are over
    loss          ℓ(x, y)
    penalty       what is maximised, before λ: ‖IG‖₁ for IG-NORM, ℓ(x') − ℓ(x) + β‖IG‖₁ for IG-SUM-NORM
    ig            ‖IG(x, x')‖₁ alone, at the worst x'
    val_accuracy  the last one measured
    seconds       of the loop, validation and compilation included; of resumed runs, without what had to be done again
    """

    steps: int | None = None
    seconds: float | None = None
    lines: int = 0
    loss: float | None = None
    penalty: float | None = None
    ig: float | None = None
    val_accuracy: float | None = None


def training(metrics: Lines) -> Training:
    """Read off a training log: the last tenth of its lines, at most END_LINES, is its end."""
    logged = [line for line in metrics if line.get("loss") is not None and "step" in line]
    validated = [line["val_accuracy"] for line in metrics if line.get("val_accuracy") is not None]
    end = logged[-min(END_LINES, max(1, len(logged) // 10)) :]
    return Training(
        steps=max((int(line["step"]) for line in metrics if "step" in line), default=None),
        seconds=_seconds(logged),
        lines=len(end),
        loss=_mean(end, "loss"),
        penalty=_mean(end, "penalty"),
        ig=_mean(end, "ig"),
        val_accuracy=_rounded(validated[-1]) if validated else None,
    )


def curve(metrics: Lines) -> dict[str, Columns]:
    """The log as at most CURVE_POINTS points of what is logged and what is validated: means over equal stretches."""
    found = {}
    for name, keys in (("logged", LOGGED), ("validated", VALIDATED)):
        rows = [[float(line[key]) for key in ("step", *keys)] for line in metrics if _whole(line, keys)]
        if rows:
            points = thinned(rows, CURVE_POINTS)
            found[name] = {
                key: [_rounded(v) for v in column] for key, column in zip(("step", *keys), points.T, strict=True)
            }
    return found


def thinned(rows: Sequence[Sequence[float]], most: int) -> np.ndarray[Any, Any]:
    """At most `most` rows: means over equal stretches."""
    pieces = np.array_split(np.array(rows, dtype=np.float64), min(most, len(rows)))
    return np.stack([piece.mean(axis=0) for piece in pieces])


def _whole(line: Mapping[str, Any], keys: Sequence[str]) -> bool:
    return all(line.get(key) is not None for key in ("step", *keys))


def _seconds(logged: Lines) -> float | None:
    """The log holds steps per second since the line before: Σ Δstep / rate."""
    total, before = 0.0, 0
    for line in logged:
        if not line.get("rate"):
            return None
        total, before = total + (line["step"] - before) / line["rate"], line["step"]
    return round(total, 1) if logged else None


def _mean(lines: Lines, key: str) -> float | None:
    values = [float(line[key]) for line in lines if line.get(key) is not None]
    return _rounded(sum(values) / len(values)) if values else None


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")
