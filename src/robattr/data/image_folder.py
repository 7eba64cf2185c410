"""The user's own data: a folder of class folders of images."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from robattr._extras import need
from robattr.data.dataset import Dataset, Split
from robattr.data.known import name_of
from robattr.data.tensors import partition
from robattr.errors import DataError, InvalidInput

SPLITS = {"validation": ("validation", "val", "valid"), "test": ("test",)}  # beside train/: the names each may have
LARGEST_SIDE = 10_000  # pixels
SUFFIXES = {".jpg", ".jpeg", ".png", ".ppm", ".pgm", ".bmp", ".gif", ".tif", ".tiff", ".webp"}


def from_folder(
    path: str | Path,
    *,
    size: int = 64,
    channels: int = 3,
    bounds: tuple[float, float] = (0.0, 1.0),
    validation: float = 0.1,
    test: float = 0.1,
    seed: int = 0,
    limit: int | None = None,
) -> Dataset:
    """A dataset from a folder of class folders, or from a folder with train/ and test/ or validation/ of class folders.

    The validation folder may also be called val/ or valid/; a folder train/ without any of them is a class.
    Images are rotated by their EXIF orientation, converted to 8-bit RGB (`channels=1`: grey) and resized to size × size
    by Lanczos, aspect ignored. Labels follow the sorted names of the class folders, ids the sorted paths. A split
    without a folder is taken from the training images: the share `validation` or `test` of every class, drawn by the
    seed. Hidden files and files without an image suffix are ignored; images that cannot be read are skipped, with one
    warning, and listed in `skipped`. Symbolic links are followed; one that leads back to a folder
    above, or puts an image into two classes, is refused. With a `limit`, at most that many images of each folder of
    classes are read, drawn by the seed.
    """
    top = Path(path).expanduser()
    if not top.is_dir():
        raise DataError(f"expected a folder of class folders, got {top}: no such folder")
    if channels not in (1, 3) or not 1 <= size <= LARGEST_SIDE:
        raise InvalidInput(f"expected 1 or 3 channels and a size of 1 to {LARGEST_SIDE}, got {channels} and {size}")
    mode = "L" if channels == 1 else "RGB"
    skipped: list[str] = []
    split_folders = _split_folders(top)
    main = top / "train" if split_folders else top
    classes = tuple(child.name for child in _visible(main) if child.is_dir())
    if not classes:
        raise DataError(f"expected class folders in {main}, got none: put each class's images in a folder of its own")
    look = partial(_read, classes=classes, size=size, mode=mode, skipped=skipped, limit=limit, seed=seed)
    whole = look(main)
    empty = [name for label, name in enumerate(classes) if label not in whole.labels]
    if empty and (limit is None or not all(image_files(main / name) for name in empty)):
        raise DataError(
            f"{main}: expected images in every class folder, got none that can be read in {', '.join(empty)}"
        )
    given = {part: look(folder) for part, folder in split_folders.items()}
    train, held, tested = partition(
        whole.labels,
        validation=0.0 if "validation" in given else validation,
        test=0.0 if "test" in given else test,
        seed=seed,
    )
    if skipped:
        warnings.warn(
            f"{len(skipped)} images in {top} cannot be read and were skipped, first {skipped[0]}: see `skipped`",
            stacklevel=2,
        )
    return Dataset(
        name=name_of(top),
        train=whole.take(train),
        validation=given.get("validation", whole.take(held)),
        test=given.get("test", whole.take(tested)),
        classes=classes,
        bounds=bounds,
        skipped=tuple(skipped),
    )


def _split_folders(top: Path) -> dict[str, Path]:
    """The split folders beside train/, by split; empty if the folders are classes."""
    if not (top / "train").is_dir():
        return {}
    found: dict[str, Path] = {}
    for split, names in SPLITS.items():
        there = [top / name for name in names if (top / name).is_dir()]
        if len(there) > 1:
            got = ", ".join(f"{folder.name}/" for folder in there)
            raise DataError(f"{top}: expected one {split} folder beside train/, got {got}: move all but one away")
        if there:
            found[split] = there[0]
    return found


def _read(
    folder: Path,
    *,
    classes: tuple[str, ...],
    size: int,
    mode: str,
    skipped: list[str],
    limit: int | None,
    seed: int,
) -> Split:
    """Every readable image of the class folders in `folder`, sorted by path; the others are added to `skipped`."""
    foreign = [child.name for child in _visible(folder) if child.is_dir() and child.name not in classes]
    if foreign:
        raise DataError(
            f"{folder}: expected the classes of the training folder, got also {', '.join(foreign)}: rename them"
        )
    files = [(label, file) for label, name in enumerate(classes) for file in image_files(folder / name)]
    _check_labels(files, classes)
    if limit is not None and limit < len(files):
        drawn = torch.randperm(len(files), generator=torch.Generator().manual_seed(seed))[:limit]
        files = [files[at] for at in drawn.sort().values.tolist()]
    images: list[NDArray[np.uint8]] = []
    labels: list[int] = []
    for label, file in files:
        image = _read_image(file, size=size, mode=mode)
        if image is None:
            skipped.append(str(file))
        else:
            images.append(image)
            labels.append(label)
    stacked = np.stack(images) if images else np.empty((0, 1 if mode == "L" else 3, size, size), np.uint8)
    return Split(torch.from_numpy(stacked), torch.tensor(labels, dtype=torch.int64), torch.arange(len(labels)))


def _visible(folder: Path) -> list[Path]:
    return sorted(child for child in folder.iterdir() if not child.name.startswith(".")) if folder.is_dir() else []


def image_files(folder: Path, above: tuple[tuple[int, int], ...] = ()) -> list[Path]:
    """The images below a folder, by suffix, sorted by path, without hidden files and folders.

    `above` are the folders that contain it, by device and inode: a link that leads back to one would repeat their
    images, under other labels.
    """
    found: list[Path] = []
    if folder.is_dir():
        above = (*above, _identity(folder))
    for child in _visible(folder):
        if child.is_dir():
            if _identity(child) in above:
                raise DataError(f"expected folders of images, got {child}, a link back to a folder above: remove it")
            found += image_files(child, above)
        elif child.suffix.lower() in SUFFIXES:
            found.append(child)
    return found


def _identity(path: Path) -> tuple[int, int]:
    there = path.stat()
    return there.st_dev, there.st_ino


def _check_labels(files: list[tuple[int, Path]], classes: tuple[str, ...]) -> None:
    """Refuse a file that links put into two classes."""
    seen: dict[tuple[int, int], tuple[int, Path]] = {}
    for label, file in files:
        if file.is_file():
            first, other = seen.setdefault(_identity(file), (label, file))
            if first != label:
                raise DataError(
                    f"{other} and {file} are one file in two classes, {classes[first]} and {classes[label]}: remove "
                    "the link from one of them"
                )


def _read_image(file: Path, *, size: int, mode: str) -> NDArray[np.uint8] | None:
    """(C, size, size) uint8, or None if Pillow cannot read the whole image.

    16-bit grey is scaled to 8 bits (Pillow would clip it to white); 32-bit integers and floats have no known range and
    are not read.
    """
    if not file.is_file():  # a pipe, which would be waited for, or a broken link
        return None
    pillow: Any = need("PIL.Image", extra="data")
    operations: Any = need("PIL.ImageOps", extra="data")
    try:
        with pillow.open(file) as picture:
            upright = operations.exif_transpose(picture)
            if upright.mode in ("I", "F"):
                return None
            if upright.mode.startswith("I;16"):
                upright = pillow.fromarray((np.asarray(upright) / 257 + 0.5).astype(np.uint8))
            pixels = np.asarray(upright.convert(mode).resize((size, size), pillow.Resampling.LANCZOS))
    except (OSError, ValueError, SyntaxError, pillow.DecompressionBombError):
        return None
    return pixels[None] if mode == "L" else np.ascontiguousarray(pixels.transpose(2, 0, 1))
