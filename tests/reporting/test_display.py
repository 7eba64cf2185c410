"""The display of maps."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from robattr.metrics import top_k_mask
from robattr.reporting.display import top_k

LEVELS = st.sampled_from([0.0, -0.0, 0.25, 1.0, -1.0, float("nan"), float("inf")])


@given(st.lists(LEVELS, min_size=1, max_size=12), st.integers(1, 14))
def test_the_marked_pixels_are_those_of_the_scores(values: list[float], k: int) -> None:
    maps = np.array(values, dtype=np.float16)
    expected = top_k_mask(torch.from_numpy(maps.astype(np.float64))[None], min(k, len(values)))[0].numpy()
    np.testing.assert_array_equal(top_k(maps, k), expected)


def test_top_k_takes_exactly_k_and_the_lower_index_of_equals() -> None:
    mask = top_k(np.array([[0.0, 3.0, 1.0], [1.0, 0.0, 1.0]]), 3)
    np.testing.assert_array_equal(mask, [[False, True, True], [True, False, False]])
    assert top_k(np.zeros((2, 2)), 100).all()
