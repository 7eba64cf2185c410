"""The attacks of a protocol, in order, and the scores that they lower."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from torch import nn

from robattr.attacks.ifia import IFIA
from robattr.attacks.losses import IMAGES_ONLY
from robattr.attacks.maps import AttributionMap
from robattr.attacks.pgd import PGDAttack
from robattr.attacks.result import Measure
from robattr.evaluation.protocol import ROUNDS, Attack, Protocol
from robattr.formula.scalars import margin
from robattr.metrics import cosine, kendall, mass_center_displacement, spearman, ssim, topk_intersection

NOISE_TRIES = 10
QUERIES = 50  # of the search without gradients
MARGIN_RESTARTS = 3
EVERY = 4  # iterates of the strict attacks per scored one, where the map has no coarse version


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
    return [base, replace(base, loss=margin, adaptive=True, best=True, restarts=MARGIN_RESTARTS)]


def schedule(protocol: Protocol, *, images: bool) -> list[Attack]:
    """The attacks after the paper's that apply to the data, in order."""
    return [a for a in protocol.attacks if images or a.kind not in IMAGES_ONLY]


def attribution_attacks(
    protocol: Protocol,
    model: nn.Module,
    map: AttributionMap,
    *,
    images: bool,
    source: nn.Module | None = None,
    batch: int | None = None,
    directions: str | None = None,
    frames: int = 0,
    shared: bool = False,
) -> list[IFIA]:
    """The attacks behind the attribution columns; with `batch`, compiled for that many examples.

    The paper's attack is the first in both protocols, with the same starts. So the candidates of `strict` include those
    of `paper`, and its scores cannot be higher; `shared`: it has the measures of `strict` in both, so that one run of
    it, and of the noise, serves them. All differentiate the map's coarse version; scores are of the map.
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
        window=p.window,
        source=source,
        measures=scores if p.strict or shared else {name: scores[name] for name in ("kendall", "topk")},
        seed=p.seed,
        frames=frames,
        batch=batch,
        directions=directions,
    )
    harder = replace(
        base,
        map=replace(map, guide=map.guide or map.coarse),
        k=p.eval_k,
        restarts=1,
        start="ball",
        adaptive=True,
        relative=True,
        keep=p.keep,
    )
    return [base, *(_attack(harder, attack) for attack in schedule(p, images=images))]


def noise_control(paper: IFIA) -> IFIA:
    """Random sign noise of the same ε, the worst of ten draws: a baseline that every attack should beat."""
    return replace(paper, kind="random", alpha=paper.eps, steps=NOISE_TRIES, restarts=1, window=1, source=None)


def _attack(harder: IFIA, attack: Attack) -> IFIA:
    """An attack of the schedule; each round has its own random starts."""
    if attack.kind == "random":  # the control, counted among the attacks
        return replace(harder, kind="random", alpha=harder.eps, steps=NOISE_TRIES, keep=0.0, window=1)
    seeded = replace(harder, kind=attack.kind, seed=(ROUNDS + 1) * harder.seed + 1 + attack.round)
    if attack.kind == "score":
        return replace(seeded, steps=QUERIES, keep=0.0)
    beta = (attack.betas[0], attack.betas[-1]) if attack.sharpens else attack.betas[0]
    return replace(seeded, beta=beta, steps=max(1, round(attack.share * harder.steps)), every=EVERY, aim=attack.aim)
