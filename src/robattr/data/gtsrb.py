"""GTSRB from its official archives (PPM frames and CSV tables), or from prepared arrays of the same 32×32 frames.

The reference reads a derived archive of 34,799 / 4,410 / 12,630 images. It is rebuilt here from the official
data: whole frame, no crop to the sign, OpenCV's bilinear resize to 32×32, RGB. The official training set is
39,209 frames in tracks of 30 frames of one physical sign; which tracks the derived archive held out is unknown,
only how many of each class, so as many whole tracks are held out here, chosen by a fixed seed. Pixels are
equalised per channel after augmentation and lie in [0, 255].
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from robattr._extras import need
from robattr.data.dataset import Dataset, DatasetInfo, Remote, Split
from robattr.data.files import Arrays, cached, members, read_npz, sha256, sha256_file
from robattr.data.images import resize_bilinear
from robattr.errors import DataError

SIZE = 32
PER_CLASS = 10_000
SEED = 4557077
TRAIN_ZIP, TEST_ZIP, TRUTH_ZIP = ARCHIVES = (
    "GTSRB_Final_Training_Images.zip",
    "GTSRB_Final_Test_Images.zip",
    "GTSRB_Final_Test_GT.zip",
)
FRAME = re.compile(r"Images/(?:(\d{5})/(\d{5})_)?(\d{5})\.ppm$")  # class and track: of training frames only
TABLE = re.compile(r"GT-(\d{5}|final_test)\.csv$")
# Filename;Width;Height;Roi.X1;Roi.Y1;Roi.X2;Roi.Y2;ClassId
ROW = re.compile(r"^(?:(\d{5})_)?(\d{5})\.ppm(?:;\d+){6};(\d+)\r?$", re.MULTILINE)

# Class counts of the training split, without validation.
TRAIN_COUNTS = (
    180, 1980, 2010, 1260, 1770, 1650, 360, 1290, 1260, 1320, 1800, 1170, 1890, 1920, 690, 540, 360, 990,
    1080, 180, 300, 270, 330, 450, 240, 1350, 540, 210, 480, 240, 390, 690, 210, 599, 360, 1080, 330, 180,
    1860, 270, 300, 210, 210,
)  # fmt: skip

# SHA-256 of array elements: pixels uint8 (N, 32, 32, 3), labels uint8, tracks int16.
DIGESTS = {
    "train_images": "6c1fdf259fb297099004b60b775706b0fc86e13b334cd29558bcd49c19675a20",
    "test_images": "b7134a5523f72e29f8eaaf17eb0691ac90dbf75d8117920e6062767ca85a1db8",
    "train_labels": "e22865b71d083b7aab0fcdbe0ddb5b18f911ac38b6eceaed367d14a869ad5d42",
    "train_tracks": "c5fb015e5d305932b757f696d851f7f6711fcae7389b1798b30e773f17cc37ca",
    "test_labels": "90dbce9392b7eec7db1b1f1f13ea73598b72822efaaf9f608c935064fad29db2",
}

CLASSES = (
    "Speed limit (20km/h)", "Speed limit (30km/h)", "Speed limit (50km/h)", "Speed limit (60km/h)",
    "Speed limit (70km/h)", "Speed limit (80km/h)", "End of speed limit (80km/h)", "Speed limit (100km/h)",
    "Speed limit (120km/h)", "No passing", "No passing for vehicles over 3.5 metric tons",
    "Right-of-way at the next intersection", "Priority road", "Yield", "Stop", "No vehicles",
    "Vehicles over 3.5 metric tons prohibited", "No entry", "General caution", "Dangerous curve to the left",
    "Dangerous curve to the right", "Double curve", "Bumpy road", "Slippery road",
    "Road narrows on the right", "Road work", "Traffic signals", "Pedestrians", "Children crossing",
    "Bicycles crossing", "Beware of ice/snow", "Wild animals crossing", "End of all speed and passing limits",
    "Turn right ahead", "Turn left ahead", "Ahead only", "Go straight or right", "Go straight or left",
    "Keep right", "Keep left", "Roundabout mandatory", "End of no passing",
    "End of no passing by vehicles over 3.5 metric tons",
)  # fmt: skip


def read(folder: Path, digests: Mapping[str, str] = DIGESTS, train_counts: tuple[int, ...] = TRAIN_COUNTS) -> Dataset:
    """The dataset in `folder`: from train.npz and test.npz if they exist, else from the official archives.

    Prepared pixels must be the known ones. Pixels decoded from the archives are not compared with them, as it is not
    known that `resize_bilinear` equals the OpenCV build that made them; labels and tracks are, and frames by their CRC.
    """
    if all((folder / name).is_file() for name in GTSRB.prepared):
        parts = {split: read_npz(folder / f"{split}.npz") for split in ("train", "test")}
        arrays = {f"{split}_{name}": array for split, part in parts.items() for name, array in part.items()}
    elif absent := [name for name in ARCHIVES if not (folder / name).is_file()]:
        raise GTSRB.missing(folder, absent)
    else:
        source = " ".join(sha256_file(folder / name) for name in ARCHIVES)
        arrays = cached(folder / "decoded-32.npz", source=source, build=lambda: _decode(folder))
        digests = {name: digest for name, digest in digests.items() if not name.endswith("images")}
    for name, want in digests.items():
        got = sha256(arrays[name]) if name in arrays else "no such array"
        if got != want:
            raise DataError(
                f"{folder}: expected {name} of SHA-256 {want}, got {got}: delete the files there and fetch them again"
            )
    train = Split.of_arrays(arrays["train_images"], arrays["train_labels"])
    held_out = torch.from_numpy(hold_out(arrays["train_labels"], arrays["train_tracks"], train_counts))
    return Dataset(
        name="gtsrb",
        train=train.take(~held_out),
        validation=train.take(held_out),
        test=Split.of_arrays(arrays["test_images"], arrays["test_labels"]),
        classes=CLASSES,
        bounds=(0.0, 255.0),
        equalised=True,
        per_class=PER_CLASS,
    )


def hold_out(labels: NDArray[np.uint8], tracks: NDArray[np.int16], train_counts: tuple[int, ...]) -> NDArray[np.bool_]:
    """Which frames are validation frames: whole tracks of each class, by a fixed seed, until `train_counts` remain.

    The one track of 29 frames (class 33) stays in training, since all held-out numbers are multiples of 30.
    """
    random = np.random.RandomState(SEED)  # its stream never changes, unlike default_rng's
    chosen = np.zeros(len(labels), dtype=bool)
    for label, remain in enumerate(train_counts):
        of_class = labels == label
        ids, lengths = np.unique(tracks[of_class], return_counts=True)
        excess = int(of_class.sum()) - remain
        usual = int(lengths.max(initial=1))
        whole = random.permutation(ids[lengths == usual])
        if excess < 0 or excess % usual or excess // usual > len(whole):
            raise DataError(f"gtsrb: cannot hold out {excess} frames of class {label} in whole tracks of {usual}")
        chosen |= of_class & np.isin(tracks, whole[: excess // usual])
    return chosen


def _decode(folder: Path) -> Arrays:
    """The five arrays from the official archives, frames in the order class, track, frame."""
    train, train_labels = _frames(folder / TRAIN_ZIP)
    test, test_labels = _frames(folder / TEST_ZIP, folder / TRUTH_ZIP)
    return {
        "train_images": np.stack(list(train.values())),
        "train_labels": train_labels,
        "train_tracks": np.array([track for _, track, _ in train], np.int16),
        "test_images": np.stack(list(test.values())),
        "test_labels": test_labels,
    }


def _frames(*archives: Path) -> tuple[dict[tuple[int, ...], NDArray[np.uint8]], NDArray[np.uint8]]:
    """Frames by (class, track, frame), or by (frame,) in the test set, in order, and their classes by the tables."""
    images: dict[tuple[int, ...], NDArray[np.uint8]] = {}
    labels: dict[tuple[int, ...], int] = {}
    for archive in archives:
        for name, content in members(archive):
            if found := FRAME.search(name):
                images[tuple(int(part) for part in found.groups() if part)] = _frame(content, archive, name)
            elif TABLE.search(name):
                for track, frame, label in ROW.findall(content.decode("ascii", "replace")):
                    key = (int(label), int(track), int(frame)) if track else (int(frame),)
                    labels[key] = int(label)
    odd = sorted(images.keys() ^ labels.keys())
    if odd or not images:
        raise DataError(
            f"{archives[0]}: {len(images)} frames but {len(labels)} table rows"
            f"{f', first odd one {odd[0]}' if odd else ''}: incomplete, fetch the archives again"
        )
    return {key: images[key] for key in sorted(images)}, np.array([labels[key] for key in sorted(images)], np.uint8)


def _frame(content: bytes, archive: Path, name: str) -> NDArray[np.uint8]:
    image = need("PIL.Image", extra="data")
    try:
        with image.open(io.BytesIO(content), formats=["PPM"]) as picture:
            pixels = np.asarray(picture.convert("RGB"))
    except (OSError, ValueError, SyntaxError) as cause:
        raise DataError(f"{archive}: {name} is not a readable PPM image ({cause}): fetch the archive again") from cause
    return resize_bilinear(pixels, SIZE)


def _check_complete(path: Path, *, count: int, suffix: str) -> None:
    """Reject an archive that cannot be read to its end or does not have `count` members called *`suffix`."""
    got = sum(name.endswith(suffix) for name, _ in members(path))
    if got != count:
        raise DataError(f"{path}: expected {count} members called *{suffix}, got {got}: incomplete, fetch it again")


def _remote(file: str, count: int, suffix: str) -> Remote:
    mirrors = (
        "https://sid.erda.dk/public/archives/daaeac0d7ce1152aea9b61d9f1e19370",
        "https://benchmark.ini.rub.de/Dataset",
        "http://benchmark.ini.rub.de/Dataset",
    )
    check = partial(_check_complete, count=count, suffix=suffix)
    return Remote(file, tuple(f"{mirror}/{file}" for mirror in mirrors), f"a zip of {count:,} {suffix}", check)


GTSRB = DatasetInfo(
    name="gtsrb",
    classes=CLASSES,
    sizes=(34_799, 4_410, 12_630),
    shape=(3, SIZE, SIZE),
    megabytes=360,
    licence="for research",
    citation="Stallkamp, Schlipsing, Salmen, Igel: Man vs. computer, Neural Networks 32, 2012",
    remotes=(
        _remote(TRAIN_ZIP, 39_209, ".ppm"),
        _remote(TEST_ZIP, 12_630, ".ppm"),
        _remote(TRUTH_ZIP, 1, "GT-final_test.csv"),
    ),
    read=read,
    prepared=("train.npz", "test.npz"),
)
