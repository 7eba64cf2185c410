"""The attacks and scores of a protocol, on one batch of examples: one record per example."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, nan

import torch
from torch import Tensor, nn

from robattr.attacks.maps import AttributionMap, orderable, saliency
from robattr.engine import exactly
from robattr.evaluation.diagnostics import completeness_gap, vanishing
from robattr.evaluation.faithfulness import faithfulness
from robattr.evaluation.gallery import Gallery, choose
from robattr.evaluation.gallery_frames import frames
from robattr.evaluation.paper_results import PaperResults
from robattr.evaluation.protocol import Protocol
from robattr.evaluation.records import Record
from robattr.evaluation.resume_checks import label_probability, mass_centres
from robattr.evaluation.scores import AGREEMENT, curve_points
from robattr.evaluation.suite import attribution_attacks, measures, prediction_attacks
from robattr.evaluation.worst_case import WorstCase, worst_case
from robattr.formula.network import second_order
from robattr.metrics import kendall, tie_ceiling, topk_intersection


@dataclass(frozen=True)
class Batch:
    """The records, one per example, and on request the walks of the attack on some of them."""

    records: list[Record]
    gallery: Gallery | None = None


def evaluate_batch(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    ids: Sequence[int],
    protocol: Protocol,
    map: AttributionMap,
    source: nn.Module | None = None,
    batch: int | None = None,
    directions: str | None = None,
    first: int | None = None,
    shared: PaperResults | None = None,
) -> Batch:
    """One record per example; they depend on the examples of the batch and the protocol alone.

    With a `source` the attacks use that net's gradients (a transfer attack). With `batch` the attribution attack is
    compiled for that many examples. `directions`: the precision of its directions. `first`:
    how many of the images a gallery shows as the first of the evaluation. `shared`: where `paper` leaves what its
    attack found for `strict`.
    """
    with second_order(model), torch.no_grad():
        probability, predicted = label_probability(model, x, y)
        withstood = torch.ones_like(predicted, dtype=torch.bool)
        for attack in prediction_attacks(protocol, source or model):
            withstood &= exactly(model)(attack(x, y, ids=ids)).argmax(dim=1) == y
    records: list[Record] = [
        {
            "id": int(ids[b]),
            "label": int(y[b]),
            "predicted": int(predicted[b]),
            "correct": bool(predicted[b] == y[b]),
            "confidence": round(float(probability[b]), 4),
            "adv_correct": bool(withstood[b]),
            "protocol": protocol.name,
            "map": map.name,
            "seed": protocol.seed,
            **dict.fromkeys(AGREEMENT),
            "centre": None,
            "kept": None,
            "excluded": None,
            "diagnostics": {},
        }
        for b in range(len(x))
    ]
    right, shown = (predicted == y).nonzero()[:, 0], None
    if len(right):
        for b, zero in zip(right.tolist(), vanishing(model, x[right], y[right]).tolist(), strict=True):
            records[b]["diagnostics"]["vanishing_loss"] = zero
        clean = saliency(map, model, x[right], y[right])
        usable = orderable(clean)
        for b, ok in zip(right.tolist(), usable.tolist(), strict=True):
            if not ok:
                records[b]["excluded"] = "the clean map is constant or not finite: it has no order to keep"
        right, clean = right[usable], clean[usable]
    if len(right):
        for b, at in zip(right.tolist(), mass_centres(map, model, x[right], y[right], clean=clean), strict=True):
            records[b]["centre"] = at
        names = [int(ids[b]) for b in right.tolist()]
        images, asked = x.dim() == 4, first is not None
        attacks = attribution_attacks(
            protocol, model, map, images=images, source=source, batch=batch, directions=directions,
            frames=len(curve_points(protocol.steps)) if images and asked else 0, shared=shared is not None,
        )  # fmt: skip
        found = worst_case(attacks, x[right], y[right], clean, ids=names, protocol=protocol, shared=shared)
        rows = attribution_scores(found, map, model, x[right], y[right], clean, ids=names, protocol=protocol)
        for b, row in zip(right.tolist(), rows, strict=True):
            records[b].update({**row, "diagnostics": {**records[b]["diagnostics"], **row["diagnostics"]}})
        if found.walk:
            chosen = choose(sorted(records, key=lambda r: int(r["id"])), first or 0)
            places = [names.index(record["id"]) for record in chosen]
            shown = frames(x[right], clean, found.walk, places, chosen, protocol=protocol) if chosen else None
    return Batch(records, shown)


def attribution_scores(
    found: WorstCase,
    map: AttributionMap,
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    clean: Tensor,
    *,
    ids: Sequence[int],
    protocol: Protocol,
) -> list[Record]:
    """The attribution scores of correctly classified examples whose clean maps are `clean`."""
    images = x.dim() == 4
    scores = {name: m(clean, found.map) for name, m in measures(protocol, images=images).items()}
    if protocol.strict:
        scores = dict(found.worst)
    if images:
        scores["mass_center"] = (-scores["mass_center"]).clamp_min(0)  # 0, not the score 1 of a failed attack
    scores.update(_foreground(x, clean, found.map, protocol.eval_k))
    faithful = faithfulness(map, model, x, y, clean=clean, attacked=found.map, ids=ids, seed=protocol.seed)
    scores.update({name: faithful.pop(name) for name in ("insertion_attacked", "attacked_over_constant")})
    if protocol.strict:  # a failed attack has no score; under `paper` it has score 1
        scores = {name: values.masked_fill(~found.kept, nan) for name, values in scores.items()}
    scores |= {f"noise_{name}": values for name, values in found.noise.items()}
    scores |= {"ceiling": tie_ceiling(clean), **faithful}
    gap = completeness_gap(map, model, x, y) if map.complete else torch.full_like(x.flatten(1)[:, 0], nan)
    return [
        {
            **{name: _number(values[b]) for name, values in scores.items()},
            "completeness_gap": _number(gap[b].clamp(max=1)),  # one z_y(x) near z_y(0) must not decide the mean
            "kept": bool(found.kept[b]),
            "attack": int(found.attack[b]),
            "repeat": int(found.restart[b]),
            "iterate": int(found.iterate[b]),
            **found.about(b),
            "diagnostics": {"completeness_gap": _number(gap[b]), **found.diagnostics(b)},
        }
        for b in range(len(x))
    ]


def _foreground(x: Tensor, clean: Tensor, perturbed: Tensor, k: int) -> dict[str, Tensor]:
    """Scores of the perturbed maps on the non-black pixels of x, with k at most half of them.

    IG from black is exactly 0 on black pixels. These ties, most pixels of an MNIST image, keep τ-b below 1 even for a
    map with the same order (`tie_ceiling`).
    """
    mask = (x != 0).any(dim=1) if x.dim() == 4 else x != 0
    if mask.dim() > clean.dim():  # for example one value per token of embeddings (B, tokens, width)
        mask = mask.flatten(clean.dim()).any(dim=-1)
    size = mask.flatten(1).sum(dim=1)
    some = size >= 2
    half = (size // 2).clamp(1, k)
    full = torch.where(some.view(-1, *(1,) * (mask.dim() - 1)), mask, True)
    return {
        "foreground_kendall": kendall(clean, perturbed, mask=full).masked_fill(~some, nan),
        "foreground_topk": topk_intersection(clean, perturbed, half, mask=full).masked_fill(~some, nan),
    }


def _number(value: Tensor) -> float | None:
    number = float(value)
    return number if isfinite(number) else None
