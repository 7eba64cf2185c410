"""The user's data as a `Dataset`: a folder of images, a dataset by name, or tensors.

Tensors keep their shape: (N, features) for tables, (N, tokens, width) for embeddings, (N, C, H, W) for images.
"""

from __future__ import annotations

import hashlib
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from robattr import data as datasets
from robattr._extras import need
from robattr._text import printable
from robattr.auditing.wrapped_model import logits, unwrap
from robattr.data import Dataset, Split
from robattr.data.image_folder import image_files
from robattr.data.tensors import checked_labels, gathered, partition
from robattr.errors import DataError, InvalidInput, brief, nearest
from robattr.evaluation.checks import forward
from robattr.formula.checks import check_seed
from robattr.formula.neighbourhoods import check_bounds, check_range

Data: TypeAlias = str | Path | Dataset | tuple[Any, Any] | Iterable[Any]
"""A folder of class folders, a dataset's name, a `Dataset`, a pair (x, y), or a torch dataset of such pairs."""

Bounds: TypeAlias = tuple[float, float]
UNIT: Bounds = (0.0, 1.0)  # the default


def as_dataset(
    data: Data,
    *,
    model: nn.Module | None = None,
    bounds: Bounds = UNIT,
    size: int | None = None,
    channels: int | None = None,
    classes: Sequence[str] | None = None,
    held_out: float = 0.0,
    limit: int | None = None,
    seed: int = 0,
    checked: bool = True,
) -> Dataset:
    """Make a `Dataset` of the user's data.

    bounds     the range of the data; a `Dataset` has its own, and other bounds are refused
    size       side to which a folder's images are resized; None: that on which a loaded `model` was trained, else
               their own, if all are squares of one size
    channels   of a folder's images, 1 or 3; None: those of the first convolution of `model`
    classes    names of the model's outputs in order; the labels of a folder's classes are their places in it; None:
               the names of a Hugging Face `model`, if the class folders have them
    held_out   share of each class for validation, and again for the test, where the data have no such splits
    limit      read at most this many of a folder's images
    checked    refuse tensors outside the bounds; the doctor reports them instead

    Images that cannot be read are skipped and listed in `skipped`, relative to the folder.
    """
    check_range(bounds)
    check_seed(seed)
    if not -inf < bounds[0] < bounds[1] < inf:
        raise InvalidInput(f"expected finite bounds (low, high) with low < high, such as (0, 255), got {bounds!r}")
    if classes is not None and not (isinstance(classes, list | tuple) and all(isinstance(n, str) for n in classes)):
        raise InvalidInput(f"expected a list of names as classes, one for each output, got {brief(classes)}")
    if data is None:
        raise InvalidInput("expected data: a folder of class folders, a dataset, or a pair (x, y), got None")
    folder = isinstance(data, str | Path) and data not in datasets.names()
    if unused := [name for name, value in (("size", size), ("channels", channels)) if value is not None and not folder]:
        raise InvalidInput(f"{' and '.join(unused)} applies only to folders of images: leave it out")
    if isinstance(data, str) and not folder:
        if Path(data).is_dir():
            raise InvalidInput(f"{data} is a dataset and a folder here: write ./{data} for the folder, or rename it")
        data = datasets.load(data)
    if isinstance(data, Dataset):
        if tuple(bounds) not in (UNIT, tuple(data.bounds)):
            raise InvalidInput(
                f"expected the bounds of the dataset {data.name}, {tuple(data.bounds)}, got {tuple(bounds)}: leave "
                "bounds out, or change the dataset's (dataclasses.replace(data, bounds=…))"
            )
        return data if classes is None else _relabelled(data, classes)
    if isinstance(data, str | Path):
        if not Path(data).expanduser().is_dir():
            known = nearest(str(data), datasets.names())
            raise DataError(f"{data} is neither a folder of class folders of images nor a dataset: {known}")
        side = trained_side(model) or common_size(Path(data)) if size is None else size
        with warnings.catch_warnings():  # skipped files are listed in `skipped`
            warnings.simplefilter("ignore")
            found = datasets.from_folder(
                data, size=side, channels=channels or input_channels(model), bounds=bounds,
                validation=held_out, test=held_out, seed=seed, limit=limit,
            )  # fmt: skip
        classes = classes or model_classes(model, found)
        found = found if classes is None else _relabelled(found, classes)
        top = Path(data).expanduser()
        skipped = tuple(printable(str(Path(file).relative_to(top))) for file in found.skipped)
        return replace(found, name=printable(found.name), classes=tuple(map(printable, found.classes)), skipped=skipped)
    if isinstance(data, tuple | list) and len(data) == 2 and hasattr(data[0], "shape"):
        x, y = (part if isinstance(part, Tensor) else _tensor(part) for part in data)
    else:
        x, y = gathered(data)
        classes = getattr(data, "classes", None) if classes is None else classes
        if x.dim() != 2:  # not a table
            return datasets.from_tensors(
                x, y, bounds=bounds, classes=classes, validation=held_out, test=held_out, seed=seed, name="dataset"
            )
    return _from_tensors(x, y, bounds=bounds, classes=classes, held_out=held_out, seed=seed, checked=checked)


def check_names(classes: Sequence[str] | None, model: nn.Module, data: Dataset) -> None:
    """Refuse class names, where the user gives any, that are not one for each output of the model."""
    if classes is None:
        return
    module = unwrap(model)[0]
    x = data.pixels(next(split for split in (data.train, data.validation, data.test) if len(split)).images[:1])
    try:
        outputs = logits(forward(module, x.to(next(module.parameters(), x)))).shape[1]
    except Exception:  # the model fails on x: `evaluation.checks` says so
        return
    if len(classes) != outputs:
        raise InvalidInput(
            f"expected {outputs} class names, one for each output of the model in order, got {len(classes)}: correct "
            "classes (--classes)"
        )


def model_classes(model: nn.Module | None, data: Dataset) -> list[str] | None:
    """The class names of a Hugging Face model, if the class folders of `data` have these names."""
    table = getattr(getattr(model, "config", None), "id2label", None)
    if not isinstance(table, Mapping) or not all(str(key).isdigit() for key in table):
        return None
    names = [str(table[key]) for key in sorted(table, key=int)]
    return names if set(data.classes) <= set(names) else None


def input_channels(model: nn.Module | None) -> int:
    """1 if the first convolution has one input channel, else 3."""
    first = next((m for m in model.modules() if isinstance(m, nn.Conv2d)), None) if model else None
    return 1 if first is not None and first.in_channels == 1 else 3


def trained_side(model: nn.Module | None) -> int | None:
    """The side of the images that a model of `load_model` was trained on."""
    shape = getattr(model, "trained_shape", None)
    return int(shape[-1]) if shape else None


def common_size(folder: Path) -> int:
    """The side of a folder's images if all are squares of one size; otherwise the user must choose."""
    pillow: Any = need("PIL.Image", extra="data")
    sizes: Counter[tuple[int, int]] = Counter()
    for file in filter(Path.is_file, image_files(folder.expanduser())):
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
        raise InvalidInput(f"expected square images of one size, got {shown}: give the size of the model, --size 224")
    return int(width)


def draw(data: Dataset, n: int | None, *, seed: int = 0) -> tuple[Tensor, Tensor, list[int]]:
    """x, y and ids of n random examples of the test split, sorted by position; None: all.

    Without a test split they come from the validation split, without both from the whole data. A folder is sorted by
    class, so that its first n images would be of one class.
    """
    split = next((part for part in (data.test, data.validation) if len(part)), data.train)
    if n is not None and n < len(split):
        order = torch.randperm(len(split), generator=torch.Generator().manual_seed(seed))
        split = split.take(order[:n].sort().values)
    return data.pixels(split.images), split.labels, split.ids.tolist()


def digest(x: Tensor, y: Tensor) -> str:
    """A hash of the examples: an audit continues only on the same ones."""
    found = hashlib.sha256()
    for part in (x, y):
        found.update(str(tuple(part.shape)).encode())
        found.update(part.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


def _tensor(values: Any) -> Tensor:
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        raise InvalidInput(
            f"expected numbers, got an array of {array.dtype}: number the classes from 0, and convert inputs with "
            "astype('float32')"
        )
    return torch.as_tensor(array)


def _from_tensors(
    x: Tensor, y: Tensor, *, bounds: Bounds, classes: Sequence[str] | None, held_out: float, seed: int, checked: bool
) -> Dataset:
    inputs, (low, high) = x.cpu(), bounds
    if inputs.dtype == torch.uint8:  # images; in a table they are the values themselves
        inputs = low + inputs.float() * ((high - low) / 255) if inputs.dim() > 2 else inputs.float()
    if not inputs.is_floating_point() or inputs.dim() < 2 or not len(inputs):
        raise InvalidInput(
            f"expected inputs (N, ...) of floats, or uint8 images, got {tuple(inputs.shape)} of {inputs.dtype}: "
            "attribute token ids at their embeddings (robattr.auditing.Embedded)"
        )
    if not inputs.isfinite().all():
        raise InvalidInput("expected finite inputs, got NaN or infinite values: remove those examples")
    if checked:
        check_bounds(inputs, bounds)
    labels = checked_labels(inputs, y.cpu())
    whole = Split(inputs.float(), labels, torch.arange(len(labels)))
    parts = partition(whole.labels, validation=held_out, test=held_out, seed=seed)
    train, held, tested = (whole.take(part) for part in parts)
    titles = tuple(classes) if classes is not None else tuple(map(str, range(int(labels.max()) + 1)))
    return Dataset("tensors", train, held, tested, classes=titles, bounds=bounds)


def _relabelled(data: Dataset, classes: Sequence[str]) -> Dataset:
    """Renumber the labels: each class gets its place in `classes`."""
    place = {name: at for at, name in enumerate(classes)}
    if twice := [name for name in data.classes if list(classes).count(name) > 1]:
        raise InvalidInput(
            f"expected different class names, got {twice[0]!r} more than once, so that its folder is ambiguous: rename "
            "the classes and their folders"
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
