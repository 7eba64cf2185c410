"""Distances of two maps, against SciPy and plain loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.spatial import distance as scipy_distance
from torch import Tensor

from nets import mlp
from robattr import IG, Distance, Gradient, cosine, frozen, kendall, kl, l1, pearson, rank_margin
from robattr.errors import InvalidInput
from robattr.formula import distances


def maps(n: int = 12) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(3, n, dtype=torch.float64), torch.randn(3, n, dtype=torch.float64)


def loop_kendall(a: np.ndarray, b: np.ndarray, alpha: float) -> float:
    n = len(a)
    pairs = [(i, j) for i in range(n) for j in range(n) if i != j]
    return 1 - float(np.mean([np.tanh(alpha * (a[i] - a[j])) * np.tanh(alpha * (b[i] - b[j])) for i, j in pairs]))


def loop_rank_margin(a: np.ndarray, b: np.ndarray, k: int) -> float:
    order = np.argsort(-b)
    pairs = [(i, k) for i in range(1, k)] + [(k, k + j) for j in range(1, k + 1)]
    return float(sum(a[order[q - 1]] - a[order[p - 1]] for p, q in pairs))


def softmax(a: np.ndarray) -> np.ndarray:
    return np.exp(a) / np.exp(a).sum()


ORACLES = {
    "cosine": (cosine, scipy_distance.cosine),
    "pearson": (pearson, lambda a, b: 1 - stats.pearsonr(a, b)[0]),
    "kl": (kl, lambda a, b: stats.entropy(softmax(b), softmax(a))),
    "kendall": (kendall(2.0), lambda a, b: loop_kendall(a, b, 2.0)),
    "sharp kendall is tau": (kendall(1e6), lambda a, b: 1 - stats.kendalltau(a, b)[0]),
    "rank margin": (rank_margin(4), lambda a, b: loop_rank_margin(a, b, 4)),
    "rank margin of one": (rank_margin(1), lambda a, b: loop_rank_margin(a, b, 1)),
}


@pytest.mark.parametrize("name", sorted(ORACLES))
def test_distances_equal_their_oracles(name: str) -> None:
    distance, oracle = ORACLES[name]
    a, b = maps()
    expected = [oracle(u.numpy(), v.numpy()) for u, v in zip(a, b, strict=True)]
    torch.testing.assert_close(distance(a, b), torch.tensor(expected, dtype=torch.float64), rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(distance(a.reshape(3, 3, 4), b.reshape(3, 3, 4)), distance(a, b))


@pytest.mark.parametrize("name", sorted(set(ORACLES) - {"sharp kendall is tau"}))
def test_derivatives_are_finite_differences(name: str) -> None:
    a, b = maps(8)
    distance = ORACLES[name][0]
    both = (a.requires_grad_(), b.requires_grad_()) if "rank" not in name else (a.requires_grad_(), b)
    assert torch.autograd.gradcheck(distance, both)
    assert torch.autograd.gradgradcheck(distance, both)


@pytest.mark.parametrize("distance", [cosine, pearson], ids=repr)
def test_zero_maps_have_finite_derivatives(distance: Distance) -> None:
    a = torch.zeros(2, 5, requires_grad=True)
    distance(a, torch.rand(2, 5)).sum().backward()
    assert a.grad is not None
    assert bool(torch.isfinite(a.grad).all())


def test_kendall_in_blocks_is_kendall_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = (t.requires_grad_() for t in maps(8))
    whole = kendall(3.0)(a, b)
    gradients = torch.autograd.grad(whole.sum(), (a, b))
    monkeypatch.setattr(distances, "BLOCK", a.numel() * 3)  # 3, 3 and 2 pixels
    blocks = kendall(3.0)(a, b)
    torch.testing.assert_close(blocks, whole)
    torch.testing.assert_close(torch.autograd.grad(blocks.sum(), (a, b)), gradients)
    assert torch.autograd.gradgradcheck(kendall(3.0), (a, b))


def test_kendall_keeps_no_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What autograd saves for the backward pass is linear in the number of pixels."""
    monkeypatch.setattr(distances, "BLOCK", 4096)
    kept = []
    for n in (256, 512):
        saved = 0

        def pack(t: Tensor) -> Tensor:
            nonlocal saved
            saved += t.numel()
            return t

        a, b = torch.rand(1, n, requires_grad=True), torch.rand(1, n)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            kendall()(a, b)
        kept.append(saved)
    assert kept[1] <= 2 * kept[0] <= 8 * 256


def test_a_map_alone_is_compared_with_its_clean_self() -> None:
    net = mlp().double()
    x = torch.rand(3, 6, dtype=torch.float64)
    x1, y = x + 0.1, torch.arange(3)
    a, b = (Gradient()(net, z, z, y) for z in (x1, x))
    torch.testing.assert_close((cosine @ Gradient())(net, x, x1, y), cosine(a, b))
    torch.testing.assert_close((l1 @ (Gradient(), frozen(Gradient())))(net, x, x1, y), (a - b).abs().sum(1))


def test_a_distance_of_ones_own_is_one_line() -> None:
    @Distance
    def overlap(a: Tensor, b: Tensor) -> Tensor:
        return 1.0 - (a * b).sum(1)

    a, b = maps()
    torch.testing.assert_close(overlap(a, b), 1 - (a * b).sum(1))
    assert repr(overlap) == "overlap"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: Distance(3), "function of two"),
        (lambda: cosine @ 3, "pair"),
        (lambda: cosine @ (Gradient(), 3), "pair"),
        (lambda: cosine @ IG(), "BaselineIG"),
        (lambda: cosine(torch.rand(2, 3), torch.rand(2, 4)), "one shape"),
        (lambda: kendall(0.0), "α > 0"),
        (lambda: rank_margin(0), "k ≥ 1"),
        (lambda: rank_margin(3)(torch.rand(2, 5), torch.rand(2, 5)), "at least 6"),
    ],
)
def test_mistakes_are_named(wrong, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        wrong()
