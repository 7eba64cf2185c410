"""A gallery: for a few examples the image, the iterates of the attack, and the maps at each.

Arrays of the file, for G examples and T iterates: id, label (G,); image (G, C, H, W) and perturbed (G, T, C, H, W)
uint8 over the pixel range, C = 1 or 3 (of other images the first three channels, or the first); before (G, H, W), after
(G, T, H, W) float16 maps of mean 1; topk, kendall (G, T); kept (G, T) bool: same prediction; iterations (T,).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from robattr.attacks.ifia import IFIA
from robattr.attacks.per_example_rng import Row
from robattr.engine.batch_size import rows_that_fit
from robattr.engine.files import write_atomically
from robattr.evaluation.diagnostics import curve_points
from robattr.evaluation.protocol import Protocol
from robattr.formula.network import second_order
from robattr.metrics import kendall, topk_intersection

FIRST, WORST = 24, 4  # examples shown: the first, and the most disturbed of the others
SMALLEST_BATCH = 8
ENDING = "-gallery.npz"

Record = Mapping[str, Any]
Arrays = dict[str, np.ndarray[Any, Any]]


def path_for(path: Path) -> Path:
    """The gallery file beside the records or the summary `path`."""
    return path.with_name(f"{path.stem}{ENDING}")


def choose(records: Sequence[Record], first: int = FIRST, worst: int = WORST) -> list[Record]:
    """The records to show: all attacked examples among the first, the most disturbed ones of the others.

    The first are the same examples for every model, so that models can be compared.
    """
    early = [r for r in records[:first] if r["kept"]]
    late = sorted((r for r in records[first:] if r["kept"]), key=lambda r: (r["kendall"], r["id"]))
    return early + late[:worst]


def frames(attacks: Sequence[IFIA], x: Tensor, y: Tensor, records: Sequence[Record], *, protocol: Protocol) -> Arrays:
    """The arrays of the file: the attack that gave each example its score, run again.

    At x the gradient may be rounding alone (if the k pixels carry all the attribution, J is at its maximum), and
    an attack that moved with compiled passes may not move with eager ones. Such an example is shown from the start of
    the next restart, one random step away.
    """
    parts, order = [], []
    for number, attack in enumerate(attacks):
        chosen = [b for b, record in enumerate(records) if record["attack"] == number]
        size = max(SMALLEST_BATCH, rows_that_fit(attack.model, x, passes=attack.map.nodes))
        for first in range(0, len(chosen), size):
            at = chosen[first : first + size]
            rows = [(int(records[b]["id"]), int(records[b]["repeat"])) for b in at]
            part, unmoved = _frames(attack, x[at], y[at], rows, protocol=protocol)
            if stuck := [b for b in range(len(at)) if unmoved[b]]:
                next_restart = [(rows[b][0], rows[b][1] + 1) for b in stuck]
                again, _ = _frames(attack, x[at][stuck], y[at][stuck], next_restart, protocol=protocol)
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
    """The iterates of one attack from the starts of `rows`, and whether the last one is still x."""
    attack = attack.shortened() if attack.can_shorten(x).all() else attack
    points = curve_points(attack.steps)
    with second_order(attack.model):
        before, label = attack.map_and_label(x, y)
        steps = enumerate(attack.iterates(x, y, before, label, start=attack.starts(x, rows), rows=rows), start=1)
        shown = [step for t, step in steps if t in points]
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
    return arrays, unmoved


def save(path: Path, arrays: Arrays) -> None:
    """Write the file atomically."""
    content = BytesIO()
    np.savez_compressed(content, allow_pickle=False, **arrays)
    write_atomically(path, content.getvalue())


def _bytes(x: Tensor, bounds: tuple[float, float]) -> np.ndarray[Any, Any]:
    low, high = bounds
    x = x[:, : 3 if x.shape[1] >= 3 else 1]  # grey or RGB
    return _array(((x - low) * (255 / (high - low))).round().clamp(0, 255).byte())


def _array(t: Tensor) -> np.ndarray[Any, Any]:
    array: np.ndarray[Any, Any] = t.detach().cpu().numpy()
    return array
