"""Faithfulness of the clean and the attacked maps of a batch: forward passes of the network, and one attribution.

Every example is measured by itself, in passes of a fixed size and with random numbers of its own: the scores do not
depend on the batch, but for the rounding of the maps. An example costs 124 forward passes; the paper's attack on IG
maps costs 60,000 gradients, half of them of second order.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from robattr.attacks import per_example_rng
from robattr.attacks.maps import AttributionMap, constant_along_ray, in_parts, saliency
from robattr.engine.batch_size import rows_that_fit
from robattr.evaluation.scores import AREAS, GAINS
from robattr.formula.network import bind, second_order
from robattr.metrics.faithfulness import area, centre_first, class_cosine, edges, infidelity, pixel_counts, ranks

LEVELS = 10  # intervals of the insertion and deletion curves
WINDOWS = 32  # random windows of the infidelity
WINDOW = 0.02  # their share of the pixels
PASS = 128  # images in one forward pass, all of one example
SAME_CLASS = 64  # examples whose maps are compared with each other


def faithfulness(
    map: AttributionMap,
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    clean: Tensor,
    attacked: Tensor,
    ids: Sequence[int],
    seed: int,
) -> dict[str, Tensor]:
    """AREAS, GAINS and infidelity of examples whose maps are `clean`, and `attacked` under attack: (B,) float64 each.

    The attacked map orders the pixels of the clean image. Inputs that are not images have no edges to compare with.
    """
    rows = [(i,) for i in ids]
    orders = {
        "": clean,
        "_attacked": attacked,
        "_random": per_example_rng.uniform(clean, rows, seed, 11),
        "_constant": centre_first(clean),
        **({"_edges": edges(x)} if x.dim() == 4 else {}),
    }
    rank = torch.stack([ranks(a) for a in orders.values()], dim=1)  # (B, orders, n)
    counts = pixel_counts(rank.shape[2], LEVELS)
    cut = windows(clean, rows, seed, 12, images=x.dim() == 4)
    size = min(PASS, rows_that_fit(model, x, passes=1))
    each = [
        _outputs(model, x[b], y[b], _removals(rank[b], counts, cut[b]).view(-1, *clean.shape[1:]), size=size)
        for b in range(len(x))
    ]
    probability, logit = (torch.stack(of) for of in zip(*each, strict=True))
    whole, black = probability[:, :1], probability[:, 1:2]
    curves = probability[:, 2:-WINDOWS].view(len(x), 2, len(orders), -1)
    areas = {}
    for at, name in enumerate(orders):
        areas[f"insertion{name}"] = area(torch.cat([black, curves[:, 0, at], whole], dim=1), counts)
        areas[f"deletion{name}"] = area(torch.cat([whole, curves[:, 1, at], black], dim=1), counts)
    found = {name: areas[name] for name in AREAS}
    found |= {name: areas[of] - areas[control] for name, (of, control) in GAINS.items() if control in areas}
    effect = contributions(map, model, x, y).flatten(1)
    predicted = torch.einsum("bwn,bn->bw", cut.to(effect), effect)
    found["infidelity"] = infidelity(predicted, logit[:, :1] - logit[:, -WINDOWS:])
    return found


def contributions(map: AttributionMap, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """What each pixel adds to the logit by the attribution, up to one factor per example: the shape of the map.

    A slope (a gradient) is multiplied by x. Channels are summed.
    """
    with second_order(model), torch.no_grad():
        net = bind(model).detach()
        short = constant_along_ray(map, model, x)  # there, IG is gradient × input up to a factor
        parts, order = [], []
        for of, group in ((map.along_ray or map, short.nonzero()[:, 0]), (map, (~short).nonzero()[:, 0])):
            for at in group.split(rows_that_fit(model, x, passes=of.together)) if len(group) else ():
                a = (of.effect or of.of)(net, x[at], y[at])
                parts.append(_effect(a, x[at] if of.slope else None, images=x.dim() == 4))
                order.append(at)
        return torch.cat(parts)[torch.cat(order).argsort()]


def input_dependence(map: AttributionMap, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The same-class cosine of the maps of at most SAME_CLASS examples: 1 where the map is constant."""
    x, y = x[:SAME_CLASS], y[:SAME_CLASS]
    return class_cosine(in_parts(partial(saliency, map, model), map, model, x, y), y)


def windows(maps: Tensor, rows: Sequence[per_example_rng.Row], *keys: int, images: bool) -> Tensor:
    """(B, WINDOWS, n) bool: random squares of an image, random subsets of any other input."""
    B, n = len(maps), maps[0].numel()
    if not images:
        drawn = per_example_rng.uniform(maps.new_empty(B, WINDOWS, n, dtype=torch.float64), rows, *keys)
        return drawn.argsort(dim=2).argsort(dim=2) < max(1, round(WINDOW * n))
    drawn = per_example_rng.uniform(maps.new_empty(B, WINDOWS, 2, dtype=torch.float64), rows, *keys)
    side = min(*maps.shape[1:], max(1, round((WINDOW * n) ** 0.5)))
    inside = []
    for axis, length in enumerate(maps.shape[1:]):
        first = (drawn[..., axis, None] * (length - side + 1)).floor()
        place = torch.arange(length, device=maps.device)
        inside.append((place >= first) & (place < first + side))
    squares: Tensor = inside[0][..., :, None] & inside[1][..., None, :]
    return squares.flatten(2)


def _removals(rank: Tensor, counts: Sequence[int], cut: Tensor) -> Tensor:
    """(M, n) bool, the removed pixels of each image: none, all, insertion, deletion (orders × levels), windows."""
    ends = torch.tensor([[False], [True]], device=rank.device).expand(2, rank.shape[1])
    first = rank[:, None, :] < torch.tensor(counts[1:-1], device=rank.device)[:, None]
    return torch.cat([ends, ~first.flatten(0, 1), first.flatten(0, 1), cut])


def _outputs(model: nn.Module, x: Tensor, y: Tensor, removed: Tensor, *, size: int) -> tuple[Tensor, Tensor]:
    """(M,) p_y and z_y of one example x without the pixels of each mask."""
    with second_order(model), torch.no_grad():
        logits = torch.cat([model(torch.where(_like(mask, x[None]), 0, x)) for mask in removed.split(size)])
    return logits.softmax(dim=1)[:, y], logits[:, y]


def _effect(a: Tensor, x: Tensor | None, *, images: bool) -> Tensor:
    """The attribution, times x where it is a slope, summed over the channels, or over the features of a token."""
    whole = a if x is None else _like(a, x) * x
    if images:
        return whole.sum(dim=1) if whole.dim() == 4 else whole
    return whole if whole.dim() == a.dim() else whole.flatten(a.dim()).sum(dim=-1)


def _like(a: Tensor, b: Tensor) -> Tensor:
    """`a` broadcastable with `b`: maps (B, H, W) with images (B, C, H, W), one value per token with embeddings."""
    if a.dim() >= b.dim():
        return a
    return a[:, None] if b.dim() == 4 else a.view(*a.shape, *(1,) * (b.dim() - a.dim()))
