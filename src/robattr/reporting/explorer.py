"""The data of the page's explorer: galleries packed for explorer.js, one deflated blob per model and example.

Layout of a blob, in order (all uint8, rows first, channels last where there are channels):
perturbation + 128, (T, H, W, C) clipped to ±127 | map before, (H, W) | maps after, (T, H, W) | top-k bits of the map
before and of the T maps after, ⌈HW / 8⌉ bytes each, most significant bit first. The clean image is stored once.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from robattr.evaluation.gallery import Array, Gallery, read_gallery
from robattr.reporting.curves import COLOURS, styles
from robattr.reporting.display import brightness, ceiling, top_k
from robattr.reporting.groups import Group
from robattr.reporting.run_results import EvaluationResults, RunResults

Member = tuple[RunResults, EvaluationResults, Gallery]
Place = tuple[EvaluationResults, Gallery, int]  # an example: the index in a gallery

BUDGET = 6_000_000  # characters of base64 in one page
MOST_EXAMPLES = 48


def explorer(groups: Sequence[Group], *, budget: int = BUDGET) -> list[dict[str, Any]]:
    """The explorer's data, one entry per group that has galleries; examples are dropped to stay within `budget`."""
    shown = [(group, members) for group in groups if (members := _members(group))]
    return [_group(group, members, budget // len(shown)) for group, members in shown]


def _members(group: Group) -> list[Member]:
    """The models whose galleries have perturbed images, of the size of the first."""
    read = [(run, e, read_gallery(e.gallery)) for run, e in group.members if e.gallery]
    members = [member for member in read if member[2].has_perturbed]
    return [m for m in members if m[2].image.shape[1:] == members[0][2].image.shape[1:]]


def _group(group: Group, members: Sequence[Member], budget: int) -> dict[str, Any]:
    # Data of the same name may have other images at an id.
    where = [
        {(int(i), image.tobytes()): g for g, (i, image) in enumerate(zip(G.id, G.image, strict=True))}
        for _, _, G in members
    ]
    # Examples that every model has come first: they can be compared.
    ids = sorted({i for places in where for i in places}, key=lambda i: (-sum(i in p for p in where), i))
    style = styles([run for run, _ in group.members])
    channels, height, width = members[0][2].image.shape[1:]
    examples: list[dict[str, Any]] = []
    spent = 0
    for i in ids[:MOST_EXAMPLES]:
        example = _example(
            [(e, G, p[i]) if i in p else None for (_, e, G), p in zip(members, where, strict=True)], group.k
        )
        spent += len(json.dumps(example)) + 2
        if examples and spent > budget:
            break
        examples.append(example)
    return {
        "title": group.title,
        "k": group.k,
        "strict": members[0][1].strict,
        "shape": [height, width, channels],
        "classes": group.classes,
        "amplify": _amplify([gallery for _, _, gallery in members]),
        "models": [run.name for run, _, _ in members],
        "looks": [f"s{style[run.name] % COLOURS}" for run, _, _ in members],
        "iterations": [gallery.iterations.tolist() for _, _, gallery in members],
        "examples": examples,
    }


def _example(places: Sequence[Place | None], k: int) -> dict[str, Any]:
    _, gallery, g = next(place for place in places if place is not None)
    return {
        "id": int(gallery.id[g]),
        "label": int(gallery.label[g]),
        "image": _pack(_last(gallery.image[g]).tobytes()),
        "models": [None if place is None else _model(*place, k) for place in places],
    }


def _model(evaluation: EvaluationResults, gallery: Gallery, g: int, k: int) -> dict[str, Any]:
    record = evaluation.record(gallery.id[g])
    return {
        "blob": _pack(b"".join(_parts(gallery, g, k, ceiling(gallery.before[g])))),
        "topk": [_rounded(v) for v in gallery.topk[g]],
        "kendall": [_rounded(v) for v in gallery.kendall[g]],
        "kept": gallery.kept[g].tolist(),
        "recorded": {key: record.get(key) for key in ("topk", "kendall", "iterate")},
    }


def _parts(gallery: Gallery, g: int, k: int, top: float) -> Iterator[bytes]:
    change = gallery.perturbed[g].astype(np.int16) - gallery.image[g].astype(np.int16)
    yield (np.clip(_last(change), -127, 127) + 128).astype(np.uint8).tobytes()
    maps = [gallery.before[g], *gallery.after[g]]
    yield b"".join(np.rint(255 * brightness(m, top)).astype(np.uint8).tobytes() for m in maps)
    yield b"".join(np.packbits(top_k(m, k).reshape(-1)).tobytes() for m in maps)


def _amplify(galleries: Sequence[Gallery]) -> int:
    """The largest amplification on the page that keeps every perturbation within the range of a pixel."""
    most = max(int(np.abs(g.perturbed.astype(np.int16) - g.image[:, None]).max(initial=1)) for g in galleries)
    return next((times for times in (10, 5, 3) if times * most <= 128), 1)


def _last(images: Array) -> Array:
    """(…, C, H, W) to (…, H, W, C), the order of a canvas."""
    return np.ascontiguousarray(np.moveaxis(images, -3, -1))


def _pack(raw: bytes) -> str:
    return base64.b64encode(zlib.compress(raw, 9)).decode("ascii")


def _rounded(value: float) -> float | None:
    return round(float(value), 4) if np.isfinite(value) else None
