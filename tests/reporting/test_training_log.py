"""The summary of a training log and its thinned curve."""

from __future__ import annotations

import numpy as np
import pytest

from robattr.reporting.record import rows
from robattr.reporting.training_log import curve, summarise, thin


def test_the_end_of_training_is_a_mean_over_its_last_lines() -> None:
    lines = [{"step": 10 * i, "loss": 1 / i, "penalty": float(i), "rate": 5.0} for i in range(1, 201)]
    lines.insert(50, {"step": 500, "val_accuracy": 0.5})
    lines.append({"step": 2000, "val_accuracy": 0.9})
    found = summarise(lines)
    assert (found.steps, found.lines, found.val_accuracy) == (2000, 10, 0.9)
    assert found.loss == pytest.approx(np.mean([1 / i for i in range(191, 201)]), rel=1e-5)
    assert found.penalty == pytest.approx(195.5)
    assert found.seconds == pytest.approx(2000 / 5)
    assert summarise(lines[:3]).lines == 1
    assert summarise([]) == summarise([{"step": 0}][:0])
    points = curve(lines)
    assert len(points["logged"]["loss"]) == 60
    assert (points["logged"]["penalty"][-1], points["logged"]["step"][-1]) == (199.0, 1990.0)  # of the last three
    assert list(rows(points["validated"])) == [
        {"step": 500.0, "val_accuracy": 0.5},
        {"step": 2000.0, "val_accuracy": 0.9},
    ]
    np.testing.assert_array_equal(thin([[1.0, 2.0], [3.0, 4.0]], 1), [[2.0, 3.0]])
