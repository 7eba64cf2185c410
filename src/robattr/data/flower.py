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
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from robattr._extras import need
from robattr.data.dataset import Dataset, DatasetInfo, Remote, Split
from robattr.data.files import cached, members, sha256
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
    source = next((path for path in (folder / "jpg", folder / ARCHIVE) if path.exists()), None)
    if source is None:
        raise FLOWER.missing(folder, [ARCHIVE, "jpg/image_0001.jpg … image_1360.jpg"])
    originals = read_originals(source, digests)
    made_of = sha256("".join(map(sha256, originals)).encode())
    arrays = cached(
        folder / "decoded-128.npz",
        source=f"{made_of} Pillow {need('PIL', extra='data').__version__}",  # its JPEG decoder is part of the result
        build=lambda: {"images": np.stack([_decode(content) for content in originals])},
    )
    return split(arrays["images"])


def read_originals(source: Path, digests: Mapping[str, str] | None = None) -> list[bytes]:
    """The 1,360 JPEG files in the order of their numbers, each checked; other files are ignored."""
    found = {PurePosixPath(path).name: content for path, content in members(source)}
    expected = content_digests() if digests is None else digests
    bad = [name for name in NAMES if name not in found or sha256(found[name]) != expected[name]]
    if bad:
        raise DataError(
            f"{source}: {len(bad)} of {len(NAMES)} images are missing, damaged or not the originals, first {bad[0]}: "
            "delete it and run `robattr data fetch flower`"
        )
    return [found[name] for name in NAMES]


def _decode(content: bytes) -> NDArray[np.uint8]:
    image = need("PIL.Image", extra="data")
    with image.open(io.BytesIO(content), formats=["JPEG"]) as picture:
        return np.asarray(picture.convert("RGB").resize((SIZE, SIZE), image.Resampling.LANCZOS))


def split(images: NDArray[np.uint8]) -> Dataset:
    """The dataset of the decoded images (1360, 128, 128, 3), in the order of their numbers; ids are number − 1."""
    listing = np.concatenate([np.arange(block * BLOCK, (block + 1) * BLOCK) for block in FOLDERS])
    labels = np.repeat(np.arange(len(FOLDERS)), BLOCK)
    order = np.random.RandomState(SEED).permutation(len(listing))
    rank = np.empty_like(order)  # of each image within its class
    rank[np.argsort(labels[order], kind="stable")] = np.tile(np.arange(BLOCK), len(FOLDERS))

    def part(first: int, end: int) -> Split:
        chosen = order[(first <= rank) & (rank < end)]
        return Split.of_arrays(images[listing[chosen]], labels[chosen], listing[chosen])

    return Dataset(
        name="flower",
        train=part(0, TRAIN - VALIDATION),
        validation=part(TRAIN - VALIDATION, TRAIN),
        test=part(TRAIN, BLOCK),
        classes=CLASSES,
        bounds=(0.0, 255.0),
        per_class=PER_CLASS,
    )


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
            read_originals,
        ),
    ),
    read=read,
    prepared=("jpg",),
)
