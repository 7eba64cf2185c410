"""The named objectives, each a composition of the one formula. Read next to the paper, sections 3 and 4.

    ρ(x, y; θ) = ℓ(x, y; θ) + λ · max_{x' ∈ N(x, ε)} s(IG_h^{ℓ_y}(x, x'; r))

The second half are methods of other papers: `trades`, `art`, `igr`, `aat`, `adv_aat`, `sarkar`, `ssr`, `lga`, `r2et`,
`curvature`, `interval_bound`.
ℓ(x*) is written ℓ(x) + (ℓ(x*) − ℓ(x)): the clean loss sees the network as it is, the rest sees it in eval mode. Maps
are those of the logit unless a source says otherwise.

Common arguments: `weight` λ, `loss` ℓ, minimised at x and attributed, `within` N(x, ε), `by` the adversary, m the nodes
of the gradient step, m_attack those of the attack step; `rule` any family of rules (`midpoint`, `right` as in the
reference code, `left` as in the paper's text, `gauss_legendre`); `chunk` how many nodes run together (None for all).
"""

from __future__ import annotations

import torch
from torch import Tensor

from robattr.errors import InvalidInput
from robattr.formula.ascent import PGD, Ascent
from robattr.formula.attribution import IG, Attribution
from robattr.formula.bounds import check_box, shift_bound, spread_bound
from robattr.formula.change import Change, clean, combine, frozen, soft_margin
from robattr.formula.checks import check_number
from robattr.formula.curvature import FiniteDifference, HessianVector, gauss_newton
from robattr.formula.distances import Distance, cosine, kl, pearson, rank_margin
from robattr.formula.distributional import Distributional
from robattr.formula.layers import Layer, at_input, at_output
from robattr.formula.maps import BaselineIG, Gradient, Map, logits, magnitude, runner_up, the_input, uniform
from robattr.formula.neighbourhoods import Everywhere, LinfBall, LpBall, Neighbourhood
from robattr.formula.objective import Joint, Robust, averaged
from robattr.formula.quadrature import Rules, left, midpoint
from robattr.formula.scalars import Scalar, cross_entropy, logit, probability, wrong_logit
from robattr.formula.sizes import l1, l2, power, total

NO_STEPS = PGD(0, 0.0)
"""x* is the random start."""

AT_X = LinfBall(0.0, bounds=None)
"""x* is x."""


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
        raise InvalidInput(f"expected a family of rules such as midpoint, got {rule!r}: pass the function without m")
    return l1 @ IG(of=of, at=at, rule=rule(m), chunk=chunk)


def natural(*, loss: Scalar = cross_entropy) -> Robust:
    """ρ = ℓ(x), without a penalty."""
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
    """s = ‖·‖₁: ρ = ℓ(x) + λ · max_{x'} ‖IG(x, x')‖₁ (section 4).

    >>> import torch
    >>> from robattr import PGD, LinfBall
    >>> rho = ig_norm(weight=1.0, within=LinfBall(0.1), by=PGD(steps=3, step_size=0.05), m=5, m_attack=2)
    >>> out = rho(torch.nn.Linear(4, 3), torch.rand(2, 4), torch.tensor([0, 2]))
    >>> out.value.shape, bool((out.value == out.loss + out.penalty).all())
    (torch.Size([2]), True)
    """
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
    check_number("ig_sum_norm expects a finite β", beta)
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
    check_number("wasserstein expects a finite γ", gamma)
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


def trades(beta: float, within: Neighbourhood, by: Ascent, *, loss: Scalar = cross_entropy) -> Robust:
    """ρ = ℓ(x) + β · max_{x'} KL(p(x) ‖ p(x')) (TRADES, Zhang et al. 2019).

    Their attack starts at x + 0.001·N(0, 1); here at a random point of N(x, ε), as in all objectives.
    """
    return Robust(change=kl @ logits, within=within, by=by, weight=beta, loss=loss)


def baseline_ig(m: int, *, rule: Rules = midpoint, chunk: int | None = None) -> BaselineIG:
    """IG of the logit from black with m nodes: the map that `igr` and `aat` protect by default."""
    return BaselineIG(IG(of=logit, rule=rule(m), chunk=chunk))


def igr(
    weight: float, within: Neighbourhood, by: Ascent, a: Attribution | None = None, *, loss: Scalar = cross_entropy
) -> Robust:
    """ρ = ℓ(x*) + λ(1 − cos(a(x), a(x*))), x* = argmax ℓ(x') (IGR, 2022): the prediction attack chooses x*.

    `a` is IG from black with 3 nodes by default, as in the public replication, which also takes λ = 1: neither is
    known from the paper. The scalar is the logit, as in the maps that are evaluated; IGR's own is not known to us.
    """
    moved = cosine @ (baseline_ig(3) if a is None else a)
    return Robust(shift(loss) + _weight(weight) * moved, within, by, attacked=shift(loss), loss=loss)


def aat(
    weight: float, within: Neighbourhood, by: Ascent, a: Attribution | None = None, *, loss: Scalar = cross_entropy
) -> Robust:
    """ρ = ℓ(x) + λ · max_{x'} (1 − Pearson(a(x), a(x'))) (AAT of FAR).

    FAR's own settings are not known to us: `a` is IG from black with 5 nodes by default, as in `adv_aat`.
    """
    return Robust(pearson @ (baseline_ig(5) if a is None else a), within, by, weight=weight, loss=loss)


def adv_aat(
    weight: float, within: Neighbourhood, by: Ascent, a: Attribution | None = None, *, loss: Scalar = cross_entropy
) -> Robust:
    """ρ = max_{x'} { ℓ(x') + λ(1 − Pearson(a(x), a(x'))) }: AAT with the loss at x* (AdvAAT of FAR).

    Sources do not say what chooses x*: here the whole expression, as in IG-SUM-NORM.
    """
    moved = pearson @ (baseline_ig(5) if a is None else a)
    return Robust(shift(loss) + _weight(weight) * moved, within, by, loss=loss)


def art(weight: float, within: Neighbourhood, by: Ascent, *, loss: Scalar = cross_entropy) -> Robust:
    """ρ = ℓ(x*) + λ · mean over anchors u ∈ {x, x*} of log(1 + exp(d⁺(u) − d⁻(u))) (ART, ECCV 2020).

    d⁺(u) = max_{z ∈ {x, x*}} 1 − cos(u, ∇f_y(z)),  d⁻(u) = min_{z ∈ {x, x*}} 1 − cos(u, ∇f_i*(z)), i* the best wrong
    class. x* climbs log(1 + exp(d⁺ − d⁻)) at x' alone. The code is followed where the paper is shorter, except that it
    attacks only the 1000 largest entries of ∇f_y, and takes the gradients of a softplus copy of the network (β = 50):
    pass a smooth model. In a network that standardises each image, as the paper's on GTSRB, x is orthogonal to ∇f(x):
    d⁺ and d⁻ are 1 at x' alone, and x* is where the ascent began, up to rounding.
    """
    own, other = Gradient(of=logit), Gradient(of=wrong_logit)
    contrast = (_contrast(own, other, the_input) + _contrast(own, other, clean(the_input))) / 2
    seen = soft_margin(cosine @ (own, the_input), cosine @ (other, the_input))
    return Robust(shift(loss) + _weight(weight) * contrast, within, by, attacked=seen, loss=loss)


def _contrast(own: Map, other: Map, anchor: Attribution) -> Change:
    """log(1 + exp(d⁺ − d⁻)) of one anchor."""
    apart = combine(torch.maximum, cosine @ (own, anchor), cosine @ (clean(own), anchor))
    near = combine(torch.minimum, cosine @ (other, anchor), cosine @ (clean(other), anchor))
    return soft_margin(apart, near)


def sarkar(
    weight: float,
    within: Neighbourhood,
    by: Ascent,
    m: int = 20,
    m_attack: int = 5,
    *,
    rule: Rules = midpoint,
    chunk: int | None = None,
    loss: Scalar = cross_entropy,
) -> Robust:
    """ρ = ℓ(x*) + λ { KL(U ‖ s(b_i*)) − KL(U ‖ s(b_y)) + Σ_i e_i } (Sarkar et al., AAAI 2021), s the softmax.

    b_c is IG of the probability of class c from black to x, i* the best wrong class, and with the change c = −IG^ℓ(x →
    x*): e_i = b_i c_i where b_y and c have one sign, |c_i| elsewhere. x* climbs ℓ(x') + λ‖IG(x, x')‖₁, the attack of
    IG-SUM-NORM: the code uses "RAR's attack", whose β is not separate there. s was not spelled out.
    """
    base = BaselineIG(IG(of=probability, rule=rule(m), chunk=chunk))
    classes = clean(kl @ (runner_up(base), uniform)) - clean(kl @ (base, uniform))
    aligned = sign_aligned @ (IG(of=loss, rule=rule(m), chunk=chunk), clean(base))
    seen = shift(loss) + weight * spread(m_attack, of=loss, rule=rule, chunk=chunk)
    return Robust(shift(loss) + _weight(weight) * (classes + aligned), within, by, attacked=seen, loss=loss)


@Distance
def sign_aligned(path: Tensor, base: Tensor) -> Tensor:
    """Σ_i b_i c_i where b and c = −path have one sign, |c_i| elsewhere."""
    product = -path * base
    return torch.where(product > 0, product, path.abs()).sum(1)


def ssr(alpha: float = 0.3, scale: float = 1.0, *, loss: Scalar = cross_entropy) -> Robust:
    """ρ = ℓ(x) + (αs/(1 − α)) · λ_max(W(diag p − ppᵀ)Wᵀ) at x (SSR, Wang et al. 2020); no attack.

    Their (1 − α)ℓ + αsλ_max, divided by 1 − α. W has the full class gradients; the code averages them over channels.
    Its s is 1e6 in the library and 0.3 in the script: here 1.
    """
    if not 0.0 <= alpha < 1.0:
        raise InvalidInput(f"ssr expects 0 ≤ α < 1, got {alpha!r}")
    return Robust(gauss_newton, AT_X, NO_STEPS, weight=alpha * scale / (1.0 - alpha), loss=loss)


def lga(
    weight_l2: float, weight_cosine: float, within: Neighbourhood, draws: int = 1, *, loss: Scalar = cross_entropy
) -> Robust | Joint:
    """ρ = ℓ(x) + mean over random x' of λ₂‖g(x') − g(x)‖₂² + λ_c(1 − cos(g(x'), g(x)))/2 (LGA, AAAI 2023).

    g is the gradient of the label's logit; g(x) is a constant, as in the code's default. The code draws once per step,
    from U(±4/255): `within=LinfBall(4/255)`. Here x' stays inside the bounds of the neighbourhood.
    """
    g = Gradient(of=logit)
    moved = _weight(weight_l2) * (power(l2, 2) @ (g, frozen(g))) + _weight(weight_cosine) / 2 * (
        cosine @ (g, frozen(g))
    )
    rho = Robust(moved, within, NO_STEPS, loss=loss)
    return rho if draws == 1 else averaged(rho, draws)


def r2et(weight: float, k: int, smoothness: float = 0.0, h: float = 1e-3, *, loss: Scalar = cross_entropy) -> Robust:
    """ρ = ℓ(x) + λ Σ_{(p,q) ∈ P} (a_q − a_p) + μ‖FD(x)‖₂ at x (R2ET, NeurIPS 2024); no attack.

    a = Σ_channels |∇ℓ|, P the pairs of `rank_margin(k)` in the present order of a, FD = (∇ℓ(x + h·sign(∇ℓ)/n) − ∇ℓ)/h
    with n coordinates; `smoothness` is μ, 0 for the form without curvature. λ is a constant here: the code scales it by
    the loss at every step.
    """
    a = magnitude(Gradient(of=loss))
    change = _weight(weight) * (rank_margin(k) @ (a, frozen(a)))
    if smoothness:
        change = change + _weight(smoothness) * (l2 @ FiniteDifference(of=loss, h=h))
    return Robust(change, AT_X, NO_STEPS, loss=loss)


def curvature(weight: float, *, of: Scalar = logit, loss: Scalar = cross_entropy) -> Robust:
    """ρ = ℓ(x) + λ · ‖H(x)v‖₂², H the Hessian of f in x and v random (Dombrowski et al. 2022); no attack.

    v is uniform in ±√3 in each coordinate: unit variance, so that E‖Hv‖₂² = ‖H‖_F² as with their Gaussian v. The logit
    of a ReLU network has H = 0: pass a smooth model, or `of=cross_entropy`.
    """
    ball = LinfBall(3.0**0.5, bounds=None)
    return Robust(power(l2, 2) @ HessianVector(of), ball, NO_STEPS, weight=weight, loss=loss)


def interval_bound(weight: float, within: Neighbourhood, worst_case: float = 0.0) -> Robust:
    """ρ = ℓ(x) + λ · B(x) + κ · S(x): IG-NORM with a certified bound in the place of the maximum; no attack.

    B(x) ≥ max_{x'} ‖IG(x, x')‖₁ bounds the gradient on the whole ball by intervals, forward and backward (Wicker et al.
    2023, who bound the gradient's change). `worst_case` is κ: S(x) ≥ max_{x'} ℓ(x') − ℓ(x) is the worst case of the
    prediction (Gowal et al. 2018), so that (1 − κ)ℓ(x) + κ·(ℓ(x) + S(x)) is their loss. Start with a small ε and let it
    grow (`eps_ramp`). Networks without max-pools; `formula.intervals` lists the layers.
    """
    if not 0.0 <= worst_case <= 1.0:
        raise InvalidInput(f"interval_bound expects 0 ≤ κ ≤ 1, got {worst_case!r}")
    check_box(within)
    bound = _weight(weight) * spread_bound()
    return Robust(bound + worst_case * shift_bound if worst_case else bound, within, NO_STEPS)


def _weight(weight: float) -> float:
    check_number("expected a finite weight λ", weight)
    return weight
