"""Spearman's ρ and the cosine against SciPy and NumPy."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest
import torch

from maps_fixtures import KINDS, NAN, assert_equal, check_against_scipy, few_levels, one_by_one, smooth
from robattr.metrics import cosine, spearman

module = import_module("robattr.metrics.spearman")  # the package has a function of that name


@pytest.mark.parametrize("second", KINDS, ids=lambda k: k.__name__)
@pytest.mark.parametrize("first", KINDS, ids=lambda k: k.__name__)
def test_spearman_is_scipys(first, second):
    check_against_scipy(spearman, first, second)


def test_ranks_of_very_large_maps_are_summed_in_float64(monkeypatch):
    """Up to EXACT pixels the sum of squares of doubled centred ranks, n(n² − 1)/3, fits an int64."""
    n = module.EXACT
    assert n * (n * n - 1) // 3 < 2**63
    monkeypatch.setattr(module, "EXACT", 99)
    check_against_scipy(spearman, smooth, few_levels)


def test_cosine():
    g = torch.Generator().manual_seed(12)
    a, b = smooth(g, 4, 24), smooth(g, 4, 24)
    mask = torch.rand(4, 24, generator=g) < 0.5
    assert_equal(
        cosine(a.view(4, 4, 6), b.view(4, 4, 6)), one_by_one(lambda x, y: x @ y / np.sqrt(x @ x * (y @ y)), a, b)
    )
    assert_equal(cosine(a, b, mask=mask), cosine(a * mask, b * mask))
    a[0] = 0
    b[1, 2] = NAN
    b[2, ~mask[2]] = NAN
    assert cosine(a, b, mask=mask | (torch.arange(4) == 1)[:, None]).isnan().tolist() == [True, True, False, False]
