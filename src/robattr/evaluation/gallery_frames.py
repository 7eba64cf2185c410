"""The attack run again for a gallery: its iterates and the map at each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from robattr.attacks.ifia import IFIA
from robattr.attacks.per_example_rng import Row
from robattr.attacks.result import padded
from robattr.evaluation.diagnostics import spread
from robattr.evaluation.gallery import Array, Gallery, Record
from robattr.evaluation.protocol import Protocol
from robattr.evaluation.scores import curve_points
from robattr.formula.network import second_order
from robattr.metrics import kendall, topk_intersection


def frames(attacks: Sequence[IFIA], x: Tensor, y: Tensor, records: Sequence[Record], *, protocol: Protocol) -> Gallery:
    """The gallery of the examples x of `records`: the attack that gave each its score, run again.

    At x the gradient may be rounding alone (if the k pixels carry all the attribution, J is at its maximum), and
    an attack that moved with compiled passes may not move with eager ones. Such an example is shown from the start of
    the next restart, one random step away.
    """
    parts, order = [], []
    for number, attack in enumerate(attacks):
        chosen = [b for b, record in enumerate(records) if record["attack"] == number]
        if attack.batch and 2 * len(chosen) < attack.rows(x):  # most rows would be padding
            attack = replace(attack, batch=None)
        size = attack.rows(x)
        for first in range(0, len(chosen), size):
            at = chosen[first : first + size]
            rows = [(int(records[b]["id"]), int(records[b]["repeat"])) for b in at]
            part, unmoved = _frames(attack, x[at], y[at], rows, size=size, protocol=protocol)
            if stuck := [b for b in range(len(at)) if unmoved[b]]:
                next_restart = [(rows[b][0], rows[b][1] + 1) for b in stuck]
                again, _ = _frames(attack, x[at][stuck], y[at][stuck], next_restart, size=size, protocol=protocol)
                for key, values in again.items():
                    part[key][stuck] = values
            parts.append(part)
            order += at
    back = np.argsort(order)
    arrays = {key: np.concatenate([part[key] for part in parts])[back] for key in parts[0]}
    named = {key: np.array([record[key] for record in records]) for key in ("id", "label")}
    return Gallery(**named, **arrays, iterations=np.array(curve_points(protocol.steps)))


def _frames(
    attack: IFIA, x: Tensor, y: Tensor, rows: Sequence[Row], *, size: int, protocol: Protocol
) -> tuple[dict[str, Array], list[bool]]:
    """The iterates of one attack from the starts of `rows`, at most `size`, and whether the last one is still x."""
    count = len(rows)
    if attack.batch:
        at = padded(torch.arange(count), size)
        x, y, rows = x[at], y[at], [rows[b] for b in at.tolist()]
    attack = attack.shortened() if attack.can_shorten(x).all() else attack
    places = spread(curve_points(protocol.steps), attack.scored)
    with second_order(attack.model):
        before, label = attack.map_and_label(x, y)
        steps = enumerate(attack.iterates(x, y, before, label, start=attack.starts(x, rows), rows=rows))
        found = {place: step for place, step in steps if place in places}
    shown = [found[place] for place in places]
    after = [step.map for step in shown]
    unmoved = (shown[-1].x == x).flatten(1).all(dim=1).tolist()
    arrays = {
        "image": _bytes(x, protocol.bounds),
        "perturbed": np.stack([_bytes(step.x, protocol.bounds) for step in shown], axis=1),
        "before": _array(before.half()),
        "after": np.stack([_array(map.half()) for map in after], axis=1),
        "topk": np.stack([_array(topk_intersection(before, map, protocol.eval_k)) for map in after], axis=1),
        "kendall": np.stack([_array(kendall(before, map)) for map in after], axis=1),
        "kept": np.stack([_array(step.kept) for step in shown], axis=1),
    }
    return {key: values[:count] for key, values in arrays.items()}, unmoved[:count]


def _bytes(x: Tensor, bounds: tuple[float, float]) -> Array:
    low, high = bounds
    x = x[:, : 3 if x.shape[1] >= 3 else 1]  # grey or RGB
    return _array(((x - low) * (255 / (high - low))).round().clamp(0, 255).byte())


def _array(t: Tensor) -> Array:
    array: Array = t.detach().cpu().numpy()
    return array
