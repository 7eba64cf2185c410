"""Certificates by interval bounds: what holds at every x' with ‖x' − x‖∞ ≤ ε, without smoothing and without chance.

    ‖IG(x, x')‖₁ ≤ B(x),   Σ_i max |∂ℓ/∂x_i(x')| ≤ G(x),   ℓ(x') ≤ L(x),   argmax z(x') = y

The bounds are computed in float64, with every rounding error counted. docs/certificates.md has the proofs. They are
near the truth for networks trained with them (`objectives.interval_bound`), and far above it for others.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import torch
from torch import Tensor, nn

from robattr.formula import IG, PGD, Best, LinfBall, cross_entropy, l1, midpoint
from robattr.formula.ascent import maximise
from robattr.formula.bounds import enclose
from robattr.formula.checks import check_batch, check_model
from robattr.formula.neighbourhoods import Bounds, check_bounds
from robattr.formula.network import Bound, bind, second_order
from robattr.formula.scalars import classes

UNIT = float(torch.finfo(torch.float64).eps)
CHUNK = 100  # examples that run together


@dataclass(frozen=True)
class IntervalCertificate:
    """What holds for every x' in the L∞ ball, one number per example (B,).

    spread    B(x) ≥ ‖IG(x, x')‖₁, IG of the loss of y along the straight line, exact or by any rule with weights ≥ 0
    gradient  G(x) ≥ ‖∇ℓ(x')‖₁                loss      L(x) ≥ ℓ(x')
    answer    whether every x' is classified as y
    """

    eps: float
    spread: Tensor
    gradient: Tensor
    loss: Tensor
    answer: Tensor


def interval_bounds(
    model: nn.Module, x: Tensor, y: Tensor, eps: float, *, bounds: Bounds | None = (0.0, 1.0), chunk: int = CHUNK
) -> IntervalCertificate:
    """Bounds over ‖x' − x‖∞ ≤ ε within `bounds`, in float64; `chunk` examples run together.

    Refuses networks with a layer that has no rule, such as a max-pool, and says which. With ε the width of `bounds`,
    `gradient` is a bound for all valid inputs: a certificate close to ε times that says nothing about x.
    """
    _check(model, x, y, bounds)
    ball, parts = LinfBall(eps, bounds), []
    with second_order(model), torch.no_grad():
        net = _in_double(model)
        for rows, labels in zip(x.double().split(chunk), classes(y).split(chunk), strict=True):
            found, clean = (enclose(net, rows, labels, each, unit=UNIT) for each in (ball, LinfBall(0.0, None)))
            spread = found.spread()
            loss = torch.minimum(found.loss(), (clean.loss() + spread) * (1 + UNIT))
            wrong = found.margins.range.high.scatter(1, labels[:, None], -torch.inf).amax(1)
            parts.append((spread, found.norm(), loss, (wrong < 0) | (loss < log(2))))
    return IntervalCertificate(eps, *(torch.cat(each) for each in zip(*parts, strict=True)))


def attacked_spread(
    model: nn.Module, x: Tensor, y: Tensor, eps: float, *, bounds: Bounds | None = (0.0, 1.0), seed: int = 0
) -> Tensor:
    """(B,) the largest ‖IG(x, x')‖₁ that PGD finds in the ball, with five midpoints: what B(x) cannot be below.

    The first run starts where PGD on the loss ends: ‖IG(x, x')‖₁ ≥ ℓ(x') − ℓ(x), by completeness. The others start at
    random, from where the signs of x' − x hardly change any more.
    """
    _check(model, x, y, bounds)
    ball, size = LinfBall(eps, bounds), l1 @ IG(of=cross_entropy, rule=midpoint(5))
    generator = torch.Generator().manual_seed(seed)
    by = Best(PGD(20, eps / 8), 2)

    def rand(z: Tensor) -> Tensor:
        return torch.rand(z.shape, generator=generator, dtype=z.dtype).to(z.device)

    def largest(net: Bound, rows: Tensor, labels: Tensor) -> Tensor:
        highest = maximise(by.ascent, lambda z: cross_entropy(net, z, labels), rows, ball, rand=rand)
        worst = maximise(by, lambda z: size(net, rows, z, labels), rows, ball, start=highest, rand=rand)
        with torch.no_grad():
            return size(net, rows, worst, labels)

    with second_order(model):
        net = bind(model).detach()
        found = [largest(net, *part) for part in zip(x.split(CHUNK), y.split(CHUNK), strict=True)]
    return torch.cat(found)


def measure_intervals(
    model: nn.Module, x: Tensor, y: Tensor, eps: float, *, bounds: Bounds = (0.0, 1.0), seed: int = 0
) -> dict[str, list[float]]:
    """Certificates beside what they are to be compared with, a list per key with one number per example.

    correct     whether x is classified as y          answer      whether every x' of the ball is
    bound       B(x)                                  attacked    the largest ‖IG(x, x')‖₁ that PGD finds
    clean       ε‖∇ℓ(x)‖₁, without a ball             uninformed  ε·Σ_i max |∂ℓ/∂x_i| over all valid inputs
    """
    found, everything = interval_bounds(model, x, y, eps, bounds=bounds), bounds[1] - bounds[0]
    with torch.no_grad(), second_order(model):
        correct = torch.cat([model(part).argmax(1) for part in x.split(500)]) == y
    each = {
        "correct": correct,
        "answer": found.answer,
        "bound": found.spread,
        "attacked": attacked_spread(model, x, y, eps, bounds=bounds, seed=seed),
        "clean": eps * interval_bounds(model, x, y, 0.0, bounds=bounds).gradient,
        "uninformed": eps * interval_bounds(model, x, y, everything, bounds=bounds).gradient,
    }
    return {key: [float(f"{value:.6g}") for value in values.tolist()] for key, values in each.items()}


def _in_double(model: nn.Module) -> Bound:
    """The network with its weights and buffers in float64, which changes none of them."""
    net = bind(model).detach()
    buffers = {name: b.double() if b.is_floating_point() else b for name, b in net.buffers.items()}
    return net.with_parameters({name: p.double() for name, p in net.parameters.items()}, buffers)


def _check(model: nn.Module, x: Tensor, y: Tensor, bounds: Bounds | None) -> None:
    check_model(model)
    check_batch(model, x, y)
    check_bounds(x, bounds)
