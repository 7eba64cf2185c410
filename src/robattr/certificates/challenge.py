"""Challenge certificates by attacks: search the ball for a point where what was certified is false.

Every kind of attack runs on every example. At the point it finds, the smoothed answer, vote map and mean map are
estimated from fresh copies and compared with the certificate; an estimate below its bound counts as a break.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from robattr.attacks.maps import AttributionMap
from robattr.certificates.attack import KINDS, SmoothedAttack
from robattr.certificates.bounds import Bools, Floats, Ints
from robattr.certificates.certificate import Certificate
from robattr.certificates.smoothing import Smoothing, Tally, tally

CERTIFICATES = ("answer", "pixels", "overlap", "cosine")
FRESH = 1  # the first stream of noise that no certificate has seen


@dataclass(frozen=True)
class Challenge:
    """What an attack does: `steps` of PGD within `radius`, each through `draws` copies, maps of the softplus twin."""

    radius: float = 0.0
    steps: int = 20
    draws: int = 32
    beta: float = 10.0

    def within(self, radius: float) -> Challenge:
        """The same attack in a ball of another radius."""
        return replace(self, radius=radius)


@dataclass(frozen=True)
class Measured:
    """Estimates at the points that one attack found, (B,) each: compare with a `Certificate`.

    answer    the share of copies with the answer y
    pixels    how many certified pixels are not where they should be
    overlap   how many of the K largest votes are those of x
    cosine    of the mean maps
    moved     ‖x' − x‖₂
    """

    answer: Floats
    pixels: Ints
    overlap: Ints
    cosine: Floats
    moved: Floats

    def broken(self, certified: Certificate) -> dict[str, Bools]:
        """(B,) for each certificate: whether the estimate contradicts it."""
        return {
            "answer": certified.answer & (self.answer <= 0.5),
            "pixels": self.pixels > 0,
            "overlap": self.overlap < certified.overlap,
            "cosine": self.cosine < certified.cosine - 1e-9,
        }


def challenge(
    model: nn.Module,
    map: AttributionMap,
    x: Tensor,
    y: Tensor,
    certified: Certificate,
    *,
    ids: Sequence[int],
    smoothing: Smoothing,
    how: Challenge,
    passed: Callable[[int], None] = lambda copies: None,
) -> dict[str, Measured]:
    """Attack a batch by every kind; the last one, `cosine`, starts where `topk` ended."""

    def count(z: Tensor, stream: int) -> Tally:
        return tally(model, map, z, y, ids=ids, smoothing=smoothing, stream=FRESH + stream, passed=passed)

    here, found, point = count(x, 0), {}, x
    references = {"answer": here.votes, "topk": top_votes(here.votes, certified.k), "cosine": here.total}
    for at, kind in enumerate(KINDS):
        attack = SmoothedAttack(model, map, kind, sigma=smoothing.sigma, seed=smoothing.seed, **asdict(how))
        start = point if kind == "cosine" else x
        point = attack(x, y, torch.as_tensor(references[kind]), ids=ids, start=start)
        found[kind] = measured(here, count(point, 1 + at), certified, (point - x).flatten(1).double().norm(dim=1))
    return found


def measured(here: Tally, there: Tally, certified: Certificate, moved: Tensor) -> Measured:
    """The estimates at x' (`there`) beside those at x (`here`)."""
    first, second = (top_votes(each.votes, certified.k) for each in (here, there))
    lost = (certified.inside & ~second) | (certified.outside & second)
    lengths = [np.linalg.norm(each.total, axis=1) for each in (here, there)]
    inner = (here.total * there.total).sum(axis=1)
    cosine = np.divide(inner, lengths[0] * lengths[1], out=np.zeros_like(inner), where=inner > 0)
    return Measured(
        answer=there.answers / there.n,
        pixels=lost.sum(axis=1),
        overlap=(first & second).sum(axis=1),
        cosine=cosine,
        moved=moved.cpu().numpy(),
    )


def top_votes(votes: Ints, k: int) -> Bools:
    """(B, d) the k pixels with most votes; of equal ones the lower index first."""
    order = np.argsort(-votes, axis=1, kind="stable")[:, :k]
    chosen = np.zeros(votes.shape, dtype=np.bool_)
    np.put_along_axis(chosen, order, True, axis=1)
    return chosen
