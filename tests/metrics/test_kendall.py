"""Kendall's τ-b and its tie ceiling against SciPy and exact counts."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from maps_fixtures import (
    CORRELATIONS,
    KINDS,
    NAN,
    assert_equal,
    check_against_scipy,
    one_by_one,
    smooth,
)
from robattr.metrics import kendall, tie_ceiling
from robattr.metrics.kendall import inversions


@pytest.mark.parametrize("second", KINDS, ids=lambda k: k.__name__)
@pytest.mark.parametrize("first", KINDS, ids=lambda k: k.__name__)
def test_kendall_is_scipys(first, second):
    check_against_scipy(kendall, first, second)


def test_inversions_count_every_pair():
    g = torch.Generator().manual_seed(6)
    for n in (1, 2, 15, 16, 33, 100):
        line = torch.stack([torch.randperm(n, generator=g) for _ in range(5)])
        naive = (line[:, :, None] > line[:, None, :]).triu(1).sum((1, 2))
        assert torch.equal(inversions(line), naive)
    falling = torch.arange(70_000).flip(0)[None]  # the count leaves 32 bits
    assert inversions(falling).item() == 70_000 * 69_999 // 2


def refine(a: Tensor, g: torch.Generator) -> Tensor:
    """A map that keeps a's order and breaks every tie at random."""
    level = a.unique(return_inverse=True)[1].double()
    return level + 0.5 * torch.rand(a.shape, generator=g, dtype=torch.float64)


def test_tie_ceiling_is_the_score_of_an_order_preserving_map():
    g = torch.Generator().manual_seed(7)
    for kind in KINDS:
        a = kind(g, 6, 90)
        assert_equal(tie_ceiling(a), one_by_one(CORRELATIONS[kendall], a, refine(a, g)))
        other = smooth(g, 6, 90)
        assert (kendall(a, other) <= tie_ceiling(a)).all()
        mask = torch.rand(6, 90, generator=g) < 0.6
        assert_equal(tie_ceiling(a, mask=mask), kendall(a, refine(a, g), mask=mask))


def test_tie_ceiling_of_an_mnist_like_map():
    """151 of 784 pixels non-zero is the mean of MNIST, and 0.583 the mean ceiling over its test images."""
    g = torch.Generator().manual_seed(9)
    a = torch.zeros(1, 28, 28, dtype=torch.float64)
    a.view(-1)[torch.randperm(784, generator=g)[:151]] = 1 + torch.rand(151, generator=g, dtype=torch.float64)
    untied = 784 * 783 // 2 - 633 * 632 // 2
    assert tie_ceiling(a).item() == pytest.approx((untied / (784 * 783 // 2)) ** 0.5, abs=1e-15)
    assert tie_ceiling(a).item() == pytest.approx(0.583, abs=0.01)
    assert tie_ceiling(a, mask=a > 0).item() == 1.0  # on the foreground nothing is capped


def test_tie_ceiling_is_undefined_without_an_order():
    a = torch.stack([torch.full((9,), 3.0), torch.arange(9.0), torch.arange(9.0).sqrt()])
    a[2, 4] = NAN
    assert tie_ceiling(a).isnan().tolist() == [True, False, True]
