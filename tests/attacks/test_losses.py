"""The losses against direct computations on single maps."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import kendalltau, rankdata

from robattr.attacks.losses import LOSSES, check_kind, loss_reference
from robattr.errors import InvalidInput

K = 5


@pytest.fixture(scope="module")
def maps() -> tuple[torch.Tensor, torch.Tensor]:
    clean, moved = torch.rand(2, 3, 10, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return clean, moved


def value(kind: str, clean: torch.Tensor, moved: torch.Tensor) -> torch.Tensor:
    r = loss_reference(kind, clean, lambda: clean, k=K, target=None)
    return LOSSES[kind](moved, r)


def test_soft_topk_is_the_share_above_the_threshold_in_the_limit(maps) -> None:
    """σ((S − t)/t) is 1 far above the threshold t, ½ at it, and σ(−1) at 0."""
    clean, moved = maps
    top = clean.flatten(1).topk(K).indices
    t = moved.flatten(1).sort(descending=True).values[:, K - 1 : K]
    expected = -(1 / (1 + torch.exp(-(moved.flatten(1).gather(1, top) - t) / t))).mean(dim=1)
    torch.testing.assert_close(value("soft_topk", clean, moved), expected)
    sharp = 1e-9 + 1e3 * torch.zeros_like(clean).flatten(1).scatter(1, top, 1.0).view_as(clean)
    assert value("soft_topk", clean, sharp).tolist() == pytest.approx([-0.5] * 3)  # all k pixels at the threshold


def test_rank_is_the_slope_along_the_ranks(maps) -> None:
    clean, moved = maps
    for a, b, found in zip(clean, moved, value("rank", clean, moved), strict=True):
        ranks = torch.from_numpy(rankdata(a.numpy())).view_as(a)
        ranks = (ranks - ranks.mean()) / ranks.std()
        assert float(found) == pytest.approx(float(-(ranks * b).mean()))
    ties = torch.zeros(1, 4)
    ties[0, 1] = 1
    assert loss_reference("rank", ties, lambda: ties, k=1, target=None).argsort(descending=True).tolist() == [
        [1, 0, 2, 3]
    ]


def test_kendall_and_cosine_are_the_formulas_distances(maps) -> None:
    clean, moved = maps
    sharp = 1e3 * moved, 1e3 * clean
    taus = [kendalltau(a.numpy(), b.numpy()).statistic for a, b in zip(clean, moved, strict=True)]
    assert (1 - LOSSES["kendall"](*sharp)).tolist() == pytest.approx(taus, abs=0.02)
    similar = torch.nn.functional.cosine_similarity(clean.flatten(1), moved.flatten(1))
    torch.testing.assert_close(value("cosine", clean, moved), 1 - similar)


def test_frame_and_corners_mark_their_pixels(maps) -> None:
    clean, moved = maps
    frame, corners = (loss_reference(kind, clean, lambda: clean, k=K, target=None)[0] for kind in ("frame", "corners"))
    assert frame.sum() == 10 * 8 - 8 * 6
    assert corners.sum() == 4 * 2 * 2
    assert corners[:2, :2].all()
    assert corners[-2:, -2:].all()
    assert frame[1:-1, 1:-1].sum() == 0
    torch.testing.assert_close(value("frame", clean, moved), (moved * frame).flatten(1).mean(dim=1))


def test_what_needs_an_image_says_so() -> None:
    flat = torch.rand(2, 12)
    with pytest.raises(InvalidInput, match="needs maps of images"):
        loss_reference("frame", flat, lambda: flat, k=2, target=None)
    with pytest.raises(InvalidInput, match="did you mean 'cosine'"):
        check_kind("cosin")
