"""What an audit or a hardening works on: a folder of images, a dataset, or plain tensors, as one `Dataset`.

What the user hands over as tensors reaches the model in that very shape: (N, features) for tables, (N, tokens, width)
for embeddings, (N, C, H, W) for images.
"""

from __future__ import annotations

import hashlib
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from robattr import data as datasets
from robattr._extras import need
from robattr._text import printable
from robattr.data import Dataset, Split
from robattr.data.image_folder import image_files
from robattr.data.tensors import gathered, partition
from robattr.errors import DataError, InvalidInput, nearest
from robattr.formula.neighbourhoods import check_bounds

Data: TypeAlias = str | Path | Dataset | tuple[Any, Any] | Iterable[Any]
"""A folder of class folders, a dataset's name, a `Dataset`, a pair (x, y), or a torch dataset of such pairs."""

Bounds: TypeAlias = tuple[float, float]
UNIT: Bounds = (0.0, 1.0)  # what bounds are where nobody gave any


def material(
    data: Data,
    *,
    bounds: Bounds = UNIT,
    size: int | None = None,
    channels: int = 3,
    classes: Sequence[str] | None = None,
    held_out: float = 0.0,
    limit: int | None = None,
    seed: int = 0,
    checked: bool = True,
) -> Dataset:
    """The user's data as a `Dataset`.

    bounds     their range; a `Dataset` and a dataset by name have their own, which other ones may not contradict
    size       side to which a folder's images are resized; None: their own, where all have one square size
    channels   of a folder's images, 1 or 3
    classes    the names of the model's outputs, in their order; a folder's class folders are looked up in it
    held_out   share of each class set apart for validation, and as much for the test, where there are no such splits
    limit      at most so many of a folder's images are read: an audit of 100 need not decode 50,000
    checked    refuse tensors outside the bounds; the doctor looks at them all the same, to say more

    Images that cannot be read are skipped and listed in `skipped`.
    """
    if not (isinstance(bounds, tuple | list) and len(bounds) == 2 and -inf < bounds[0] < bounds[1] < inf):
        raise InvalidInput(f"expected bounds (low, high), finite and rising, as (0, 1) or (0, 255), got {bounds!r}")
    if data is None:
        raise InvalidInput("expected data: a folder of class folders, a dataset, or a pair (x, y), got None")
    if isinstance(data, str) and data in datasets.names():
        if Path(data).is_dir():
            raise InvalidInput(f"{data} is a dataset and a folder here: write ./{data} for the folder, or go elsewhere")
        data = datasets.load(data)
    if isinstance(data, Dataset):
        return _bounded(data if classes is None else _relabelled(data, classes), bounds)
    if isinstance(data, str | Path):
        if not Path(data).expanduser().is_dir():
            known = nearest(str(data), datasets.names())
            raise DataError(f"{data} is neither a folder of class folders of images nor a dataset: {known}")
        side = common_size(Path(data)) if size is None else size
        with warnings.catch_warnings():  # the skipped files are listed, one by one, where a reader sees them
            warnings.simplefilter("ignore")
            found = datasets.from_folder(
                data,
                size=side,
                channels=channels,
                bounds=bounds,
                validation=held_out,
                test=held_out,
                seed=seed,
                limit=limit,
            )
        found = found if classes is None else _relabelled(found, classes)
        return replace(found, name=printable(found.name), classes=tuple(map(printable, found.classes)))
    if isinstance(data, tuple | list) and len(data) == 2 and hasattr(data[0], "shape"):
        x, y = (part if isinstance(part, Tensor) else _tensor(part) for part in data)
    else:
        x, y = gathered(data)
        classes = getattr(data, "classes", None) if classes is None else classes
        if x.dim() != 2:  # not a table
            return datasets.from_tensors(
                x, y, bounds=bounds, classes=classes, validation=held_out, test=held_out, seed=seed, name="dataset"
            )
    return _of_tensors(x, y, bounds=bounds, classes=classes, held_out=held_out, seed=seed, checked=checked)


def check_folder(data: Data | None, **asked: object) -> None:
    """Refuse what is said of a folder's images where the data are none."""
    folder = isinstance(data, str | Path) and not (isinstance(data, str) and data in datasets.names())
    if idle := [name for name, value in asked.items() if value is not None and not folder]:
        said = " and ".join(idle)
        raise InvalidInput(f"{said}: that is how a folder's images are read, and the data are no folder: leave it out")


def common_size(folder: Path) -> int:
    """The side of a folder's images where all are squares of one size; otherwise the user must choose."""
    pillow: Any = need("PIL.Image", extra="data")
    sizes: Counter[tuple[int, int]] = Counter()
    for file in image_files(folder.expanduser()):
        try:
            with pillow.open(file) as picture:
                sizes[picture.size] += 1
        except (OSError, ValueError, SyntaxError, pillow.DecompressionBombError):
            continue
    if not sizes:
        raise DataError(f"expected a folder of class folders of images, found no readable image in {folder}")
    (width, height), _ = sizes.most_common(1)[0]
    if len(sizes) > 1 or width != height:
        shown = ", ".join(f"{w}×{h}" for (w, h), _ in sizes.most_common(3))
        raise InvalidInput(f"the images are not squares of one size ({shown}): say what the model takes, --size 224")
    return int(width)


def chosen(data: Dataset, n: int | None, *, seed: int = 0) -> tuple[Tensor, Tensor, list[int]]:
    """x, y and ids of n examples drawn from the test split, by rising position.

    Where there is none they are drawn from the validation split, and where nothing was set apart from all. A folder is
    sorted by class: its first n images would be of one class.
    """
    split = next((part for part in (data.test, data.validation) if len(part)), data.train)
    if n is not None and n < len(split):
        order = torch.randperm(len(split), generator=torch.Generator().manual_seed(seed))
        split = split.take(order[:n].sort().values)
    return data.pixels(split.images), split.labels, split.ids.tolist()


def digest(x: Tensor, y: Tensor) -> str:
    """A short name of the examples' content: an audit is only continued on the same ones."""
    found = hashlib.sha256()
    for part in (x, y):
        found.update(str(tuple(part.shape)).encode())
        found.update(part.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


def _bounded(data: Dataset, bounds: Bounds) -> Dataset:
    """The dataset as it is, where nobody gave bounds other than its own."""
    if tuple(bounds) not in (UNIT, tuple(data.bounds)):
        raise InvalidInput(
            f"expected the bounds of the dataset {data.name}, {tuple(data.bounds)}, got {tuple(bounds)}: leave bounds "
            "out, or give the dataset others (dataclasses.replace(data, bounds=…))"
        )
    return data


def _tensor(values: Any) -> Tensor:
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        raise InvalidInput(
            f"expected numbers, got an array of {array.dtype}: number the classes from 0, and convert inputs with "
            "astype('float32')"
        )
    return torch.as_tensor(array)


def _of_tensors(
    x: Tensor, y: Tensor, *, bounds: Bounds, classes: Sequence[str] | None, held_out: float, seed: int, checked: bool
) -> Dataset:
    inputs, labels = x.cpu(), y.cpu()
    low, high = bounds
    if inputs.dtype == torch.uint8:
        inputs = low + inputs.float() * ((high - low) / 255)
    if not inputs.is_floating_point() or inputs.dim() < 2 or not len(inputs):
        raise InvalidInput(
            f"expected inputs (N, ...) of floats, or uint8 images, got {tuple(inputs.shape)} of {inputs.dtype}: "
            "attribute token ids at their embeddings (robattr.auditing.Embedded)"
        )
    if not inputs.isfinite().all():
        raise InvalidInput("expected finite inputs, got NaN or infinite values: take those examples out")
    if checked:
        check_bounds(inputs, bounds)
    if labels.shape != (len(inputs),) or labels.is_floating_point():
        raise InvalidInput(f"expected {len(inputs)} whole-number labels, got {tuple(labels.shape)} of {labels.dtype}")
    if labels.min() < 0:
        raise InvalidInput(f"expected labels from 0 on, got {int(labels.min())}: number the classes 0, 1, 2, …")
    whole = Split(inputs.float(), labels.long(), torch.arange(len(labels)))
    parts = partition(whole.labels, validation=held_out, test=held_out, seed=seed)
    train, held, tested = (whole.take(part) for part in parts)
    titles = tuple(classes) if classes is not None else tuple(map(str, range(int(labels.max()) + 1)))
    return Dataset("tensors", train, held, tested, classes=titles, bounds=bounds)


def _relabelled(data: Dataset, classes: Sequence[str]) -> Dataset:
    """The dataset with each class at its place in `classes`."""
    place = {name: at for at, name in enumerate(classes)}
    if twice := [name for name in data.classes if list(classes).count(name) > 1]:
        raise InvalidInput(
            f"the class names hold {twice[0]!r} more than once, so that its folder could belong to any of them: name "
            "the classes and their folders apart"
        )
    if missing := [name for name in data.classes if name not in place]:
        raise InvalidInput(
            f"the class folders {', '.join(map(repr, missing[:5]))} are not among the {len(place)} class names given: "
            "name the folders as the classes are named"
        )
    table = torch.tensor([place[name] for name in data.classes])
    splits = {
        name: replace(split, labels=table[split.labels])
        for name, split in (("train", data.train), ("validation", data.validation), ("test", data.test))
    }
    return replace(data, classes=tuple(classes), **splits)  # type: ignore[arg-type]
