"""The attacks of a protocol and the scores they are measured by."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from torch import nn

from robattr.attacks.ifia import IFIA, Measure
from robattr.attacks.maps import AttributionMap
from robattr.attacks.pgd import PGDAttack
from robattr.evaluation.protocol import Protocol
from robattr.formula.scalars import margin
from robattr.metrics import cosine, kendall, mass_center_displacement, spearman, ssim, topk_intersection

NOISE_TRIES = 10


def measures(protocol: Protocol, *, images: bool) -> dict[str, Measure]:
    """The scores of a (clean, perturbed) pair of maps, 1 = equal; the first, Kendall, selects the iterate.

    The score of the mass centre is minus its displacement in pixels.
    """
    plain: dict[str, Measure] = {
        "kendall": kendall,
        "topk": partial(topk_intersection, k=protocol.eval_k),
        "spearman": spearman,
        "cosine": cosine,
    }
    if not images:
        return plain
    return {**plain, "ssim": ssim, "mass_center": lambda a, b: -mass_center_displacement(a, b)}


def prediction_attacks(protocol: Protocol, model: nn.Module) -> list[PGDAttack]:
    """The attacks behind Adv Acc, with the gradients of `model`; a robust example withstands all of them."""
    p = protocol
    base = PGDAttack(model, p.eps, p.pgd_alpha, p.pgd_steps, bounds=p.bounds, seed=p.seed)
    if not p.strict:
        return [base]
    restarts = sum(n for _, n in p.sweep)
    return [base, replace(base, loss=margin, adaptive=True, best=True, restarts=restarts)]


def attribution_attacks(
    protocol: Protocol,
    model: nn.Module,
    map: AttributionMap,
    *,
    images: bool,
    source: nn.Module | None = None,
    batch: int | None = None,
) -> list[IFIA]:
    """The attacks behind the attribution columns; with `batch`, compiled for that many examples.

    The paper's attack is the first in both protocols, with the same starts. So the candidates of `strict` include those
    of `paper`, and its scores cannot be higher.
    """
    p = protocol
    scores = measures(p, images=images)
    base = IFIA(
        model,
        p.eps,
        p.alpha,
        p.steps,
        k=p.k,
        restarts=p.repeats,
        map=map,
        bounds=p.bounds,
        source=source,
        measures=scores if p.strict else {name: scores[name] for name in ("kendall", "topk")},
        seed=p.seed,
        batch=batch,
    )
    harder = replace(base, start="ball", adaptive=True, keep=p.keep, relative=p.relative)
    sweep = enumerate(p.sweep, start=1)
    return [base, *(replace(harder, beta=beta, restarts=n, seed=p.seed + i) for i, (beta, n) in sweep)]


def noise_control(protocol: Protocol, model: nn.Module, map: AttributionMap) -> IFIA:
    """Random sign noise of the same ε, the worst of ten draws: a baseline that every attack should beat."""
    p = protocol
    scores: dict[str, Measure] = {"kendall": kendall, "topk": partial(topk_intersection, k=p.eval_k)}
    return IFIA(model, p.eps, p.eps, NOISE_TRIES, kind="random", map=map, bounds=p.bounds, measures=scores, seed=p.seed)
