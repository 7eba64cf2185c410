"""A few examples to look at: the image, the walk of the attack, and the maps along it.

Arrays of the file, for G examples and T iterates: id, label (G,); image (G, C, H, W) and perturbed (G, T, C, H, W)
uint8 over the pixel range; before (G, H, W), after (G, T, H, W) float16 maps of mean 1; topk, kendall (G, T); kept (G, T)
bool: the prediction held; iterations (T,).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from robattr.evaluate.agreement import kendall, topk_intersection
from robattr.evaluate.diagnostics import curve_points
from robattr.evaluate.maps import Saliency, saliency
from robattr.evaluate.measure import attribution_attacks
from robattr.evaluate.protocol import Protocol
from robattr.formula.network import second_order

SIZE = 8


def choose(records: Sequence[Mapping[str, Any]], size: int = SIZE) -> list[Mapping[str, Any]]:
    """The records to show, in turn one of the first and one of the most disturbed examples."""
    scored = [r for r in records if r["kept"]]
    worst = sorted(scored, key=lambda r: (r["kendall"], r["id"]))
    mixed = {r["id"]: r for pair in zip(scored, worst, strict=True) for r in pair}
    return list(mixed.values())[:size]


def walk(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    records: Sequence[Mapping[str, Any]],
    *,
    protocol: Protocol,
    map: Saliency,
) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of the file for examples x, y with those records: the walk that found each one's score, again."""
    attacks = attribution_attacks(protocol, model, map, images=x.dim() == 4)
    shown: list[dict[str, Any]] = []
    with second_order(model):
        for b, record in enumerate(records):
            one, label, row = x[b : b + 1], y[b : b + 1], (int(record["id"]), int(record["repeat"]))
            attack, before = attacks[record["attack"]], saliency(map, model, one, label)
            attack = attack.shortened() if attack.can_shorten(one).all() else attack
            points, start = set(curve_points(attack.steps)), attack.starts(one, [row])
            steps = enumerate(attack.iterates(one, label, before, start=start, rows=[row]), start=1)
            frames = [step for t, step in steps if t in points]
            after = torch.cat([step.map for step in frames])
            against = before.expand_as(after)
            shown.append(
                {
                    "id": record["id"],
                    "label": record["label"],
                    "image": _bytes(one, protocol.bounds)[0],
                    "perturbed": np.stack([_bytes(step.x, protocol.bounds)[0] for step in frames]),
                    "before": _half(before)[0],
                    "after": _half(after),
                    "topk": topk_intersection(against, after, protocol.eval_k).cpu().numpy(),
                    "kendall": kendall(against, after).cpu().numpy(),
                    "kept": np.array([bool(step.keeps) for step in frames]),
                }
            )
    arrays = {key: np.stack([one[key] for one in shown]) for key in shown[0]}
    return {**arrays, "iterations": np.array(curve_points(protocol.steps))}


def save(path: Path, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Write the file in one step."""
    draft = path.with_name(f"{path.stem}.tmp.npz")
    np.savez_compressed(draft, allow_pickle=False, **arrays)
    draft.replace(path)


def _bytes(x: Tensor, bounds: tuple[float, float]) -> np.ndarray[Any, Any]:
    low, high = bounds
    pixels: np.ndarray[Any, Any] = ((x - low) * (255 / (high - low))).round().clamp(0, 255).byte().cpu().numpy()
    return pixels


def _half(maps: Tensor) -> np.ndarray[Any, Any]:
    half: np.ndarray[Any, Any] = maps.half().cpu().numpy()
    return half
