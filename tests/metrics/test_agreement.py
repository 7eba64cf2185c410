"""Every measure of agreement against an independent library, with the ties that real maps have."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import ndimage, stats
from skimage.metrics import structural_similarity
from torch import Tensor

from robattr.errors import InvalidInput
from robattr.metrics import _validation as shared
from robattr.metrics import (
    cosine,
    kendall,
    mass_center,
    mass_center_displacement,
    spearman,
    ssim,
    tie_ceiling,
    top_k_mask,
    topk_intersection,
)
from robattr.metrics.kendall import inversions

NAN = float("nan")


def smooth(g: torch.Generator, B: int, n: int) -> Tensor:
    return torch.randn(B, n, generator=g, dtype=torch.float64)


def mostly_zero(g: torch.Generator, B: int, n: int) -> Tensor:
    """Like IG of MNIST: four pixels in five are exactly 0."""
    return smooth(g, B, n).abs() * (torch.rand(B, n, generator=g) < 0.2)


def few_levels(g: torch.Generator, B: int, n: int) -> Tensor:
    return torch.randint(-2, 3, (B, n), generator=g)


def signed_zeros(g: torch.Generator, B: int, n: int) -> Tensor:
    return torch.randint(-1, 2, (B, n), generator=g) * -0.0 + (torch.rand(B, n, generator=g) < 0.3).double()


def with_infinities(g: torch.Generator, B: int, n: int) -> Tensor:
    a = few_levels(g, B, n).double()
    return a.masked_fill(a == 2, torch.inf).masked_fill(a == -2, -torch.inf)


KINDS = [smooth, mostly_zero, few_levels, signed_zeros, with_infinities]
CORRELATIONS = {
    kendall: lambda x, y: stats.kendalltau(x, y, variant="b").statistic,
    spearman: lambda x, y: stats.spearmanr(x, y).statistic,
}


def loop(oracle, a: Tensor, b: Tensor) -> Tensor:
    pairs = zip(a.flatten(1).numpy(), b.flatten(1).numpy(), strict=True)
    return torch.tensor([float(oracle(x, y)) for x, y in pairs], dtype=torch.float64)


def same(got: Tensor, expected: Tensor) -> None:
    assert got.dtype == torch.float64
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("measure", CORRELATIONS, ids=lambda m: m.__name__)
@pytest.mark.parametrize("second", KINDS, ids=lambda k: k.__name__)
@pytest.mark.parametrize("first", KINDS, ids=lambda k: k.__name__)
def test_rank_correlation_is_scipys(measure, first, second):
    g = torch.Generator().manual_seed(1)
    for n in (3, 16, 17, 100, 784):
        a, b = first(g, 6, n), second(g, 6, n)
        b[::2] = (a + b).to(b.dtype)[::2].nan_to_num(0)  # half of the pairs correlate
        constant = (a == a[:, :1]).all(1) | (b == b[:, :1]).all(1)  # SciPy warns about these; tested below
        same(measure(a[~constant], b[~constant]), loop(CORRELATIONS[measure], a[~constant], b[~constant]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.uint8, torch.bool])
def test_rank_correlation_of_any_real_type(dtype):
    g = torch.Generator().manual_seed(2)
    a, b = ((5 * torch.rand(4, 9, 9, generator=g)).to(dtype) for _ in range(2))
    if dtype == torch.bool:
        a, b = a ^ (torch.rand(a.shape, generator=g) < 0.5), torch.rand(b.shape, generator=g) < 0.5
    for measure, oracle in CORRELATIONS.items():
        same(measure(a, b), loop(oracle, a.double(), b.double()))


@pytest.mark.parametrize("measure", CORRELATIONS, ids=lambda m: m.__name__)
def test_shapes_slabs_and_large_maps(measure, monkeypatch):
    g = torch.Generator().manual_seed(3)
    a, b = mostly_zero(g, 7, 192), mostly_zero(g, 7, 192)
    whole = measure(a, b)
    for shape in ((7, 8, 24), (7, 3, 8, 8)):
        same(measure(a.view(shape), b.view(shape)), whole)
    monkeypatch.setattr(shared, "CPU_SLAB", 400)  # two maps at a time, the last alone
    same(measure(a, b), whole)
    monkeypatch.setattr(shared, "CPU_SLAB", 1)  # never less than one
    same(measure(a, b), whole)
    big = mostly_zero(g, 2, 16_384)
    same(measure(big, big.roll(1, 1) + big), loop(CORRELATIONS[measure], big, big.roll(1, 1) + big))


@pytest.mark.parametrize("device", ["cpu", *(["cuda"] if torch.cuda.is_available() else [])])
@pytest.mark.parametrize(("B", "n"), [(200, 60), (130, 2000), (9, 9000)])
def test_measures_are_the_same_on_every_device(device, B, n, monkeypatch):
    """Sorts and scans take other kernels by size and batch; the numbers are those of the CPU, slab by slab."""
    monkeypatch.setattr(shared, "GPU_SLAB", B // 2 * n)
    g = torch.Generator().manual_seed(17)
    a, b = mostly_zero(g, B, n).float(), few_levels(g, B, n).float()
    a[3, 5] = b[4, 6] = NAN
    b[5] = -0.0
    mask = torch.rand(B, n, generator=g) < 0.5
    k = mask.sum(1) // 2
    there = [t.to(device) for t in (a, b, mask, k)]
    for measure in (
        lambda a, b, mask, k: kendall(a, b),
        lambda a, b, mask, k: kendall(a, b, mask=mask),
        lambda a, b, mask, k: spearman(a, b, mask=mask),
        lambda a, b, mask, k: cosine(a, b, mask=mask),
        lambda a, b, mask, k: tie_ceiling(a, b, mask=mask),
        lambda a, b, mask, k: topk_intersection(a, b, 7),
        lambda a, b, mask, k: topk_intersection(a, b, k, mask=mask),
        lambda a, b, mask, k: ssim(a.view(B, -1, 20), b.view(B, -1, 20)),
        lambda a, b, mask, k: mass_center_displacement(a.view(B, -1, 20), b.view(B, -1, 20) + 3),
    ):
        got = measure(*there)
        assert got.device.type == device
        torch.testing.assert_close(got.cpu(), measure(a, b, mask, k), rtol=0, atol=1e-9, equal_nan=True)
    one = slice(7, 8)
    same(kendall(there[0], there[1])[one].cpu(), loop(CORRELATIONS[kendall], a[one], b[one]))


def test_perfect_and_opposite_orders():
    a = torch.arange(50.0).repeat(2, 1)
    b = torch.stack([a[0] ** 3, -a[1]])
    for measure in CORRELATIONS:
        same(measure(a, b), torch.tensor([1.0, -1.0], dtype=torch.float64))


@pytest.mark.parametrize("measure", CORRELATIONS, ids=lambda m: m.__name__)
def test_maps_without_an_order_are_nan_and_spoil_no_neighbour(measure):
    g = torch.Generator().manual_seed(4)
    a, b = smooth(g, 5, 30), smooth(g, 5, 30)
    expected = loop(CORRELATIONS[measure], a, b)
    a[1] = 2.5
    b[2, 7] = NAN
    a[3, 0] = -NAN
    expected[1:4] = NAN
    same(measure(a, b), expected)
    assert measure(a[:, :1], b[:, :1]).isnan().all()  # one pixel has no order
    assert measure(a[:0], b[:0]).shape == (0,)


@pytest.mark.parametrize("measure", CORRELATIONS, ids=lambda m: m.__name__)
@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.__name__)
def test_masked_correlation_is_the_correlation_of_the_masked_pixels(measure, kind):
    g = torch.Generator().manual_seed(5)
    a, b = kind(g, 8, 60).double(), smooth(g, 8, 60)
    mask = torch.rand(8, 60, generator=g) < torch.linspace(0.3, 1, 8)[:, None]
    a[0, ~mask[0]] = NAN  # what is outside does not count, whatever it is
    expected = torch.cat([measure(x[m][None], y[m][None]) for x, y, m in zip(a, b, mask, strict=True)])
    assert not expected.isnan().any()
    same(measure(a.view(8, 6, 10), b.view(8, 6, 10), mask=mask.view(8, 1, 6, 10)), expected)
    mask[3] = False
    mask[4] = False
    mask[4, 9] = True
    expected[3:5] = NAN
    same(measure(a, b, mask=mask), expected)


def test_inversions_count_every_pair():
    g = torch.Generator().manual_seed(6)
    for n in (1, 2, 15, 16, 33, 100):
        line = torch.stack([torch.randperm(n, generator=g) for _ in range(5)])
        naive = (line[:, :, None] > line[:, None, :]).triu(1).sum((1, 2))
        assert torch.equal(inversions(line), naive)
    falling = torch.arange(70_000).flip(0)[None]  # the count leaves 32 bits
    assert inversions(falling).item() == 70_000 * 69_999 // 2


def test_measures_do_not_touch_the_maps_or_the_graph():
    a = torch.tensor([[0.0, -0.0, 3.0, 1.0]], requires_grad=True)
    b = a.detach().clone()
    for measure in (kendall, spearman, cosine, lambda x, y: topk_intersection(x, y, 2), tie_ceiling):
        assert not measure(a, b).requires_grad
    assert torch.equal(a, b)


def refine(a: Tensor, g: torch.Generator) -> Tensor:
    """A map that keeps a's order and breaks every tie at random."""
    level = a.unique(return_inverse=True)[1].double()
    return level + 0.5 * torch.rand(a.shape, generator=g, dtype=torch.float64)


def test_tie_ceiling_is_the_score_of_an_order_preserving_map():
    g = torch.Generator().manual_seed(7)
    for kind in KINDS:
        a = kind(g, 6, 90)
        same(tie_ceiling(a), loop(CORRELATIONS[kendall], a, refine(a, g)))
        other = smooth(g, 6, 90)
        assert (kendall(a, other) <= tie_ceiling(a)).all()
        mask = torch.rand(6, 90, generator=g) < 0.6
        same(tie_ceiling(a, mask=mask), kendall(a, refine(a, g), mask=mask))


def test_tie_ceiling_with_the_ties_of_the_other_map():
    g = torch.Generator().manual_seed(8)
    a = mostly_zero(g, 4, 200)
    half = refine(a, g)
    black = (a == 0) & (torch.rand(4, 200, generator=g) < 0.5)
    half[black] = -1.0  # half of the ties stay
    same(tie_ceiling(a, half), kendall(a, half))
    same(tie_ceiling(half, a), kendall(a, half))
    assert (tie_ceiling(a, half) > tie_ceiling(a)).all()
    same(tie_ceiling(a, a), torch.ones(4, dtype=torch.float64))
    coarse = few_levels(g, 4, 200)
    assert (kendall(a, coarse) <= tie_ceiling(a, coarse)).all()


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
    assert tie_ceiling(a[[1]], a[[0]]).isnan().all()


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
        same(topk_intersection(a, b, k), torch.tensor(share, dtype=torch.float64))


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
    same(got, torch.cat(alone))
    assert not (top_k_mask(a, k, mask=mask) & ~mask).any()
    assert torch.equal(top_k_mask(a, k, mask=mask).sum(1), k)


def test_top_k_of_a_map_with_nan_is_empty_and_scores_nan():
    a = torch.arange(12.0).view(2, 6).clone()
    a[0, 3] = NAN
    assert top_k_mask(a, 2).sum(1).tolist() == [0, 2]
    assert topk_intersection(a, a.nan_to_num(), 2).isnan().tolist() == [True, False]


@pytest.mark.parametrize("k", [0, -1, 10, 1.5, True, torch.tensor([1, 10]), torch.tensor([1, 2, 3])], ids=str)
def test_top_k_refuses_a_k_that_no_map_has(k):
    with pytest.raises(InvalidInput, match="expected"):
        topk_intersection(torch.rand(2, 3, 3), torch.rand(2, 3, 3), k)


def test_top_k_refuses_a_k_larger_than_the_mask():
    a = torch.rand(2, 9)
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[1, 4:] = False
    with pytest.raises(InvalidInput, match=r"4 to 9 by example.*k = 5"):
        topk_intersection(a, a, 5, mask=mask)


def test_cosine():
    g = torch.Generator().manual_seed(12)
    a, b = smooth(g, 4, 24), smooth(g, 4, 24)
    mask = torch.rand(4, 24, generator=g) < 0.5
    same(cosine(a.view(4, 4, 6), b.view(4, 4, 6)), loop(lambda x, y: x @ y / np.sqrt(x @ x * (y @ y)), a, b))
    same(cosine(a, b, mask=mask), cosine(a * mask, b * mask))
    a[0] = 0
    b[1, 2] = NAN
    b[2, ~mask[2]] = NAN
    assert cosine(a, b, mask=mask | (torch.arange(4) == 1)[:, None]).isnan().tolist() == [True, True, False, False]


def test_mass_center_is_scipys_and_differentiable():
    g = torch.Generator().manual_seed(13)
    a, b = (torch.rand(3, 6, 9, generator=g, dtype=torch.float64) for _ in range(2))
    expected = torch.tensor([ndimage.center_of_mass(x) for x in a.numpy()], dtype=torch.float64)
    same(mass_center(a), expected)
    same(mass_center(torch.stack([a, a], 1)), expected)
    same(mass_center_displacement(a, b), (mass_center(b) - expected).norm(dim=1))
    same(mass_center_displacement(a, a), torch.zeros(3, dtype=torch.float64))
    torch.autograd.gradcheck(mass_center, a[:1].clone().requires_grad_())
    shifted = torch.zeros(1, 8, 8)
    shifted[0, 2, 3] = 5
    same(mass_center_displacement(shifted, shifted.roll((3, 4), (1, 2))), torch.tensor([5.0]).double())
    assert mass_center(torch.zeros(1, 4, 4)).isnan().all()


def skimage_ssim(x: np.ndarray, y: np.ndarray, L: float, channel_axis: int | None = None) -> float:
    settings = {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False}
    return structural_similarity(x, y, data_range=L, channel_axis=channel_axis, **settings)


@pytest.mark.parametrize(("H", "W"), [(28, 28), (32, 20), (11, 11)])
def test_ssim_is_scikit_images(H, W):
    g = torch.Generator().manual_seed(14)
    a = mostly_zero(g, 5, H * W).view(5, H, W)
    b = a + 0.3 * torch.rand(5, H, W, generator=g, dtype=torch.float64)
    ranges = [float(max(x.max(), y.max()) - min(x.min(), y.min())) for x, y in zip(a, b, strict=True)]
    pairs = list(zip(a.numpy(), b.numpy(), ranges, strict=True))
    same(ssim(a, b), torch.tensor([skimage_ssim(x, y, L) for x, y, L in pairs]).double())
    same(ssim(a, b, data_range=2.0), torch.tensor([skimage_ssim(x, y, 2.0) for x, y, _ in pairs]).double())
    same(ssim(1000 * a, 1000 * b), ssim(a, b))
    colour = torch.stack([a, b, a * b], 1)
    expected = [skimage_ssim(x, y, 3.0, 0) for x, y in zip(colour.numpy(), colour.flip(0).numpy(), strict=True)]
    same(ssim(colour, colour.flip(0), data_range=3.0), torch.tensor(expected).double())


@pytest.mark.parametrize(("H", "W", "radius"), [(8, 8, 3), (5, 30, 2), (2, 2, 0), (1, 4, 0)])
def test_ssim_of_maps_smaller_than_the_window(H, W, radius):
    g = torch.Generator().manual_seed(15)
    a, b = (torch.rand(1, H, W, generator=g, dtype=torch.float64) for _ in range(2))
    x, y = a[0].numpy(), b[0].numpy()

    def mean(z: np.ndarray) -> np.ndarray:
        full = ndimage.gaussian_filter(z, 1.5, radius=radius)
        return full[radius : H - radius, radius : W - radius]

    c1, c2 = 0.01**2, 0.03**2
    vx, vy, vxy = mean(x * x) - mean(x) ** 2, mean(y * y) - mean(y) ** 2, mean(x * y) - mean(x) * mean(y)
    score = (2 * mean(x) * mean(y) + c1) * (2 * vxy + c2) / ((mean(x) ** 2 + mean(y) ** 2 + c1) * (vx + vy + c2))
    same(ssim(a, b, data_range=1.0), torch.tensor([score.mean()]))


def test_ssim_of_equal_constant_and_nan_maps():
    g = torch.Generator().manual_seed(16)
    a = torch.rand(4, 12, 12, generator=g)
    b = a.clone()
    a[1] = b[1] = 0.5
    b[2, 3, 3] = NAN
    same(ssim(a, b), torch.tensor([1.0, NAN, NAN, 1.0]).double())


def test_spearman_of_as_many_pixels_as_overflow_an_integer() -> None:
    a = torch.rand(1, 3_200_000, generator=torch.Generator().manual_seed(0))
    b = a + 0.3 * torch.rand(1, 3_200_000, generator=torch.Generator().manual_seed(1))
    assert float(spearman(a, b)[0]) == pytest.approx(stats.spearmanr(a[0], b[0]).statistic, abs=1e-9)


@pytest.mark.parametrize("measure", [kendall, spearman, cosine, ssim, mass_center_displacement])
def test_maps_that_cannot_be_compared_are_refused(measure):
    maps = torch.rand(2, 3, 3)
    for a, b in (
        (maps, maps[:1]),
        (maps, maps.flatten(1)),
        (maps[0, 0], maps[0, 0]),
        (maps[:, :0], maps[:, :0]),
        (maps + 0j, maps + 0j),
        (maps, maps.to("meta")),
        (maps.numpy(), maps.numpy()),
    ):
        with pytest.raises(InvalidInput, match="expected"):
            measure(a, b)


def test_flat_maps_have_no_centre_and_odd_masks_or_ranges_are_refused():
    maps = torch.rand(2, 9)
    square = maps.view(2, 3, 3)
    for call in (
        lambda: mass_center(maps),
        lambda: ssim(maps, maps),
        lambda: ssim(square, square, data_range=0.0),
        lambda: kendall(maps, maps, mask=maps),
        lambda: kendall(maps, maps, mask=maps[:, 1:] > 0),
        lambda: spearman(maps, maps, mask=maps[:1] > 0),
    ):
        with pytest.raises(InvalidInput, match="expected"):
            call()
