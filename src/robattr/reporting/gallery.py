"""The gallery of an evaluation: images, perturbed iterates and attribution maps of a few examples.

Shapes: G examples, T kept iterates of the attack, images (C, H, W), maps (H, W).
"""

from __future__ import annotations

import io
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray

from robattr.errors import CheckpointError
from robattr.metrics import top_k_mask

Array = NDArray[Any]
KEYS = ("id", "label", "image", "perturbed", "before", "after", "topk", "kendall", "iterations")
REMEDY = "make it again with robattr evaluate RUN … --fresh"
FEWEST = 3  # examples of a thinned gallery, whatever their size


@dataclass(frozen=True)
class Gallery:
    """id, label (G,); image (G, C, H, W) and perturbed (G, T, C, H, W) uint8; before (G, H, W), after (G, T, H, W);
    topk, kendall (G, T); kept (G, T): whether the iterate keeps the prediction; iterations (T,).

    A thinned gallery has one iterate, the reported one of each example; its `perturbed` may have none."""

    id: Array
    label: Array
    image: Array
    perturbed: Array
    before: Array
    after: Array
    topk: Array
    kendall: Array
    kept: Array
    iterations: Array

    def __len__(self) -> int:
        return len(self.id)

    @property
    def has_perturbed(self) -> bool:
        """Whether the perturbed images are there; large images have the maps alone."""
        return bool(self.perturbed.shape[1] > 0)

    def reported(self, example: int) -> int:
        """The iterate of the reported score: the lowest Kendall among those that kept the prediction, else the last."""
        kendall = np.where(self.kept[example] & np.isfinite(self.kendall[example]), self.kendall[example], np.inf)
        best = int(np.argmin(kendall))
        return best if np.isfinite(kendall[best]) else len(self.iterations) - 1


def read_gallery(path: Path) -> Gallery:
    """Read a gallery file; pickled content is refused."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            arrays = {key: stored[key] for key in stored.files}
    except OSError as cause:
        raise CheckpointError(f"the gallery {path} could not be read ({cause.strerror}): {REMEDY}") from cause
    except (ValueError, TypeError, EOFError, BadZipFile, zlib.error) as cause:
        raise CheckpointError(f"the gallery {path} is damaged, expected an archive of arrays: {REMEDY}") from cause
    missing = [key for key in KEYS if key not in arrays]
    if missing:
        raise CheckpointError(f"the gallery {path} is damaged, it lacks {', '.join(missing)}: {REMEDY}")
    kept = arrays.get("kept", np.ones(arrays["topk"].shape, dtype=bool))
    return Gallery(**{key: arrays[key] for key in KEYS}, kept=kept.astype(bool))


def thinned_file(gallery: Gallery, *, most: int, budget: int) -> bytes:
    """A thinned gallery as the bytes of a file, at most `most` examples.

    To fit in `budget` bytes it drops the perturbed images, then examples down to FEWEST, which may exceed it.
    """
    chosen = _by_class(gallery)
    for count, perturbed in ((most, True), (most, False), (most // 2, False), (FEWEST, False)):
        content = _file(_thinned(gallery, sorted(chosen[:count]), perturbed=perturbed))
        if len(content) <= budget:
            break
    return content


def _by_class(gallery: Gallery) -> list[int]:
    """Indices in order of id, one example of each class first: the same for most models, so that they compare."""
    order = [int(g) for g in np.argsort(gallery.id, kind="stable")]
    seen: dict[int, int] = {}
    for g in order:
        seen.setdefault(int(gallery.label[g]), g)
    return [*seen.values(), *(g for g in order if g not in seen.values())]


def _thinned(gallery: Gallery, places: list[int], *, perturbed: bool) -> Gallery:
    """The examples at `places`, each with its reported iterate alone."""
    step = [gallery.reported(g) for g in places]

    def at(array: Array) -> Array:
        return array[places, step][:, None]

    return Gallery(
        id=gallery.id[places],
        label=gallery.label[places],
        image=gallery.image[places],
        perturbed=at(gallery.perturbed) if perturbed and gallery.has_perturbed else gallery.perturbed[places, :0],
        before=gallery.before[places].astype(np.float16),
        after=at(gallery.after).astype(np.float16),
        topk=at(gallery.topk).astype(np.float32),
        kendall=at(gallery.kendall).astype(np.float32),
        kept=at(gallery.kept),
        iterations=gallery.iterations[-1:],
    )


def _file(gallery: Gallery) -> bytes:
    out = io.BytesIO()
    np.savez_compressed(out, allow_pickle=False, **asdict(gallery))
    return out.getvalue()


def top_k(scores: Array, k: int) -> Array:
    """Mask of the k largest entries of a map, with the tie rule of the scores."""
    maps = torch.from_numpy(scores.astype(np.float64))[None]
    mask: Array = top_k_mask(maps, min(k, scores.size))[0].numpy()
    return mask


def ceiling(before: Array) -> float:
    """The value shown at full brightness: the 99th percentile of the positive part of the map before."""
    positive = before[np.isfinite(before) & (before > 0)].astype(np.float64)
    return float(np.percentile(positive, 99)) if positive.size else 1.0


def brightness(scores: Array, top: float) -> Array:
    """A map scaled for display, √(S / top) clipped to [0, 1].

    Attribution maps have heavy tails: on a linear scale a few pixels would leave all others black.
    """
    scaled = np.nan_to_num(scores.astype(np.float64), nan=0.0, posinf=top) / (top or 1.0)
    bright: Array = np.sqrt(np.clip(scaled, 0, 1))
    return bright
