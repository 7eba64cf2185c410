"""The display of maps."""

from __future__ import annotations

import numpy as np

from robattr.reporting.display import top_k


def test_top_k_takes_exactly_k_and_the_lower_index_of_equals() -> None:
    mask = top_k(np.array([[0.0, 3.0, 1.0], [1.0, 0.0, 1.0]]), 3)
    np.testing.assert_array_equal(mask, [[False, True, True], [True, False, False]])
    assert top_k(np.zeros((2, 2)), 100).all()
