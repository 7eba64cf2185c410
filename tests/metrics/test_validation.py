"""What all metrics share: shapes, types, masks, NaN, slabs of memory, devices, refusals."""

from __future__ import annotations

import pytest
import torch

from maps_fixtures import (
    CORRELATIONS,
    KINDS,
    NAN,
    SSIM_ROUNDING,
    UNIT,
    assert_equal,
    few_levels,
    mostly_zero,
    one_by_one,
    smooth,
)
from robattr.errors import InvalidInput
from robattr.metrics import (
    _validation,
    cosine,
    kendall,
    mass_center,
    mass_center_displacement,
    spearman,
    ssim,
    tie_ceiling,
    topk_intersection,
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.uint8, torch.bool])
def test_rank_correlation_of_any_real_type(dtype):
    g = torch.Generator().manual_seed(2)
    a, b = ((5 * torch.rand(4, 9, 9, generator=g)).to(dtype) for _ in range(2))
    if dtype == torch.bool:
        a, b = a ^ (torch.rand(a.shape, generator=g) < 0.5), torch.rand(b.shape, generator=g) < 0.5
    for measure, oracle in CORRELATIONS.items():
        assert_equal(measure(a, b), one_by_one(oracle, a.double(), b.double()))


@pytest.mark.parametrize("measure", CORRELATIONS, ids=lambda m: m.__name__)
def test_shapes_slabs_and_large_maps(measure, monkeypatch):
    g = torch.Generator().manual_seed(3)
    a, b = mostly_zero(g, 7, 192), mostly_zero(g, 7, 192)
    whole = measure(a, b)
    for shape in ((7, 8, 24), (7, 3, 8, 8)):
        assert_equal(measure(a.view(shape), b.view(shape)), whole)
    monkeypatch.setattr(_validation, "CPU_SLAB", 400)  # two maps at a time, the last alone
    assert_equal(measure(a, b), whole)
    monkeypatch.setattr(_validation, "CPU_SLAB", 1)  # never less than one
    assert_equal(measure(a, b), whole)
    big = mostly_zero(g, 2, 16_384)
    assert_equal(
        measure(big, big.roll(1, 1) + big), one_by_one(CORRELATIONS[measure], big, big.roll(1, 1) + big), n=16_384
    )


@pytest.mark.parametrize("device", ["cpu", *(["cuda"] if torch.cuda.is_available() else [])])
@pytest.mark.parametrize(("B", "n"), [(200, 60), (130, 2000), (9, 9000)])
def test_measures_are_the_same_on_every_device(device, B, n, monkeypatch):
    """Devices sort and scan with other kernels, chosen by size and batch: the numbers differ by rounding alone."""
    monkeypatch.setattr(_validation, "GPU_SLAB", B // 2 * n)
    g = torch.Generator().manual_seed(17)
    a, b = mostly_zero(g, B, n).float(), few_levels(g, B, n).float()
    a[3, 5] = b[4, 6] = NAN
    b[5] = -0.0
    mask = torch.rand(B, n, generator=g) < 0.5
    k = mask.sum(1) // 2
    there = [t.to(device) for t in (a, b, mask, k)]
    counts = 8 * UNIT  # a few roundings after integer counts
    centres = 12 * n * (n // 20) * UNIT  # two quotients of sums of n terms, times the side, on both devices
    for measure, rounding in (
        (lambda a, b, mask, k: kendall(a, b), counts),
        (lambda a, b, mask, k: kendall(a, b, mask=mask), counts),
        (lambda a, b, mask, k: spearman(a, b, mask=mask), counts),
        (lambda a, b, mask, k: cosine(a, b, mask=mask), 8 * (n + 8) * UNIT),  # see `assert_equal`
        (lambda a, b, mask, k: tie_ceiling(a, mask=mask), counts),
        (lambda a, b, mask, k: topk_intersection(a, b, 7), counts),
        (lambda a, b, mask, k: topk_intersection(a, b, k, mask=mask), counts),
        (lambda a, b, mask, k: ssim(a.view(B, -1, 20), b.view(B, -1, 20)), SSIM_ROUNDING),
        (lambda a, b, mask, k: mass_center_displacement(a.view(B, -1, 20), b.view(B, -1, 20) + 3), centres),
    ):
        got = measure(*there)
        assert got.device.type == device
        torch.testing.assert_close(got.cpu(), measure(a, b, mask, k), rtol=0, atol=rounding, equal_nan=True)
    one = slice(7, 8)
    assert_equal(kendall(there[0], there[1])[one].cpu(), one_by_one(CORRELATIONS[kendall], a[one], b[one]))


def test_perfect_and_opposite_orders():
    a = torch.arange(50.0).repeat(2, 1)
    b = torch.stack([a[0] ** 3, -a[1]])
    for measure in CORRELATIONS:
        assert_equal(measure(a, b), torch.tensor([1.0, -1.0], dtype=torch.float64))


@pytest.mark.parametrize("measure", CORRELATIONS, ids=lambda m: m.__name__)
def test_maps_without_an_order_are_nan_and_spoil_no_neighbour(measure):
    g = torch.Generator().manual_seed(4)
    a, b = smooth(g, 5, 30), smooth(g, 5, 30)
    expected = one_by_one(CORRELATIONS[measure], a, b)
    a[1] = 2.5
    b[2, 7] = NAN
    a[3, 0] = -NAN
    expected[1:4] = NAN
    assert_equal(measure(a, b), expected)
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
    assert_equal(measure(a.view(8, 6, 10), b.view(8, 6, 10), mask=mask.view(8, 1, 6, 10)), expected)
    mask[3] = False
    mask[4] = False
    mask[4, 9] = True
    expected[3:5] = NAN
    assert_equal(measure(a, b, mask=mask), expected)


def test_measures_do_not_touch_the_maps_or_the_graph():
    a = torch.tensor([[0.0, -0.0, 3.0, 1.0]], requires_grad=True)
    b = a.detach().clone()
    for measure in (kendall, spearman, cosine, lambda x, y: topk_intersection(x, y, 2), lambda x, _: tie_ceiling(x)):
        assert not measure(a, b).requires_grad
    assert torch.equal(a, b)


@pytest.mark.parametrize("measure", [kendall, spearman, cosine, ssim, mass_center_displacement])
def test_maps_that_cannot_be_compared_are_refused(measure):
    maps = torch.rand(2, 3, 3)
    for a, b, says in (
        (maps, maps[:1], r"of one shape, got \(2, 3, 3\) and \(1, 3, 3\)"),
        (maps, maps.transpose(1, 2)[..., :2], r"of one shape, got \(2, 3, 3\) and \(2, 3, 2\)"),
        (maps[0, 0], maps[0, 0], "add the batch dimension"),
        (maps[:, :0], maps[:, :0], r"got shape \(2, 0, 3\)"),
        (maps + 0j, maps + 0j, "expected real maps, got complex"),
        (maps, maps.to("meta"), "on one device, got cpu and meta"),
        (maps.numpy(), maps.numpy(), "expected a tensor of maps, got ndarray"),
    ):
        with pytest.raises(InvalidInput, match=says):
            measure(a, b)


def test_flat_maps_have_no_centre_and_odd_masks_are_refused():
    maps = torch.rand(2, 9)
    for call, says in (
        (lambda: mass_center(maps), "expected maps with rows and columns"),
        (lambda: ssim(maps, maps), "expected maps with rows and columns"),
        (lambda: kendall(maps, maps, mask=maps), r"expected a boolean mask .* got torch\.float32"),
        (lambda: kendall(maps, maps, mask=maps[:, 1:] > 0), r"expected a boolean mask .* of shape \(2, 8\)"),
        (lambda: spearman(maps, maps, mask=maps[:1] > 0), r"expected a boolean mask .* of shape \(1, 9\)"),
    ):
        with pytest.raises(InvalidInput, match=says):
            call()
