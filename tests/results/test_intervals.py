"""The section of interval bounds: from a run to its record, and from records to the page."""

from __future__ import annotations

import torch

from results.intervals import EXAMPLES, read, record, section
from robattr.data import from_tensors
from robattr.models import small_cnn
from robattr.runs import Run
from robattr.training import TrainConfig


def test_a_record_has_the_settings_and_the_certificates_of_a_run() -> None:
    torch.manual_seed(0)
    x, y = torch.rand(60, 1, 9, 9), torch.arange(60) % 3
    data = from_tensors(x, y)
    config = TrainConfig(method="interval-bound", eps=0.01, worst_case=0.5)
    made = record(Run("a run", small_cnn(3, size=9).eval(), data, config), examples=4)
    assert made["examples"] == len(made["found"]["bound"]) == 4
    assert (made["config"]["method"], made["config"]["worst_case"]) == ("interval-bound", 0.5)
    assert all(a <= b for a, b in zip(made["found"]["attacked"], made["found"]["bound"], strict=True))


def test_the_section_shows_means_and_the_median_ratio() -> None:
    found = {
        "correct": [1.0, 1.0, 1.0, 0.0], "answer": [1.0, 0.0, 1.0, 0.0], "bound": [2.0, 4.0, 6.0, 8.0],
        "attacked": [1.0, 1.0, 2.0, 4.0], "clean": [1.0] * 4, "uninformed": [50.0] * 4,
    }  # fmt: skip
    config = {"dataset": "mnist", "method": "interval-bound", "eps": 0.1, "steps": 5000}
    text = section([{"config": config, "examples": 4, "found": found}])
    row = "| mnist | interval bound | 5,000 | 0.1 | 75.0% [30.1, 95.4] | 50.0% [15.0, 85.0] | 2 | **5** | 2.5 | 50 |"
    assert row in text
    assert section([]) == ""


def test_the_committed_certificates_hold_and_are_not_vacuous() -> None:
    """No attack is above its bound; the bound after interval training is near it, that of ordinary training is not."""
    for made in read():
        found, interval = made["found"], made["config"]["method"] == "interval-bound"
        assert len(found["bound"]) == EXAMPLES
        assert all(a <= b for a, b in zip(found["attacked"], found["bound"], strict=True))
        ratios = sorted(b / a for a, b in zip(found["attacked"], found["bound"], strict=True) if a)
        assert (ratios[len(ratios) // 2] < 30) == interval
