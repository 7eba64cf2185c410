"""The comparison of `paper` with the reference's attack, on a small network and on numbers by hand."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from benchmarks import agreement
from evaluation_fixtures import toy_case
from robattr.evaluation.protocol import Protocol

SMALL = Protocol("paper", "toy", 0.1, 0.02, 6, 9, 9, 0.02, 4, (0.0, 1.0), N=12, repeats=2, window=3)


def test_both_attacks_meet_the_same_correctly_classified_images(monkeypatch) -> None:
    net, x, y = toy_case()
    data = SimpleNamespace(name="toy", examples=lambda split, n: (x[:n], y[:n], torch.arange(n)))
    monkeypatch.setattr(agreement, "open_run", lambda run: SimpleNamespace(model=net, data=data))
    monkeypatch.setattr(agreement, "for_dataset", lambda data: SMALL)
    made = agreement.measure("toy", torch.device("cpu"), examples=5)
    assert made["examples"] == 5
    alone = agreement.measure("toy", torch.device("cpu"), examples=3)  # images 0, 1 and 3: 2 is misclassified
    for name in ("reference", "paper"):
        assert made[name]["kendall"][:3] == pytest.approx(alone[name]["kendall"], abs=1e-5)
        assert max(made[name]["kendall"]) < 1
    assert made["reference"]["kendall"] != made["paper"]["kendall"]


def test_differences_are_paired() -> None:
    made = {
        "run": "toy",
        "examples": 4,
        "reference": {"topk": [0.2, 0.4, 0.6, 0.8], "kendall": [0.5] * 4, "seconds": 9.0},
        "paper": {"topk": [0.21, 0.41, 0.61, 0.81], "kendall": [0.5] * 4, "seconds": 2.0},
    }
    d = agreement.difference(made, "topk")
    assert (d.value, d.low, d.high) == pytest.approx((0.01, 0.01, 0.01))
    same = "+0.0000 [+0.0000, +0.0000]"
    first = ["toy", "as the scores", "4", "50.00", "+1.00 [+1.00, +1.00]", "0.5000", same, "4.5×"]
    assert agreement.rows([made]) == [first]
    lower = {**made, "bf16": {**made["paper"], "topk": [0.1, 0.3, 0.5, 0.7], "seconds": 1.0}}
    second = ["toy", "bf16", "4", "50.00", "-10.00 [-10.00, -10.00]", "0.5000", same, "9.0×"]
    assert agreement.rows([lower]) == [first, second]
