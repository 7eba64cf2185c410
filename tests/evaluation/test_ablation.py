"""What attacks add, on records made by hand."""

from __future__ import annotations

import pytest

from robattr.evaluation.ablation import advantage, contributions

RECORDS = [
    {"attacks": {"paper": [0.6, 0.7], "random": [0.8, 0.5], "rank": [0.5, 0.6]}},
    {"attacks": {"paper": [0.4, 0.7], "random": [0.9, 0.9], "rank": [None, None]}},
    {"correct": False},
]


def test_an_attack_adds_what_the_others_do_not_reach() -> None:
    found = {c.attack: c for c in contributions(RECORDS)}
    assert list(found) == ["paper", "random", "rank"]
    assert found["paper"].wins == (1, 1)
    assert found["paper"].adds == pytest.approx(((0 + 0.5) / 2, (0 + 0.2) / 2))
    assert found["random"].wins == (0, 1)
    assert found["random"].adds == pytest.approx((0, 0.1 / 2))
    assert found["rank"].wins == (1, 0)
    assert found["rank"].alone == (0.5, 0.6)
    assert found["rank"].ran == 2


def test_the_advantage_of_noise_is_over_all_attacks_by_gradients() -> None:
    assert advantage(RECORDS, "random") == pytest.approx(0.1 / 2)
    assert advantage(RECORDS, "score") is None
    assert contributions([{"correct": True}]) == []
