"""The paper's numbers."""

from __future__ import annotations

from robattr.reporting.published import DIFFERENT_M, INTEGRATED_GRADIENTS, SIMPLE_GRADIENT, published


def test_the_published_tables_are_complete() -> None:
    assert len(INTEGRATED_GRADIENTS) == 16
    assert len(SIMPLE_GRADIENT) == 12
    assert sorted(DIFFERENT_M) == list(range(10, 101, 10))
    # The same models were measured in tables 1 and 3: their accuracies must agree.
    for key, row in SIMPLE_GRADIENT.items():
        assert all(row[name] == INTEGRATED_GRADIENTS[key][name] for name in ("nat_acc", "adv_acc"))
    assert published("mnist", "ig-norm", m=50) is DIFFERENT_M[50]
    assert DIFFERENT_M[50] == INTEGRATED_GRADIENTS["mnist", "ig-norm"]
    assert published("fashion-mini", "natural") is None
    assert published("mnist", "natural", map_name="smoothgrad") is None
