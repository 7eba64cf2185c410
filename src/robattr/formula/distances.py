"""The distance C of two maps: C(a, b) -> (B,), and its composition with an attribution and a reference.

    cosine @ (a, b)     the change C(a(x, x'), b(x, x')): `b` is any attribution, such as `clean(a)`, `frozen(a)`,
                        `the_input`, `target(map)` or `uniform`
    cosine @ a          short for cosine @ (a, clean(a)): how far the map moves from x to x'

A size s is a distance too: `s @ (a, b)` is s(a − b), so `l1 @ (a, clean(a))` is ‖a(x') − a(x)‖₁. Any function of two
(B, n) arrays that returns (B,) becomes a distance by `Distance(function)`, also as a decorator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial

import torch
from torch import Tensor

from robattr.errors import InvalidInput
from robattr.formula.algebra import Measure
from robattr.formula.attribution import IG, Attribution, recomputed
from robattr.formula.change import Change, Compared, clean
from robattr.formula.checks import check_callable, check_number, check_whole
from robattr.formula.network import per_example
from robattr.formula.sizes import is_map, pair

BLOCK = 2**22
"""How many pairs of pixels `kendall` holds at once, over all examples."""


@dataclass(frozen=True, repr=False)
class Distance(Measure):
    """C(a, b) for two maps of one shape (B, ...), which `of` sees as (B, n): one number per example.

    Distances add up and scale like sizes: `cosine + 0.1 * pearson`.
    """

    kind = ("distance", "cosine + 2 * pearson")
    of: Callable[[Tensor, Tensor], Tensor]
    name: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        check_callable("Distance expects a function of two (B, n) arrays that returns (B,)", self.of)

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        if a.shape != b.shape:
            raise InvalidInput(f"{self} expects two maps of one shape, got {tuple(a.shape)} and {tuple(b.shape)}")
        return per_example(self.of(a.reshape(len(a), -1), b.reshape(len(b), -1)), a, self)

    def __matmul__(self, maps: Attribution | tuple[Attribution, Attribution]) -> Change:
        if isinstance(maps, IG):
            raise InvalidInput(
                f"`{self} @ a` compares a(x') with a(x), and a path IG from x is 0 at x: use BaselineIG(IG(...)), or "
                f"give the reference, as in {self} @ (IG(...), target(map))"
            )
        if is_map(maps):
            maps = (maps, clean(maps))
        return Change.of(Compared(self, *pair(repr(self), maps)))


def _unit(a: Tensor) -> Tensor:
    """a/‖a‖₂, and 0 for a zero map (the floor 1e-12 keeps the derivative finite there)."""
    return a / a.square().sum(1, keepdim=True).clamp_min(1e-24).sqrt()


def _centred(a: Tensor) -> Tensor:
    return a - a.mean(1, keepdim=True)


cosine = Distance(lambda a, b: 1.0 - (_unit(a) * _unit(b)).sum(1), "cosine")
"""1 − ⟨a, b⟩/(‖a‖₂‖b‖₂), in [0, 2]; 1 where a map is zero."""

pearson = Distance(lambda a, b: 1.0 - (_unit(_centred(a)) * _unit(_centred(b))).sum(1), "pearson")
"""1 − r(a, b), Pearson's correlation: the cosine distance of the centred maps."""

kl = Distance(
    lambda a, b: (b.softmax(1) * (b.log_softmax(1) - a.log_softmax(1))).sum(1),
    "kl",
)
"""KL(softmax(b) ‖ softmax(a)), the reference first: `kl @ logits` is TRADES' KL(p(x) ‖ p(x'))."""


@lru_cache  # equal distances are one object, so that what was compiled for one serves the other
def kendall(alpha: float = 10.0) -> Distance:
    """1 − τ_α(a, b): a differentiable Kendall distance, 1 − mean_{i≠j} tanh(αΔa_ij) · tanh(αΔb_ij).

    As α → ∞ it becomes 1 − Kendall's τ-a (without ties). Maps are not scaled: α is in their units. The pairs
    are computed in blocks, again in the backward pass, so that memory is linear in the number of pixels.
    """
    check_number("kendall expects a finite slope α", alpha, positive=True)
    alpha = float(alpha)

    def block(a: Tensor, b: Tensor, *, rows: slice) -> Tensor:
        apart = (v[:, rows, None] - v[:, None, :] for v in (a, b))
        u, v = (torch.tanh(alpha * each) for each in apart)
        return (u * v).sum((1, 2))

    def of(a: Tensor, b: Tensor) -> Tensor:
        n = a.shape[1]
        height = max(1, BLOCK // max(1, a.numel()))
        blocks: list[Callable[..., Tensor]] = [partial(block, rows=slice(i, i + height)) for i in range(0, n, height)]
        return 1.0 - recomputed(blocks, a, b) / max(1, n * (n - 1))

    return Distance(of, f"kendall({alpha:g})")


@lru_cache
def rank_margin(k: int) -> Distance:
    """Σ_{(p,q) ∈ P} (a_q − a_p), P = {(i, k): i < k} ∪ {(k, k + j): 1 ≤ j ≤ k} by the rank of b, largest first (R2ET).

    Negative where a keeps the top k of b apart from the rest. The ranks are constants: `rank_margin(k) @ (a, clean(a))`
    freezes them at x.
    """
    check_whole("rank_margin expects a whole number k", k, least=1)

    def of(a: Tensor, b: Tensor) -> Tensor:
        n = a.shape[1]
        if not 2 * k <= n:
            raise InvalidInput(f"rank_margin({k}) expects maps of at least {2 * k} values, got {n}")
        ranked = a.gather(1, b.detach().argsort(dim=1, descending=True, stable=True)[:, : 2 * k])
        kth = ranked[:, k - 1]
        # Σ_{i<k} (a_k − a_i) + Σ_{1≤j≤k} (a_{k+j} − a_k): of a_k, (k − 1) − k = −1 is left
        return ranked[:, k:].sum(1) - ranked[:, : k - 1].sum(1) - kth

    return Distance(of, f"rank_margin({k})")
