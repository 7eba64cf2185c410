"""The explorer's data unpacks to the gallery."""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path

import numpy as np
import pytest

from fake_runs import write_run
from robattr.evaluation.gallery import read_gallery
from robattr.reporting.display import top_k
from robattr.reporting.explorer import explorer
from robattr.reporting.groups import group_evaluations
from robattr.reporting.run_results import read_runs


@pytest.mark.parametrize("colour", [False, True])
def test_a_packed_example_unpacks_to_the_gallery(tmp_path: Path, colour: bool) -> None:
    run = write_run(tmp_path, "natural", colour=colour, steps=4)
    gallery = read_gallery(run / "records" / "paper-ig-gallery.npz")
    packed = explorer(group_evaluations(read_runs([run])))[0]
    example = packed["examples"][2]
    height, width, channels = packed["shape"]
    image = np.frombuffer(zlib.decompress(base64.b64decode(example["image"])), np.uint8)
    np.testing.assert_array_equal(image.reshape(height, width, channels), np.moveaxis(gallery.image[2], 0, -1))
    blob = np.frombuffer(zlib.decompress(base64.b64decode(example["models"][0]["blob"])), np.uint8)
    size, steps = height * width, 4
    assert blob.size == steps * size * channels + (steps + 1) * size + (steps + 1) * ((size + 7) // 8)
    change = blob[: steps * size * channels].reshape(steps, height, width, channels).astype(int) - 128
    np.testing.assert_array_equal(
        np.moveaxis(gallery.image[2], 0, -1) + change, np.moveaxis(gallery.perturbed[2], 1, -1)
    )
    packed_map = (size + 7) // 8
    bits = np.unpackbits(blob[-packed_map:])[:size].astype(bool)
    np.testing.assert_array_equal(bits.reshape(height, width), top_k(gallery.after[2, -1], packed["k"]))


def test_the_explorer_stays_within_its_budget(runs: list[Path]) -> None:
    everything = explorer(group_evaluations(read_runs(runs)))[0]["examples"]
    half = len(json.dumps(everything)) // 2
    fewer = explorer(group_evaluations(read_runs(runs)), budget=half)[0]["examples"]
    assert 1 <= len(fewer) < len(everything)
    assert len(json.dumps(fewer)) <= half
