"""Which examples a gallery shows; damaged files, thinning."""

from __future__ import annotations

import tokenize
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fake_runs import write_run
from robattr.data.files import read_npz
from robattr.errors import CheckpointError, DataError
from robattr.evaluation.gallery import Gallery, choose, read_gallery, thinned_file


def test_galleries_of_different_models_share_their_first_examples() -> None:
    def of(kendalls: list[float]) -> list[dict[str, object]]:
        return [{"id": i, "kept": k >= 0 or None, "kendall": k} for i, k in enumerate(kendalls)]

    one, other = of([0.9, -1, 0.8, 0.7, 0.2, 0.1, 0.6]), of([0.1, 0.2, 0.3, 0.9, 0.8, 0.7, -1])
    assert [r["id"] for r in choose(one, first=4, worst=1)] == [0, 2, 3, 5]
    assert [r["id"] for r in choose(other, first=4, worst=1)] == [0, 1, 2, 3, 5]


def test_a_damaged_gallery_is_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path, "natural")
    path = run / "records" / "paper-ig-gallery.npz"
    np.savez(path, id=np.arange(3))
    with pytest.raises(CheckpointError, match="lacks label"):
        read_gallery(path)
    np.savez(path, id=np.array([{}], dtype=object))
    pickled = path.read_bytes()
    np.save(path.with_suffix(".npy"), np.arange(3))
    for content in (b"nonsense", b"", pickled, pickled[:-30], path.with_suffix(".npy").read_bytes()):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"is damaged.*robattr evaluate RUN … --fresh") as refused:
            read_gallery(path)
        assert "pickle" not in str(refused.value)
    path.unlink()
    with pytest.raises(CheckpointError, match="No such file"):
        read_gallery(path)


def test_a_thinned_gallery_keeps_the_reported_iterates_and_its_budget(tmp_path: Path) -> None:
    whole = read_gallery(write_run(tmp_path, "natural", examples=12) / "records" / "paper-ig-gallery.npz")
    file = tmp_path / "small.npz"
    file.write_bytes(thinned_file(whole, most=8, budget=150_000))
    kept = read_gallery(file)
    assert len(kept) == 8
    assert kept.has_perturbed
    for g, i in enumerate(kept.id):
        where = int(np.flatnonzero(whole.id == i)[0])
        np.testing.assert_array_equal(kept.perturbed[g, 0], whole.perturbed[where, whole.reported(where)])
        np.testing.assert_allclose(kept.after[g, 0], whole.after[where, whole.reported(where)], rtol=1e-3)
    for budget, count in ((len(file.read_bytes()) - 1, 4), (1, 3)):
        file.write_bytes(content := thinned_file(whole, most=8, budget=budget))
        found = read_gallery(file)
        assert (len(found), found.has_perturbed) == (count, True)
    assert set(found.label) == {0, 1, 2}
    file.write_bytes(content[: len(content) // 2])
    with pytest.raises(CheckpointError, match="is damaged"):
        read_gallery(file)


def test_a_gallery_with_a_cut_header_is_refused(tmp_path: Path) -> None:
    """numpy's reader of headers answers with an error of Python's tokenizer."""
    header = b"{'descr': ('<f4', \n"
    with zipfile.ZipFile(tmp_path / "gallery.npz", "w") as archive:
        archive.writestr("image.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    with pytest.raises(tokenize.TokenError), np.load(tmp_path / "gallery.npz") as stored:
        stored["image"]
    with pytest.raises(CheckpointError, match="is damaged"):
        read_gallery(tmp_path / "gallery.npz")
    with pytest.raises(DataError, match="is damaged"):
        read_npz(tmp_path / "gallery.npz")


def test_large_images_nearly_fit_into_the_budget(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    shape = (6, 3, 128, 128)
    noise = rng.integers(0, 256, shape, dtype=np.uint8)  # worse than any photograph
    moved = np.clip(noise[:, None] + rng.choice((-8, 0, 8), (6, 1, *shape[1:])), 0, 255).astype(np.uint8)
    gallery = Gallery(
        id=np.arange(6), label=np.arange(6), image=noise, perturbed=moved, before=rng.random((6, 128, 128)),
        after=rng.random((6, 1, 128, 128)), topk=np.ones((6, 1)), kendall=np.ones((6, 1)),
        kept=np.ones((6, 1), dtype=bool), iterations=np.array([100]),
    )  # fmt: skip
    content = thinned_file(gallery, most=8, budget=150_000)
    assert len(content) < 400_000
    file = tmp_path / "gallery.npz"
    file.write_bytes(content)
    np.testing.assert_array_equal(read_gallery(file).perturbed, moved[:3])
    with np.load(file) as stored:
        arrays = dict(stored)
    for shift in (arrays["shift"][..., :1], arrays["shift"].astype(np.int16), arrays["shift"][0], np.uint8(3)):
        np.savez(file, **{**arrays, "shift": shift})
        with pytest.raises(CheckpointError, match="is damaged, its shift has another shape or type"):
            read_gallery(file)


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("label", lambda a: a[:-1]),
        ("image", lambda a: a[:, 0]),
        ("perturbed", lambda a: a[:, :, :, :-1]),
        ("after", lambda a: a[:, :-1]),
        ("kendall", lambda a: a.astype(str)),
        ("kept", lambda a: a.astype(float)),
        ("iterations", lambda a: a[0]),
    ],
)
def test_arrays_that_do_not_fit_each_other_are_refused(tmp_path: Path, key: str, change) -> None:
    path = write_run(tmp_path, "natural") / "records" / "paper-ig-gallery.npz"
    with np.load(path) as stored:
        arrays = dict(stored)
    read_gallery(path)
    np.savez(path, **{**arrays, key: change(arrays[key])})
    with pytest.raises(CheckpointError, match=r"is damaged, its \w+ has another shape or type"):
        read_gallery(path)
