"""A gallery: for a few examples the image, the iterates of the attack, and the maps at each.

Shapes: G examples, T kept iterates of the attack, images (C, H, W), maps (H, W). Images are bytes over the pixel range,
C = 1 or 3 (of other images the first three channels, or the first); maps have mean 1.
"""

from __future__ import annotations

import tokenize
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from glob import escape
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robattr.errors import CheckpointError

FIRST, WORST = 24, 4  # examples shown: the first, and the most disturbed of the others
FEWEST = 3  # examples of a thinned gallery, whatever their size
ENDING = "-gallery.npz"
LARGEST = 1 << 31  # bytes of an unpacked gallery: 28 examples of 224 × 224 × 3 with 20 iterates have 0.2 GB
DAMAGED = (
    ValueError, TypeError, EOFError, KeyError, RuntimeError, NotImplementedError, zipfile.BadZipFile, zlib.error,
    tokenize.TokenError,  # numpy: the header of an array
)  # fmt: skip
REMEDY = "make it again with robattr evaluate RUN … --fresh"

Record = Mapping[str, Any]
Array = NDArray[Any]


@dataclass(frozen=True)
class Gallery:
    """id, label (G,); image (G, C, H, W) and perturbed (G, T, C, H, W) uint8; before (G, H, W), after (G, T, H, W);
    topk, kendall (G, T); kept (G, T): whether the iterate keeps the prediction; iterations (T,).

    A thinned gallery has one iterate, the reported one of each example; `perturbed` of an older one may have none.
    A file has `shift`, perturbed − image modulo 256, in the place of `perturbed`: it compresses better."""

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

    @property
    def file(self) -> bytes:
        """The content of the file."""
        arrays = asdict(self)
        arrays["shift"] = arrays.pop("perturbed") - self.image[:, None]
        out = BytesIO()
        np.savez_compressed(out, allow_pickle=False, **arrays)
        return out.getvalue()

    def __len__(self) -> int:
        return len(self.id)

    @property
    def has_perturbed(self) -> bool:
        """Whether the perturbed images are there."""
        return bool(self.perturbed.shape[1] > 0)

    def reported(self, example: int) -> int:
        """The iterate of the reported score: the lowest Kendall among those that kept the prediction, else the last."""
        kendall = np.where(self.kept[example] & np.isfinite(self.kendall[example]), self.kendall[example], np.inf)
        best = int(np.argmin(kendall))
        return best if np.isfinite(kendall[best]) else len(self.iterations) - 1


def path_for(path: Path) -> Path:
    """The gallery file beside the records or the summary `path`."""
    return path.with_name(f"{path.stem}{ENDING}")


def choose(records: Sequence[Record], first: int = FIRST, worst: int = WORST) -> list[Record]:
    """The records to show: all attacked examples among the first, the most disturbed ones of the others.

    The first are the same examples for every model, so that models can be compared. From a part of an evaluation, with
    `first` the number of its records among the first of all, every example is chosen that is chosen from the whole.
    """
    early = [r for r in records[:first] if r["kept"]]
    late = sorted((r for r in records[first:] if r["kept"]), key=lambda r: (r["kendall"], r["id"]))
    return early + late[:worst]


def joined(galleries: Sequence[Gallery], ids: Sequence[int]) -> Gallery | None:
    """The examples `ids`, as far as one of the galleries of an evaluation has them; None if none has."""
    place = {int(i): (g, at) for g in galleries for at, i in enumerate(g.id.tolist())}
    found = [place[i] for i in ids if i in place]
    if not found:
        return None
    names = [name for name in Gallery.__dataclass_fields__ if name != "iterations"]
    arrays = {name: np.stack([getattr(g, name)[at] for g, at in found]) for name in names}
    return Gallery(**arrays, iterations=found[0][0].iterations)


def part_for(path: Path, first: int) -> Path:
    """The gallery file of the batch whose first example is `first`, beside the records `path`."""
    return path.with_name(f"{path.stem}.from{first}{ENDING}")


def parts_of(path: Path) -> list[Path]:
    """The gallery files of batches."""
    return sorted(path.parent.glob(f"{escape(path.stem)}.from*{ENDING}"))


def read_gallery(path: Path) -> Gallery:
    """Read a gallery file; pickled content is refused."""
    try:
        with zipfile.ZipFile(path) as archive:
            if (size := sum(member.file_size for member in archive.infolist())) > LARGEST:
                raise CheckpointError(f"the gallery {path} unpacks to {size:,} bytes, which is refused: {REMEDY}")
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            arrays = {key: stored[key] for key in stored.files}
    except OSError as cause:
        raise CheckpointError(f"the gallery {path} could not be read ({cause.strerror}): {REMEDY}") from cause
    except DAMAGED as cause:
        raise CheckpointError(f"the gallery {path} is damaged, expected an archive of arrays: {REMEDY}") from cause
    if "shift" in arrays and "image" in arrays:
        image, shift = arrays["image"], arrays.pop("shift")
        fits = shift.ndim == 5 and (shift.shape[0], *shift.shape[2:]) == image.shape
        if not fits or {image.dtype, shift.dtype} != {np.dtype(np.uint8)}:
            raise CheckpointError(f"the gallery {path} is damaged, its shift has another shape or type: {REMEDY}")
        arrays["perturbed"] = image[:, None] + shift
    if "topk" in arrays:
        arrays.setdefault("kept", np.ones(arrays["topk"].shape, dtype=np.bool_))  # older files have none
    if missing := [key for key in Gallery.__dataclass_fields__ if key not in arrays]:
        raise CheckpointError(f"the gallery {path} is damaged, it lacks {', '.join(missing)}: {REMEDY}")
    found = Gallery(**{key: arrays[key] for key in Gallery.__dataclass_fields__})
    if odd := _odd(found):
        raise CheckpointError(f"the gallery {path} is damaged, its {odd} has another shape or type: {REMEDY}")
    return found


def _odd(g: Gallery) -> str:
    """The first array whose shape or type is not that of a gallery; an empty string if there is none."""
    image = g.image.shape[1:] if g.image.ndim == 4 and g.image.shape[1] in (1, 3) else (1, 0, 0)
    n, t = g.id.size, g.iterations.size
    shown = 0 if g.perturbed.ndim == 5 and not g.perturbed.shape[1] else t  # a thinned gallery may have none
    wanted = {
        "id": ("iu", (n,)), "iterations": ("iu", (t,)), "label": ("iu", (n,)), "image": ("u", (n, *image)),
        "perturbed": ("u", (n, shown, *image)), "before": ("f", (n, *image[1:])), "after": ("f", (n, t, *image[1:])),
        "topk": ("f", (n, t)), "kendall": ("f", (n, t)), "kept": ("b", (n, t)),
    }  # fmt: skip
    found = {key: (getattr(g, key).dtype.kind, getattr(g, key).shape) for key in wanted}
    return next((k for k, (kinds, shape) in wanted.items() if found[k][0] not in kinds or found[k][1] != shape), "")


def thinned_file(gallery: Gallery, *, most: int, budget: int) -> bytes:
    """A thinned gallery as the bytes of a file, at most `most` examples.

    To fit in `budget` bytes it drops examples down to FEWEST, which may exceed it.
    """
    chosen = _by_class(gallery)
    for count in (most, most // 2, FEWEST):
        content = _thinned(gallery, sorted(chosen[:count])).file
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


def _thinned(gallery: Gallery, places: list[int]) -> Gallery:
    """The examples at `places`, each with its reported iterate alone."""
    step = [gallery.reported(g) for g in places]

    def at(array: Array) -> Array:
        return array[places, step][:, None]

    return Gallery(
        id=gallery.id[places],
        label=gallery.label[places],
        image=gallery.image[places],
        perturbed=at(gallery.perturbed) if gallery.has_perturbed else gallery.perturbed[places],
        before=gallery.before[places].astype(np.float16),
        after=at(gallery.after).astype(np.float16),
        topk=at(gallery.topk).astype(np.float32),
        kendall=at(gallery.kendall).astype(np.float32),
        kept=at(gallery.kept),
        iterations=gallery.iterations[-1:],
    )
