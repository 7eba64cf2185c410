"""The iterates that an attack went through, and the map at each, as a gallery."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from robattr.evaluation.gallery import Array, Gallery, Record
from robattr.evaluation.protocol import Protocol
from robattr.evaluation.scores import curve_points


def frames(
    x: Tensor,
    clean: Tensor,
    walk: Mapping[str, Tensor],
    at: Sequence[int],
    records: Sequence[Record],
    *,
    protocol: Protocol,
) -> Gallery:
    """The gallery of the examples `at` of a batch x with the maps `clean`, their `AttackResult.walk` and records."""
    x, clean, walk = x[at], clean[at], {key: values[at] for key, values in walk.items()}
    return Gallery(
        id=np.array([record["id"] for record in records]),
        label=np.array([record["label"] for record in records]),
        image=_bytes(x, protocol.bounds),
        perturbed=_bytes(walk["x"].flatten(0, 1), protocol.bounds).reshape(*walk["x"].shape[:2], -1, *x.shape[2:]),
        before=_array(clean.half()),
        after=_array(walk["map"].half()),
        topk=_array(walk["topk"]),
        kendall=_array(walk["kendall"]),
        kept=_array(walk["kept"]),
        iterations=np.array(curve_points(protocol.steps)),
    )


def _bytes(x: Tensor, bounds: tuple[float, float]) -> Array:
    low, high = bounds
    x = x[:, : 3 if x.shape[1] >= 3 else 1]  # grey or RGB
    return _array(((x - low) * (255 / (high - low))).round().clamp(0, 255).byte())


def _array(t: Tensor) -> Array:
    array: Array = t.detach().cpu().numpy()
    return array
