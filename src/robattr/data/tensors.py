"""The user's own data: a pair of tensors or a torch Dataset (folders of images are in `image_folder`).

Splits are drawn class by class from a seed: the same data and seed give the same split. If you already have splits,
build a `Dataset` of three `Split`s directly.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader

from robattr.data.dataset import Dataset, Split
from robattr.errors import InvalidInput


def from_tensors(
    x: Tensor,
    y: Tensor,
    *,
    bounds: tuple[float, float] = (0.0, 1.0),
    classes: Sequence[str] | None = None,
    validation: float = 0.1,
    test: float = 0.1,
    seed: int = 0,
    name: str = "tensors",
) -> Dataset:
    """A dataset of images x, (N, C, H, W) or (N, H, W), and labels y, (N,).

    uint8 images are mapped to `bounds`; floating ones must lie within them. `validation` and `test` are the shares of
    each class in those splits; ids are positions in x.
    """
    try:
        x, y = torch.as_tensor(x), torch.as_tensor(y)  # arrays and lists too
    except (TypeError, ValueError, RuntimeError) as cause:
        raise InvalidInput(f"expected tensors or arrays of images and of whole-number labels: {cause}") from cause
    x, y = _checked_images(x, bounds), checked_labels(x, y)
    count = int(y.max()) + 1
    titles = tuple(classes) if classes is not None else tuple(map(str, range(count)))
    parts = partition(y, validation=validation, test=test, seed=seed)
    whole = Split(x, y, torch.arange(len(y)))
    train, held, tested = (whole.take(part) for part in parts)
    return Dataset(name, train, held, tested, classes=titles, bounds=bounds)


def from_dataset(
    dataset: Iterable[Any],
    *,
    bounds: tuple[float, float] = (0.0, 1.0),
    classes: Sequence[str] | None = None,
    validation: float = 0.1,
    test: float = 0.1,
    seed: int = 0,
    name: str = "dataset",
) -> Dataset:
    """A dataset from a `torch.utils.data.Dataset` of (image, label), read once into memory.

    An image is a tensor (C, H, W) or (H, W), or a Pillow image; all must have the same shape: resize in the
    dataset's transform. Class names come from its attribute `classes`, if it has one.
    """
    x, y = gathered(dataset)
    return from_tensors(
        x,
        y,
        bounds=bounds,
        classes=classes if classes is not None else getattr(dataset, "classes", None),
        validation=validation,
        test=test,
        seed=seed,
        name=name,
    )


def gathered(dataset: Iterable[Any]) -> tuple[Tensor, Tensor]:
    """The items (x, y) of a `torch.utils.data.Dataset` as two tensors."""
    if isinstance(dataset, DataLoader | Mapping) or not (
        isinstance(dataset, Iterable) or hasattr(dataset, "__getitem__")
    ):
        got = type(dataset).__name__
        raise InvalidInput(
            f"expected a dataset of (image, label), got {got}: pass a loader's .dataset, or a pair (x, y)"
        )
    source: Any = dataset
    # By index where there is a length: not every map-style dataset ends iteration with an IndexError.
    indexed = hasattr(source, "__getitem__") and hasattr(source, "__len__")
    images: list[Tensor] = []
    labels: list[int] = []
    for index, item in enumerate((source[i] for i in range(len(source))) if indexed else source):
        try:
            images.append(_tensor(item[0]))
            labels.append(operator.index(item[1].item() if hasattr(item[1], "item") else item[1]))
        except (TypeError, ValueError, RuntimeError, LookupError) as cause:
            expected = "a pair (image, label), a tensor or an 8-bit Pillow image and a whole number"
            raise InvalidInput(f"item {index}: expected {expected}: {cause}") from cause
    if not images:
        raise InvalidInput("expected a dataset with items, got an empty one")
    try:
        return torch.stack(images), torch.tensor(labels)
    except RuntimeError as cause:
        raise InvalidInput(f"expected images of one shape: {cause}: resize in the transform") from cause


def partition(labels: Tensor, *, validation: float, test: float, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sorted indices of train, validation and test: the given shares of every class, rounded, drawn by the seed."""
    numbers = isinstance(validation, Real) and isinstance(test, Real)
    if not (numbers and min(validation, test) >= 0 and validation + test < 1):  # also false for NaN
        raise InvalidInput(f"expected shares >= 0 with a sum below 1, got {validation} and {test}")
    random = torch.Generator().manual_seed(seed)
    parts: tuple[list[Tensor], list[Tensor], list[Tensor]] = ([], [], [])
    for label in labels.unique():
        members = (labels == label).nonzero().flatten()
        members = members[torch.randperm(len(members), generator=random)]
        held, tested = round(validation * len(members)), round(test * len(members))
        for part, piece in zip(parts, members.split([len(members) - held - tested, held, tested]), strict=True):
            part.append(piece)
    train, held_out, tests = (torch.cat(part).sort().values for part in parts)
    return train, held_out, tests


def _checked_images(x: Tensor, bounds: tuple[float, float]) -> Tensor:
    x = x[:, None] if x.ndim == 3 else x
    if x.ndim != 4 or not len(x):
        raise InvalidInput(f"expected images (N, C, H, W) or (N, H, W) with N > 0, got {tuple(x.shape)}")
    if x.shape[3] in (1, 3, 4) and min(x.shape[1:3]) > 4:
        raise InvalidInput(
            f"expected images (N, C, H, W), got {tuple(x.shape)}, whose channels seem to be last: "
            "pass x.permute(0, 3, 1, 2)"
        )
    if x.dtype == torch.uint8:
        return x
    if not x.is_floating_point():
        raise InvalidInput(f"expected uint8 or floating images, got {x.dtype}: convert them with .to(torch.uint8)")
    low, high = float(x.min()), float(x.max())
    if not (bounds[0] <= low and high <= bounds[1]):  # also false for NaN
        raise InvalidInput(f"expected pixels in bounds={bounds}, got values from {low} to {high}: pass their bounds")
    return x.float()


def checked_labels(x: Tensor, y: Tensor) -> Tensor:
    if y.shape != (len(x),) or y.is_floating_point() or y.is_complex():
        raise InvalidInput(f"expected {len(x)} whole-number labels (N,), got {tuple(y.shape)} of {y.dtype}")
    return y.long()


def _tensor(image: Any) -> Tensor:
    if isinstance(image, Tensor):
        return image
    array: NDArray[Any] = np.array(image)
    if array.dtype != np.uint8 or array.ndim not in (2, 3):
        raise TypeError(f"expected an 8-bit image, got {type(image).__name__}")
    return torch.from_numpy(array if array.ndim == 2 else np.ascontiguousarray(array.transpose(2, 0, 1)))
