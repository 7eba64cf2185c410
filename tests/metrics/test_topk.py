"""Top-k masks and intersections against a sort by (value, index)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from maps_fixtures import KINDS, NAN, assert_equal, mostly_zero
from robattr.errors import InvalidInput
from robattr.metrics import top_k_mask, topk_intersection


def first_of_sorted(x: np.ndarray, k: int) -> set[int]:
    return set(sorted(range(len(x)), key=lambda i: (-x[i], i))[:k])


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.__name__)
def test_top_k_prefers_larger_then_earlier_pixels(kind):
    g = torch.Generator().manual_seed(10)
    a, b = kind(g, 5, 40), kind(g, 5, 40)
    for k in (1, 7, 39, 40):
        tops = [[first_of_sorted(x, k) for x in m.numpy()] for m in (a, b)]
        mask = top_k_mask(a.view(5, 5, 8), k)
        assert mask.shape == (5, 5, 8)
        assert [set(m.flatten().nonzero().flatten().tolist()) for m in mask] == tops[0]
        share = [len(s & t) / k for s, t in zip(*tops, strict=True)]
        assert_equal(topk_intersection(a, b, k), torch.tensor(share, dtype=torch.float64))


def test_top_k_of_an_all_zero_background_takes_the_first_pixels():
    a = torch.zeros(1, 3, 3)
    a[0, 2, 2] = 1
    assert top_k_mask(a, 3).flatten().tolist() == [True, True] + 6 * [False] + [True]


def test_top_k_within_a_mask_and_with_a_k_per_example():
    g = torch.Generator().manual_seed(11)
    a, b = mostly_zero(g, 6, 50), mostly_zero(g, 6, 50)
    mask = torch.rand(6, 50, generator=g) < 0.7
    a[0, ~mask[0]] = NAN
    k = torch.minimum(torch.arange(10, 70, 10), mask.sum(1))
    got = topk_intersection(a, b, k, mask=mask)
    alone = [topk_intersection(x[m][None], y[m][None], int(i)) for x, y, m, i in zip(a, b, mask, k, strict=True)]
    assert_equal(got, torch.cat(alone))
    assert not (top_k_mask(a, k, mask=mask) & ~mask).any()
    assert torch.equal(top_k_mask(a, k, mask=mask).sum(1), k)


def test_top_k_of_a_map_with_nan_is_empty_and_scores_nan():
    a = torch.arange(12.0).view(2, 6).clone()
    a[0, 3] = NAN
    assert top_k_mask(a, 2).sum(1).tolist() == [0, 2]
    assert topk_intersection(a, a.nan_to_num(), 2).isnan().tolist() == [True, False]


@pytest.mark.parametrize(
    ("k", "says"),
    [
        (0, r"expected 1 ≤ k ≤ the number of pixels \(9\), got k = 0"),
        (-1, "got k = -1: choose another k"),
        (10, "got k = 10: choose another k"),
        (1.5, r"expected k as a whole number, or one per example, got 1\.5"),
        (True, "expected k as a whole number, or one per example, got True"),
        (torch.tensor([1, 10]), "got k = 1 to 10 by example"),
        (torch.tensor([1, 2, 3]), "expected k as a whole number, or one per example"),
    ],
    ids=str,
)
def test_top_k_refuses_a_k_that_no_map_has(k, says):
    with pytest.raises(InvalidInput, match=says):
        topk_intersection(torch.rand(2, 3, 3), torch.rand(2, 3, 3), k)


def test_top_k_refuses_a_k_larger_than_the_mask():
    a = torch.rand(2, 9)
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[1, 4:] = False
    with pytest.raises(InvalidInput, match=r"4 to 9 by example.*k = 5"):
        topk_intersection(a, a, 5, mask=mask)
