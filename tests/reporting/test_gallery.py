"""Galleries: damaged files, thinning, top-k masks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fake_runs import write_run
from robattr.errors import CheckpointError
from robattr.reporting.gallery import Gallery, read_gallery, thinned_file, top_k


def test_top_k_takes_exactly_k_and_the_lower_index_of_equals() -> None:
    mask = top_k(np.array([[0.0, 3.0, 1.0], [1.0, 0.0, 1.0]]), 3)
    np.testing.assert_array_equal(mask, [[False, True, True], [True, False, False]])
    assert top_k(np.zeros((2, 2)), 100).all()


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
    sizes = {budget: thinned_file(whole, most=8, budget=budget) for budget in (len(file.read_bytes()) - 1, 1)}
    for (_, content), (count, walks) in zip(sizes.items(), ((8, False), (3, False)), strict=True):
        file.write_bytes(content)
        found = read_gallery(file)
        assert (len(found), found.has_perturbed) == (count, walks)
    assert set(found.label) == {0, 1, 2}
    file.write_bytes(content[: len(content) // 2])
    with pytest.raises(CheckpointError, match="is damaged"):
        read_gallery(file)


def test_large_images_nearly_fit_into_the_budget() -> None:
    rng = np.random.default_rng(0)
    shape = (6, 3, 128, 128)
    noise = rng.integers(0, 256, shape, dtype=np.uint8)  # worse than any photograph
    gallery = Gallery(
        id=np.arange(6), label=np.arange(6), image=noise, perturbed=noise[:, None], before=rng.random((6, 128, 128)),
        after=rng.random((6, 1, 128, 128)), topk=np.ones((6, 1)), kendall=np.ones((6, 1)),
        kept=np.ones((6, 1), dtype=bool), iterations=np.array([100]),
    )  # fmt: skip
    assert len(thinned_file(gallery, most=8, budget=150_000)) < 400_000
