"""The named objectives, each a composition of the one formula. Read next to the paper, sections 3 and 4.

    ρ(x, y; θ) = ℓ(x, y; θ) + λ · max_{x' ∈ N(x, ε)} s(IG_h^{ℓ_y}(x, x'; r))

Common arguments: `weight` λ, `loss` ℓ, minimised at x and attributed, `within` N(x, ε), `by` the adversary, m the nodes
of the gradient step, m_attack those of the attack step; `rule` any family of rules (`midpoint`, `right` as in the
reference code, `left` as in the paper's text, `gauss_legendre`); `chunk` how many nodes run together (None for all).
"""

from __future__ import annotations

from robattr.errors import InvalidInput
from robattr.formula.ascent import Ascent
from robattr.formula.attribution import IG
from robattr.formula.change import Change
from robattr.formula.layers import Layer, at_input, at_output
from robattr.formula.neighbourhoods import Everywhere, LinfBall, LpBall, Neighbourhood
from robattr.formula.objective import Distributional, Robust
from robattr.formula.quadrature import Rules, left, midpoint
from robattr.formula.scalars import Scalar, cross_entropy
from robattr.formula.sizes import l1, power, total


def shift(of: Scalar = cross_entropy) -> Change:
    """sum(IG) = ℓ(x') − ℓ(x), exactly: by completeness it is the attribution at the output (proposition 1)."""
    return total @ IG(of=of, at=at_output)


def spread(
    m: int,
    *,
    of: Scalar = cross_entropy,
    at: Layer = at_input,
    rule: Rules = midpoint,
    chunk: int | None = None,
) -> Change:
    """‖IG_h(x, x')‖₁ with m nodes."""
    if not callable(rule):
        raise InvalidInput(f"expected a family of rules such as midpoint, which m makes a rule of, got {rule!r}")
    return l1 @ IG(of=of, at=at, rule=rule(m), chunk=chunk)


def natural(*, loss: Scalar = cross_entropy) -> Robust:
    """ρ = ℓ(x): no change is punished."""
    return Robust(loss=loss)


def madry(within: Neighbourhood, by: Ascent, *, loss: Scalar = cross_entropy) -> Robust:
    """λ = 1, s = sum: ρ = max_{x'} ℓ(x') (proposition 1)."""
    return Robust(change=shift(loss), within=within, by=by, loss=loss)


def ig_norm(
    weight: float,
    within: Neighbourhood,
    by: Ascent,
    m: int = 50,
    m_attack: int = 10,
    *,
    at: Layer = at_input,
    rule: Rules = midpoint,
    chunk: int | None = None,
    loss: Scalar = cross_entropy,
) -> Robust:
    """s = ‖·‖₁: ρ = ℓ(x) + λ · max_{x'} ‖IG(x, x')‖₁ (section 4)."""
    return Robust(
        change=spread(m, of=loss, at=at, rule=rule, chunk=chunk),
        attacked=spread(m_attack, of=loss, at=at, rule=rule, chunk=chunk),
        within=within,
        by=by,
        weight=weight,
        loss=loss,
    )


def ig_sum_norm(
    beta: float,
    within: Neighbourhood,
    by: Ascent,
    m: int = 50,
    m_attack: int = 10,
    *,
    at: Layer = at_input,
    rule: Rules = midpoint,
    chunk: int | None = None,
    loss: Scalar = cross_entropy,
) -> Robust:
    """λ = 1, s = sum + β‖·‖₁: ρ = max_{x'} { ℓ(x') + β‖IG(x, x')‖₁ } (section 4)."""
    if not 0.0 <= beta < float("inf"):
        raise InvalidInput(f"ig_sum_norm expects a finite β ≥ 0, got {beta!r}")
    return Robust(
        change=shift(loss) + beta * spread(m, of=loss, at=at, rule=rule, chunk=chunk),
        attacked=shift(loss) + beta * spread(m_attack, of=loss, at=at, rule=rule, chunk=chunk),
        within=within,
        by=by,
        loss=loss,
    )


def input_gradient(
    weight: float, q: float, within: LinfBall | LpBall, by: Ascent, *, loss: Scalar = cross_entropy
) -> Robust:
    """s = ‖·‖₁^q, one left node, λ = weight/ε^q: ρ = ℓ(x) + weight · ‖∇ℓ(x)‖_q^q (proposition 2).

    Exact where `within` is the ball of the dual p, 1/p + 1/q = 1: `LinfBall` for q = 1, `L2Ball` for q = 2, without
    bounds: the network is differentiated at x alone, and x' only measures that gradient. One step far beyond the ball,
    `PGD(1, 1e4 * ε)`, is brought back to the maximiser; many short ones stay below the maximum for q > 1.
    """
    if not 1.0 <= q < float("inf"):
        raise InvalidInput(f"input_gradient expects a finite q ≥ 1, got {q!r}")
    if not (isinstance(within, LinfBall | LpBall) and within.radius > 0.0):
        raise InvalidInput(f"input_gradient expects a ball of positive radius, got {within!r}")
    return Robust(
        change=power(l1, q) @ IG(of=loss, rule=left(1)),
        within=within,
        by=by,
        weight=weight / within.radius**q,
        loss=loss,
    )


def loss_output(within: Neighbourhood, by: Ascent, *, loss: Scalar = cross_entropy) -> Robust:
    """λ = 1, s = ‖·‖₁, h = ℓ_y: ρ = ℓ(x) + max_{x'} |ℓ(x') − ℓ(x)| (proposition 3)."""
    return Robust(change=l1 @ IG(of=loss, at=at_output), within=within, by=by, loss=loss)


def wasserstein(
    change: Change,
    gamma: float,
    cost: Change,
    by: Ascent,
    weight: float = 1.0,
    *,
    within: Neighbourhood | None = None,
    loss: Scalar = cross_entropy,
) -> Robust:
    """ρ = ℓ(z) + λ · sup_{z'} { d(z, z') − γ c(z, z') } (theorem 1).

    `shift()` as the change gives the prediction robustness of Sinha et al. (proposition 4), `spread(m)` the attribution
    form.
    """
    if not 0.0 <= gamma < float("inf"):
        raise InvalidInput(f"wasserstein expects a finite γ ≥ 0, got {gamma!r}")
    return Robust(change=change - gamma * cost, within=within or Everywhere(), by=by, weight=weight, loss=loss)


def distributional(
    change: Change,
    budget: float,
    cost: Change,
    by: Ascent,
    weight: float = 1.0,
    *,
    within: Neighbourhood | None = None,
    loss: Scalar = cross_entropy,
    rate: float = 0.1,
) -> Distributional:
    """E[ℓ] + λ · sup { E[d(Z, Z')] : E[c(Z, Z')] ≤ budget }, with γ found by dual ascent (theorem 2 and its lemma)."""
    return Distributional(
        change=change,
        cost=cost,
        budget=budget,
        by=by,
        weight=weight,
        within=within or Everywhere(),
        loss=loss,
        rate=rate,
    )
