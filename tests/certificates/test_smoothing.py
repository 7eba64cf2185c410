"""Counts on noisy copies: closed forms, and independence of batches and chunks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import Tensor, nn

from certificate_fixtures import Quadratic, larger_first, linear
from robattr.attacks import from_callable, simple_gradient
from robattr.certificates import smoothing as module
from robattr.certificates.smoothing import Smoothing, Tally, tally
from robattr.errors import InvalidInput

SG = simple_gradient()


def counted(model: nn.Module, x: list[float], n: int = 4000, y: int = 0, **settings: Any) -> Tally:
    s = Smoothing(samples=n, sigma=0.5, top=0.4, **settings)
    return tally(model, SG, torch.tensor([x]), torch.tensor([y]), ids=[0], smoothing=s)


def within_five_sigma(hits: int, n: int, p: float) -> bool:
    return abs(hits / n - p) <= 5 * np.sqrt(p * (1 - p) / n) + 1e-12


def test_a_linear_model_has_one_map_and_a_known_answer() -> None:
    found = counted(linear([[3.0, 4.0, 0.0], [0.0, 0.0, 0.0]]), [0.1, 0.05, 0.3])
    assert within_five_sigma(int(found.answers[0]), found.n, norm.cdf(0.5 / (0.5 * 5)))  # w·x = 0.5, σ‖w‖ = 2.5
    np.testing.assert_array_equal(found.votes, [[0, 4000, 0]])  # K = 1
    np.testing.assert_allclose(found.total / found.n, [[0.6, 0.8, 0]], rtol=1e-6)
    np.testing.assert_allclose([found.along / found.n, found.squares / found.n], 1, rtol=1e-6)  # ‖h‖ = 1


def test_a_quadratic_model_votes_with_the_known_probability() -> None:
    x = np.array([0.4, 0.1])
    found = counted(Quadratic(), x.tolist(), seed=1)
    assert within_five_sigma(int(found.votes[0, 0]), found.n, larger_first(x, 0.5))
    assert found.votes.sum() == found.n  # every copy has K = 1 vote


def test_a_quadratic_models_mean_map_is_the_integral() -> None:
    found = counted(Quadratic(), [0.4, 0.1], seed=2)
    a, b = np.meshgrid(np.linspace(-2.6, 3.4, 500), np.linspace(-2.9, 3.1, 500))
    weight = norm.pdf(a, 0.4, 0.5) * norm.pdf(b, 0.1, 0.5)
    exact = (np.abs(a) / np.hypot(a, b) * weight).sum() / weight.sum()
    assert found.total[0, 0] / found.n == pytest.approx(exact, abs=5 * 0.5 / np.sqrt(found.n))
    mean = found.total[0] / found.n
    assert found.along[0] / found.n <= np.linalg.norm(mean) + 1e-12  # ⟨v, ĥ⟩ ≤ ‖ĥ‖
    assert found.along[0] / found.n == pytest.approx(np.linalg.norm(mean), rel=0.01)


def test_counts_do_not_depend_on_batches_or_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, s = torch.rand(3, 2), torch.zeros(3, dtype=torch.long), Smoothing(samples=50)
    together = tally(Quadratic(), SG, x, y, ids=[5, 6, 9], smoothing=s)
    monkeypatch.setattr(module, "rows_that_fit", lambda *_, passes: 7)
    for i, name in enumerate((5, 6, 9)):
        alone = tally(Quadratic(), SG, x[i : i + 1], y[:1], ids=[name], smoothing=s)
        np.testing.assert_array_equal(alone.votes[0], together.votes[i])
        np.testing.assert_allclose(alone.total[0], together.total[i], rtol=1e-12)
        np.testing.assert_allclose(alone.along[0], together.along[i], rtol=1e-12)
    other = tally(Quadratic(), SG, x[:1], y[:1], ids=[5], smoothing=s, stream=1)
    assert (other.total[0] != together.total[0]).any()


def test_memory_does_not_grow_with_the_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    class Watched(Quadratic):
        rows = 0

        def forward(self, x: Tensor) -> Tensor:
            self.rows = max(self.rows, len(x))
            return super().forward(x)

    monkeypatch.setattr(module, "rows_that_fit", lambda *_, passes: 16)
    model, seen = Watched(), []
    x, y, s = torch.rand(2, 2), torch.zeros(2, dtype=torch.long), Smoothing(samples=100)
    tally(model, SG, x, y, ids=[0, 1], smoothing=s, passed=seen.append)
    assert model.rows == 16
    assert sum(seen) == 2 * s.copies == 220


def test_maps_without_an_order_do_not_vote() -> None:
    """A zero gradient, a map that is not finite and logits that are NaN count for nothing, as every bound allows."""
    flat = counted(linear([[0.0, 0.0], [0.0, 0.0]]), [0.5, 0.5], n=20)
    assert not flat.votes.any()
    assert not flat.total.any()
    assert flat.along == 0
    assert flat.answers == 20  # equal logits: argmax takes the first class
    broken = from_callable(lambda model, x, y: x.new_full(x.shape, torch.inf))
    s = Smoothing(samples=20)
    found = tally(
        linear([[torch.nan, 0.0], [0.0, 0.0]]), broken, torch.rand(1, 2), torch.zeros(1).long(), ids=[0], smoothing=s
    )
    assert (found.votes.sum(), found.answers, found.along) == (0, 0, 0)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"sigma": 0.0}, "sigma above 0"),
        ({"alpha": 1.0}, "alpha above 0 and below 1"),
        ({"top": 1.5}, "top above 0 and below 1"),
        ({"samples": 3}, "samples to be a whole number of at least 10"),
        ({"samples": 1e3}, "samples to be a whole number"),
        ({"seed": -1}, r"seed of at least 0, below 2\*\*63, got -1"),
        ({"seed": 2**63}, r"seed of at least 0, below 2\*\*63, got 9223"),
    ],
)
def test_settings_that_prove_nothing_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        Smoothing(**wrong)
