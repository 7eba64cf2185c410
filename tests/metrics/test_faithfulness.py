"""Faithfulness against SciPy, NumPy and plain loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import ndimage
from scipy.integrate import trapezoid
from torch import Tensor

from robattr.errors import InvalidInput
from robattr.metrics.faithfulness import (
    area,
    centre_first,
    class_cosine,
    edges,
    infidelity,
    pixel_counts,
    ranks,
)


def rand(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_ranks_break_ties_by_the_lower_index() -> None:
    a = torch.tensor([[0.0, 2.0, 1.0, 2.0, -0.0], [1.0, 1.0, 1.0, 1.0, 1.0]])
    assert ranks(a).tolist() == [[3, 0, 2, 1, 4], [0, 1, 2, 3, 4]]
    a = (rand(5, 4, 6) * 8).round()
    by_numpy = [np.lexsort((np.arange(24), -row)) for row in a.flatten(1).numpy()]
    assert [np.argsort(r).tolist() for r in ranks(a).numpy()] == [order.tolist() for order in by_numpy]


@pytest.mark.parametrize("n", [3, 10, 784])
def test_levels_begin_at_none_and_end_at_all_pixels(n: int) -> None:
    counts = pixel_counts(n, 10)
    assert (counts[0], counts[-1], len(counts)) == (0, n, 11)
    assert counts == sorted(counts)


def test_the_area_is_that_of_the_trapezoids() -> None:
    counts, v = pixel_counts(784, 10), rand(3, 11)
    share = np.array(counts) / 784
    torch.testing.assert_close(area(v, counts), torch.from_numpy(trapezoid(v.numpy(), share, axis=1)))
    assert float(area(torch.ones(11), counts)) == pytest.approx(1)
    line = torch.tensor(counts, dtype=torch.float64) / 784
    assert float(area(line, counts)) == pytest.approx(0.5)


def test_infidelity_is_the_residual_of_a_regression_through_the_origin() -> None:
    predicted, change = rand(6, 20) - 0.3, rand(6, 20, seed=1) - 0.5
    for p, d, found in zip(predicted.numpy(), change.numpy(), infidelity(predicted, change).tolist(), strict=True):
        _, residual, _, _ = np.linalg.lstsq(p[:, None], d, rcond=None)
        assert found == pytest.approx(residual[0] / (d @ d), rel=1e-12)
    assert infidelity(-3 * change, change).abs().max() < 1e-15  # a factor is free, also a negative one
    assert infidelity(torch.zeros(1, 20), change[:1]).tolist() == [1.0]
    assert infidelity(predicted[:1], torch.zeros(1, 20)).isnan().all()
    with pytest.raises(InvalidInput, match=r"\(B, windows\), got \(6, 20\) and \(6, 19\)"):
        infidelity(predicted, change[:, 1:])


def test_same_class_cosine_by_loops() -> None:
    maps, labels = rand(7, 3, 4) - 0.3, torch.tensor([0, 1, 0, 2, 1, 0, 1])
    rows = maps.flatten(1).numpy()
    for i, found in enumerate(class_cosine(maps, labels).tolist()):
        others = [j for j in range(7) if j != i and labels[j] == labels[i]] or [j for j in range(7) if j != i]
        cosines = [rows[i] @ rows[j] / np.linalg.norm(rows[i]) / np.linalg.norm(rows[j]) for j in others]
        assert found == pytest.approx(np.mean(cosines), rel=1e-12)


def test_a_constant_map_has_cosine_one() -> None:
    same = rand(1, 4, 4).expand(5, 4, 4)
    torch.testing.assert_close(class_cosine(same, torch.arange(5) % 2), torch.ones(5, dtype=torch.float64))
    per_class = rand(2, 4, 4)[torch.arange(6) % 2]
    torch.testing.assert_close(class_cosine(per_class, torch.arange(6) % 2), torch.ones(6, dtype=torch.float64))
    assert class_cosine(same[:1], torch.zeros(1)).isnan().all()
    with_zero = class_cosine(torch.cat([same[:2], torch.zeros(1, 4, 4)]), torch.zeros(3))
    assert with_zero.isnan().tolist() == [False, False, True]


def test_edges_are_scipys_sobel() -> None:
    x = rand(2, 3, 7, 9)
    for image, found in zip(x.numpy(), edges(x).numpy(), strict=True):
        grey = image.mean(0)
        expected = np.hypot(ndimage.sobel(grey, 0, mode="nearest"), ndimage.sobel(grey, 1, mode="nearest"))
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    assert edges(torch.ones(1, 1, 5, 5)).abs().max() == 0
    with pytest.raises(InvalidInput, match=r"only images have edges"):
        edges(rand(2, 5))


def test_the_constant_map_begins_at_the_centre() -> None:
    order = ranks(centre_first(torch.zeros(2, 3, 5)))
    assert order[0].tolist() == order[1].tolist()
    assert order[0].view(3, 5)[1, 2] == 0
    assert sorted(order[0].view(3, 5)[[0, 0, 2, 2], [0, 4, 0, 4]].tolist()) == [11, 12, 13, 14]
    assert ranks(centre_first(torch.zeros(1, 5))).tolist() == [[3, 1, 0, 2, 4]]
