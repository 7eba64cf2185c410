"""A few examples to look at: the image, the walk of the attack, and the maps along it.

Arrays of the file, for G examples and T iterates: id, label (G,); image (G, C, H, W) and perturbed (G, T, C, H, W)
uint8 over the pixel range, C = 1 or 3 (of other images the first three channels, or the first); before (G, H, W), after
(G, T, H, W) float16 maps of mean 1; topk, kendall (G, T); kept (G, T) bool: the prediction held; iterations (T,).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from robattr.attacks.ifia import IFIA
from robattr.attacks.per_example_rng import Row
from robattr.engine.batch_size import rows_that_fit
from robattr.evaluation.diagnostics import curve_points
from robattr.evaluation.protocol import Protocol
from robattr.formula.network import second_order
from robattr.metrics import kendall, topk_intersection

FIRST, WORST, TOGETHER = 24, 4, 8  # examples shown, of both kinds; and the fewest walked at once

ENDING = "-gallery.npz"

Record = Mapping[str, Any]
Arrays = dict[str, np.ndarray[Any, Any]]


def beside(path: Path) -> Path:
    """Where the gallery of an evaluation lies whose records or summary is `path`."""
    return path.with_name(f"{path.stem}{ENDING}")


def choose(records: Sequence[Record], first: int = FIRST, worst: int = WORST) -> list[Record]:
    """The records to show: of the first examples all that have a walk, of the others the most disturbed.

    The first are the same examples for every model, so that models can be laid side by side.
    """
    early = [r for r in records[:first] if r["kept"]]
    late = sorted((r for r in records[first:] if r["kept"]), key=lambda r: (r["kendall"], r["id"]))
    return early + late[:worst]


def walk(attacks: Sequence[IFIA], x: Tensor, y: Tensor, records: Sequence[Record], *, protocol: Protocol) -> Arrays:
    """The arrays of the file for examples x, y with those records: the walk that found each one's score, again.

    At x itself the direction may be rounding alone (where the k pixels are all that have any attribution, J is at its
    largest, 1), and a walk that began with compiled passes may stand still with eager ones: then it is shown from one
    random step aside, as the next restart begins.
    """
    parts, order = [], []
    for number, attack in enumerate(attacks):
        chosen = [b for b, record in enumerate(records) if record["attack"] == number]
        together = max(TOGETHER, rows_that_fit(attack.model, x, passes=attack.map.nodes))
        for start in range(0, len(chosen), together):
            at = chosen[start : start + together]
            rows = [(int(records[b]["id"]), int(records[b]["repeat"])) for b in at]
            part, still = _frames(attack, x[at], y[at], rows, protocol=protocol)
            if stuck := [b for b in range(len(at)) if still[b]]:
                aside = [(rows[b][0], rows[b][1] + 1) for b in stuck]
                again, _ = _frames(attack, x[at][stuck], y[at][stuck], aside, protocol=protocol)
                for key, values in again.items():
                    part[key][stuck] = values
            parts.append(part)
            order += at
    back = np.argsort(order)
    arrays = {key: np.concatenate([part[key] for part in parts])[back] for key in parts[0]}
    named = {key: np.array([record[key] for record in records]) for key in ("id", "label")}
    return {**named, **arrays, "iterations": np.array(curve_points(protocol.steps))}


def _frames(
    attack: IFIA, x: Tensor, y: Tensor, rows: Sequence[Row], *, protocol: Protocol
) -> tuple[Arrays, list[bool]]:
    """The walk of one attack from the starts of `rows`, at the points of the curve; and who never left x."""
    attack = attack.shortened() if attack.can_shorten(x).all() else attack
    points = curve_points(attack.steps)
    with second_order(attack.model):
        before, label = attack.seen(x, y)
        steps = enumerate(attack.iterates(x, y, before, label, start=attack.starts(x, rows), rows=rows), start=1)
        frames = [step for t, step in steps if t in points]
    after = [step.map for step in frames]
    still = (frames[-1].x == x).flatten(1).all(dim=1).tolist()
    arrays = {
        "image": _bytes(x, protocol.bounds),
        "perturbed": np.stack([_bytes(step.x, protocol.bounds) for step in frames], axis=1),
        "before": _array(before.half()),
        "after": np.stack([_array(map.half()) for map in after], axis=1),
        "topk": np.stack([_array(topk_intersection(before, map, protocol.eval_k)) for map in after], axis=1),
        "kendall": np.stack([_array(kendall(before, map)) for map in after], axis=1),
        "kept": np.stack([_array(step.keeps) for step in frames], axis=1),
    }
    return arrays, still


def save(path: Path, arrays: Arrays) -> None:
    """Write the file in one step."""
    draft = path.with_name(f"{path.stem}.tmp.npz")
    np.savez_compressed(draft, allow_pickle=False, **arrays)
    draft.replace(path)


def _bytes(x: Tensor, bounds: tuple[float, float]) -> np.ndarray[Any, Any]:
    low, high = bounds
    x = x[:, : 3 if x.shape[1] >= 3 else 1]  # what a screen has: grey, or red, green and blue
    return _array(((x - low) * (255 / (high - low))).round().clamp(0, 255).byte())


def _array(t: Tensor) -> np.ndarray[Any, Any]:
    array: np.ndarray[Any, Any] = t.detach().cpu().numpy()
    return array
