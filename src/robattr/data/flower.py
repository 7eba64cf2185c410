"""Oxford 17 Flowers from 17flowers.tgz or its jpg folder: 1,360 images, 80 of each of 17 species.

Follows the reference's code. Consecutive blocks of 80 images form folders 0 … 16, and a label is the rank of
the folder's name in *string* order (0, 1, 10, 11, …, 16, 2, …, 9): `CLASSES` is in label order, so that names
and labels agree, which in the reference they do not (its "Windflower", label 15, is a Fritillary). Images are
resized to 128×128 by Pillow's Lanczos filter, aspect ignored, RGB; pixels lie in [0, 255]; no equalisation.

Split: one permutation of all images with seed 4557077; the first 72 of each class are the paper's training set
(1,224), the other 8 its test set (136), both in permuted order. Within a folder the reference takes the file
system's order, which is lost; here it is the order of names, so the test labels come in the reference's
sequence while the membership is our own. The paper has no validation set. The last 8 of each class in the
training set are set apart as one, which leaves 1,088; `Dataset.full()` puts them back for the final run.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from numpy.typing import NDArray

from robattr._extras import need
from robattr.data.dataset import Dataset, DatasetInfo, Remote, Split
from robattr.data.files import Arrays, cached, members, sha256
from robattr.errors import DataError

SIZE = 128
PER_CLASS = 1_000
SEED = 4557077
BLOCK, TRAIN, VALIDATION = 80, 72, 8  # of each class: all, the paper's training set, and our validation part of it
ARCHIVE = "17flowers.tgz"
SPECIES = (
    "Daffodil", "Snowdrop", "Lily of the valley", "Bluebell", "Crocus", "Iris", "Tigerlily", "Tulip",
    "Fritillary", "Sunflower", "Daisy", "Colts' foot", "Dandelion", "Cowslip", "Buttercup", "Windflower",
    "Pansy",
)  # fmt: skip
FOLDERS = tuple(sorted(range(len(SPECIES)), key=str))  # FOLDERS[label] is the block of images that carries the label
CLASSES = tuple(SPECIES[block] for block in FOLDERS)
NAMES = tuple(f"image_{number:04d}.jpg" for number in range(1, BLOCK * len(SPECIES) + 1))


def content_digests() -> dict[str, str]:
    """SHA-256 of each original JPEG file, as `sha256sum` writes it."""
    text = files("robattr.data").joinpath("embedded/flower.sha256").read_text("ascii")
    return {name: digest for digest, name in (line.split() for line in text.splitlines())}


def read(folder: Path, digests: Mapping[str, str] | None = None) -> Dataset:
    """The dataset in `folder`: from its folder jpg if it exists, else from 17flowers.tgz."""
    sources = [folder / "jpg", folder / ARCHIVE]
    source = next((path for path in sources if path.exists()), None)
    if source is None:
        raise FLOWER.missing(folder, [ARCHIVE, "jpg/image_0001.jpg … image_1360.jpg"])
    originals = read_originals(source, content_digests() if digests is None else digests)
    pillow = need("PIL", extra="data")
    made_of = sha256("".join(sha256(originals[name]) for name in NAMES).encode())
    arrays = cached(
        folder / "decoded-128.npz",
        source=f"{made_of} Pillow {pillow.__version__}",  # its JPEG decoder is part of the result
        build=lambda: _decode(originals, source),
    )
    return split(arrays["images"])


def read_originals(source: Path, digests: Mapping[str, str]) -> dict[str, bytes]:
    """name -> bytes of all 1,360 JPEG files, each checked; other files are ignored."""
    found: dict[str, bytes] = {}
    for path, content in members(source):
        name = PurePosixPath(path).name
        if re.fullmatch(r"image_\d{4}\.jpg", name):
            found[name] = content
    absent = [name for name in NAMES if name not in found]
    wrong = [name for name in NAMES if name in found and sha256(found[name]) != digests[name]]
    for problem, names in (("missing", absent), ("damaged or not the originals", wrong)):
        if names:
            raise DataError(
                f"{source}: {len(names)} of {len(NAMES)} images are {problem}, first {names[0]}: delete it and run "
                "`robattr data fetch flower`"
            )
    return found


def _decode(originals: Mapping[str, bytes], source: Path) -> Arrays:
    image = need("PIL.Image", extra="data")
    pixels = np.empty((len(NAMES), SIZE, SIZE, 3), np.uint8)
    for number, name in enumerate(NAMES):
        try:
            with image.open(io.BytesIO(originals[name]), formats=["JPEG"]) as picture:
                pixels[number] = picture.convert("RGB").resize((SIZE, SIZE), image.Resampling.LANCZOS)
        except (OSError, ValueError, SyntaxError) as cause:
            raise DataError(f"{source}: {name} cannot be decoded ({cause}): fetch it again") from cause
    return {"images": pixels}


def split(images: NDArray[np.uint8]) -> Dataset:
    """The dataset of the decoded images (1360, 128, 128, 3), in the order of their numbers; ids are number − 1."""
    listing = np.concatenate([np.arange(block * BLOCK, (block + 1) * BLOCK) for block in FOLDERS])
    labels = np.repeat(np.arange(len(FOLDERS)), BLOCK)
    parts: dict[str, list[int]] = {"train": [], "validation": [], "test": []}
    seen = np.zeros(len(FOLDERS), int)
    for position in np.random.RandomState(SEED).permutation(len(listing)):
        rank = seen[labels[position]]
        seen[labels[position]] += 1
        parts["test" if rank >= TRAIN else "validation" if rank >= TRAIN - VALIDATION else "train"].append(position)

    def part(name: str) -> Split:
        positions = parts[name]
        ids = listing[positions]
        chw = np.ascontiguousarray(images[ids].transpose(0, 3, 1, 2))
        return Split(torch.from_numpy(chw), torch.from_numpy(labels[positions]), torch.from_numpy(ids))

    return Dataset(
        name="flower",
        train=part("train"),
        validation=part("validation"),
        test=part("test"),
        classes=CLASSES,
        bounds=(0.0, 255.0),
        per_class=PER_CLASS,
    )


def _check(path: Path) -> None:
    read_originals(path, content_digests())


FLOWER = DatasetInfo(
    name="flower",
    classes=CLASSES,
    sizes=(1_088, 136, 136),
    shape=(3, SIZE, SIZE),
    megabytes=60,
    licence="for research",
    citation="Nilsback, Zisserman: A visual vocabulary for flower classification, CVPR 2006",
    remotes=(
        Remote(
            ARCHIVE,
            (
                f"https://www.robots.ox.ac.uk/~vgg/data/flowers/17/{ARCHIVE}",
                f"http://www.robots.ox.ac.uk/~vgg/data/flowers/17/{ARCHIVE}",
            ),
            "1,360 JPEG files of known SHA-256",
            _check,
        ),
    ),
    read=read,
    prepared=("jpg",),
)
