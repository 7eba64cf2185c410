"""What the certificates of many examples say together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod, sqrt
from typing import Any

import numpy as np

from robattr.certificates.certificate import Bounds
from robattr.certificates.challenge import CERTIFICATES
from robattr.metrics import intervals


def at_radius(bounds: Bounds, radius: float) -> dict[str, Any]:
    """The certificates at one radius, as means over examples with 95% intervals.

    answer   the share of all examples whose smoothed answer is certified to be y: certified accuracy
    share    the certified share of the pixels; inside, overlap: over K; cosine. All four are means over the examples
             whose answer is certified: elsewhere they would not be about the answer that is given
    """
    found = bounds.at(radius)
    each = {"share": found.share, "inside": found.inside_share, "overlap": found.overlap_share, "cosine": found.cosine}
    means = {name: intervals.mean(values[found.answer].tolist()) for name, values in each.items()}
    return {
        "radius": radius,
        "answer": intervals.proportion(found.answer.tolist()).plain(),
        **{name: value.plain() for name, value in means.items()},
    }


def per_example(records: Sequence[Mapping[str, Any]], bounds: Bounds, radii: Sequence[float]) -> dict[str, list[Any]]:
    """Columns of what is certified of each example: four digits, and a list over the radii in each place."""
    found = [bounds.at(radius) for radius in radii]
    columns = {
        "answer": [c.answer for c in found],
        "inside": [c.inside.sum(axis=1) for c in found],
        "outside": [c.outside.sum(axis=1) for c in found],
        "overlap": [c.overlap for c in found],
        "cosine": [c.cosine.round(4) for c in found],
    }
    return {
        "id": [r["id"] for r in records],
        "correct": [r["correct"] for r in records],
        "answer_radius": bounds.answer_radius.round(4).tolist(),
        **{name: np.stack(values, axis=1).tolist() for name, values in columns.items()},
    }


def challenged(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The result of a challenge: how often each certificate was broken by some attack, and the lowest estimates.

    `per_example` has the lowest estimate that any attack reached (of `pixels`, the most), and `worst` their means.
    """
    kinds = sorted({kind for r in records for kind in r["attacks"]})
    of = {key: [[r["attacks"][kind][key] for kind in kinds] for r in records] for key in CERTIFICATES}
    lowest = {key: [max(each) if key == "pixels" else min(each) for each in values] for key, values in of.items()}
    return {
        "kinds": kinds,
        "examples": len(records),
        "broken": {name: sum(name in r["broken"] for r in records) for name in CERTIFICATES},
        "worst": {key: float(np.mean(values)) for key, values in lowest.items()},
        "per_example": {
            "id": [r["id"] for r in records],
            **{key: np.round(v, 4).tolist() for key, v in lowest.items()},
        },
    }


def in_units(radius: float, shape: Sequence[int], bounds: tuple[float, float]) -> str:
    """A radius in words: `one pixel by 25.5 of 255 grey levels, or each of the 784 values by 0.9`."""
    values, width = prod(shape), bounds[1] - bounds[0]
    evenly = radius / sqrt(values)
    if len(shape) == 3:
        one, each = (f"{255 * r / width:.3g}" for r in (radius, evenly))
        return f"one value by {one} of 255 grey levels, or each of the {values:,} values by {each}"
    return f"one value by {radius:.3g}, or each of the {values:,} values by {evenly:.2g}, of a range of {width:g}"
