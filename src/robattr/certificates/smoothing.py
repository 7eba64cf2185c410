"""Noisy copies of examples, and what is counted on them.

x + ξ, ξ ~ N(0, σ²I), in the units of the data; the copies are not clipped to the range of valid inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from math import inf
from typing import Any

import torch
from torch import Tensor, nn

from robattr._form import check_fields
from robattr.attacks import per_example_rng
from robattr.attacks.maps import AttributionMap, saliency
from robattr.certificates.bounds import Floats, Ints
from robattr.engine.batch_size import rows_that_fit
from robattr.errors import InvalidInput
from robattr.formula.checks import check_seed
from robattr.formula.network import second_order
from robattr.metrics import top_k_mask


@dataclass(frozen=True)
class Smoothing:
    """What is smoothed, and how it is estimated. All of it is fixed before the noise is drawn.

    sigma     σ of the noise, in the units of the data
    samples   n, noisy copies per example; a tenth as many are drawn before them for a pilot estimate
    alpha     α: all certificates of an example hold together with probability at least 1 − α
    top       the share of the pixels that counts as important: K = top·d, at least 1
    """

    sigma: float = 0.25
    samples: int = 1000
    alpha: float = 0.001
    top: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self)
        for name, least, most in (("sigma", 0, inf), ("alpha", 0, 1), ("top", 0, 1)):
            if not least < (value := getattr(self, name)) < most:
                raise InvalidInput(f"expected {name} above {least} and below {most}, got {value!r}")
        if self.samples < 10:
            raise InvalidInput(f"expected samples to be a whole number of at least 10, got {self.samples!r}")
        check_seed(self.seed)

    @property
    def pilot(self) -> int:
        """Copies for the direction v along which the norm of the smoothed map is measured."""
        return self.samples // 10

    @property
    def copies(self) -> int:
        """Noisy copies per example in all."""
        return self.pilot + self.samples

    def k(self, pixels: int) -> int:
        """K, how many of a map's pixels count as important."""
        return max(1, round(self.top * pixels))

    def settings(self) -> dict[str, Any]:
        """What the counts depend on."""
        return asdict(self)


@dataclass(frozen=True)
class Tally:
    """What n noisy copies of B examples showed, with d pixels per map.

        b_i(z) = 1 if pixel i is among the K largest of the map a(z), and f(z) the predicted class
        u(z) = a(z)/‖a(z)‖₂, or 0 where a(z) is zero or not finite; v a unit vector of the pilot's copies

    answers   (B,) how often f(x + ξ) = y
    votes     (B, d) Σ b(x + ξ)
    along     (B,) Σ ⟨v, u(x + ξ)⟩, and `squares` the sum of their squares
    total     (B, d) Σ u(x + ξ)
    """

    n: int
    answers: Ints
    votes: Ints
    along: Floats
    squares: Floats
    total: Floats


def tally(
    model: nn.Module,
    map: AttributionMap,
    x: Tensor,
    y: Tensor,
    *,
    ids: Sequence[int],
    smoothing: Smoothing,
    stream: int = 0,
    passed: Callable[[int], None] = lambda copies: None,
) -> Tally:
    """Draw the copies and count. Memory does not grow with n: copies pass through the net as many as fit.

    The noise of an example depends on its id, the seed and the `stream` alone. `passed` is told how many copies have
    been seen.
    """
    B, s, wide = len(x), smoothing, _float64_device(x)
    size = max(1, rows_that_fit(model, x, passes=map.together) // B)
    pilot, rest = ([size] * (n // size) + [n % size] * (n % size > 0) for n in (s.pilot, s.samples))
    noise = per_example_rng.normal_parts(x, [(int(i),) for i in ids], [*pilot, *rest], s.seed, stream)
    clean = x.detach().to(wide).double()[:, None]

    def copies(parts: Sequence[int]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """(hit, bits, u) of copies in parts of n, shapes (B, n), (B, n, d) and (B, n, d)."""
        for n in parts:
            # Added in float64: what the net sees is then a function of x + ξ, with ξ Gaussian to 53 bits.
            z = (clean + s.sigma * next(noise).to(wide)).to(x.dtype).to(x.device).flatten(0, 1)
            found = _look(model, map, z, y.repeat_interleave(n), s)
            yield tuple(part.to(wide).unflatten(0, (B, n)) for part in found)  # type: ignore[misc]
            passed(n * B)

    v: Any = sum(u.sum(dim=1) for _, _, u in copies(pilot))
    v = v / v.norm(dim=1, keepdim=True).clamp_min(1e-300)
    answers, votes, along, squares, total = 0, 0, 0, 0, 0  # type: Any, Any, Any, Any, Any
    for hit, bits, u in copies(rest):
        inner = (u @ v[:, :, None])[..., 0].clamp(0, 1)
        answers, votes, total = answers + hit.sum(dim=1), votes + bits.sum(dim=1), total + u.sum(dim=1)
        along, squares = along + inner.sum(dim=1), squares + inner.square().sum(dim=1)
    return Tally(s.samples, *(part.cpu().numpy() for part in (answers, votes, along, squares, total)))


def _float64_device(x: Tensor) -> torch.device:
    """Where sums in float64 run: the device of x, or the CPU if it has no float64."""
    return torch.device("cpu") if x.device.type == "mps" else x.device


@torch.no_grad()
def _look(
    model: nn.Module, map: AttributionMap, z: Tensor, y: Tensor, smoothing: Smoothing
) -> tuple[Tensor, Tensor, Tensor]:
    """(hit, bits, u): is the prediction y, the K largest pixels, the map of norm 1."""
    a = saliency(map, model, z, y).flatten(1)
    with second_order(model):
        logits = model(z)
    hit = (logits.argmax(dim=1) == y) & logits.isfinite().all(dim=1)
    bits = top_k_mask(a, smoothing.k(a.shape[1]))
    u = a.to(_float64_device(a)).double()
    u = u / u.norm(dim=1, keepdim=True)
    return hit, bits, torch.where(u.isfinite().all(dim=1, keepdim=True), u, 0.0)
