"""Attacks on a smoothed explanation, through the average: what a certificate must survive.

    z ← Π(z + a·g/‖g‖₂),   g = ∇_z J( mean over m fresh copies of s(z + ξ) ),   Π onto ‖z − x‖₂ ≤ r

    kind     s(z)                       J(s̄)
    answer   softmax of the logits, y   −log s̄                       (Salman et al. 2019)
    topk     the map a(z)               −Σ_{i ∈ T} s̄_i               (IFIA's loss; T the K largest of the vote map)
    cosine   a(z)/‖a(z)‖₂               −cos(s̄, h(x))                (h the mean map)

Maps are those of the softplus twin, as in IFIA: the maps of a ReLU network are piecewise constant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from robattr.attacks import per_example_rng
from robattr.attacks.maps import AttributionMap, constant_along_ray
from robattr.engine.batch_size import rows_that_fit
from robattr.errors import InvalidInput, nearest
from robattr.formula.ascent import PGD
from robattr.formula.neighbourhoods import L2Ball
from robattr.formula.network import bind, second_order
from robattr.models.smooth import smooth

KINDS = ("answer", "topk", "cosine")
STREAM = 1_000_000  # of the seed, beyond those of `tally`
INSIDE = 1 - 1e-6  # of the radius: a point must not leave the ball by rounding

Loss = Callable[[Tensor, Tensor], Tensor]
LOSSES: dict[str, Loss] = {
    "answer": lambda mean, _: -mean[:, 0].clamp_min(1e-12).log(),
    "topk": lambda mean, top: -(mean * top).sum(dim=1),
    "cosine": lambda mean, h: -torch.cosine_similarity(mean, h, dim=1),
}


@dataclass(frozen=True)
class SmoothedAttack:
    """An attack on a smoothed explanation or answer: PGD in the L2 ball, through a mean over noisy copies.

        SmoothedAttack(model, map, "topk", radius, sigma)(x, y, reference, ids=ids) -> x'

    reference   (B, d) the indicator of T for `topk`, h(x) for `cosine`; not used for `answer`
    start       where to begin, else at x, where the gradient of the cosine is 0
    draws       m, copies per step; memory does not grow with it
    beta        of the softplus twin; inf is the network itself
    """

    model: nn.Module
    map: AttributionMap
    kind: str
    radius: float
    sigma: float
    steps: int = 20
    draws: int = 32
    beta: float = 10.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in LOSSES:
            raise InvalidInput(f"unknown kind of attack {self.kind!r}: {nearest(self.kind, LOSSES)}")

    @property
    def guide(self) -> AttributionMap:
        """The map whose derivative is climbed."""
        return self.map.guide or self.map

    def __call__(
        self, x: Tensor, y: Tensor, reference: Tensor, *, ids: Sequence[int], start: Tensor | None = None
    ) -> Tensor:
        stream = STREAM + KINDS.index(self.kind)
        draws = [self.draws] * self.steps
        noise = per_example_rng.normal_parts(x, [(int(i),) for i in ids], draws, self.seed, stream)
        within = L2Ball(self.radius * INSIDE, bounds=None)
        ascent = PGD(self.steps, 2.5 * self.radius / self.steps)
        start = x if start is None else within.project(start, x)
        last = start
        size = max(1, rows_that_fit(self.model, x, passes=self.guide.nodes) // len(x))  # copies at once
        with second_order(self.model), torch.no_grad():
            statistic = self._statistic(y)
            for last in ascent.iterates(  # noqa: B007
                lambda z: self._grad_and_value(
                    statistic, z, (self.sigma * next(noise).to(x)).split(size, dim=1), reference.to(x)
                ),
                x, within, start=start,
            ):  # fmt: skip
                pass
        return last

    def _statistic(self, y: Tensor) -> Callable[[Tensor], Tensor]:
        """s of copies (B·m rows) as rows of numbers."""
        net = bind(self.model).detach()
        twin = net if self.beta == inf else bind(smooth(self.model, self.beta)).detach()

        def of(z: Tensor) -> Tensor:
            labels = y.repeat_interleave(len(z) // len(y))
            if self.kind == "answer":
                return net(z).softmax(dim=1).gather(1, labels[:, None])
            map = self.guide
            if map.along_ray is not None and constant_along_ray(map, self.model, z).all():
                map = map.along_ray
            a = map(twin, z, labels).flatten(1).nan_to_num(0.0, 0.0, 0.0)
            return a if self.kind == "topk" else F.normalize(a, dim=1)

        return of

    def _grad_and_value(
        self, statistic: Callable[[Tensor], Tensor], z: Tensor, parts: Sequence[Tensor], reference: Tensor
    ) -> tuple[Tensor, Tensor]:
        """∇J and J of the mean over the copies: ∂J/∂s̄ from a first pass, then its product with ∂s/∂z in parts."""
        m = sum(part.shape[1] for part in parts)

        def sums(v: Tensor, part: Tensor) -> Tensor:
            each = statistic((v[:, None] + part).flatten(0, 1))
            return each.view(len(v), -1, each.shape[1]).sum(dim=1) / m

        mean = torch.stack([sums(z, part) for part in parts]).sum(dim=0)
        with torch.enable_grad():
            mean = mean.requires_grad_()
            value = LOSSES[self.kind](mean, reference)
            (weight,) = torch.autograd.grad(value.sum(), mean)
        gradient = torch.zeros_like(z)
        for part in parts:
            with torch.enable_grad():
                v = z.detach().requires_grad_()
                inner = (weight * sums(v, part)).sum()
                if inner.requires_grad:
                    gradient += torch.autograd.grad(inner, v, materialize_grads=True)[0]
        return gradient, value.detach()
