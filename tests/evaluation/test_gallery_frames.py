"""The walk that a gallery shows is the one that gave the score: under both protocols, compiled, and in batches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from evaluation_fixtures import IG, TOY, toy_case
from robattr.engine.compiled import traced
from robattr.evaluation import gallery, job, run
from robattr.evaluation.evaluate_batch import evaluate_batch
from robattr.evaluation.output_dir import OutputDir
from robattr.evaluation.protocol import strict
from robattr.metrics import kendall

pytestmark = pytest.mark.usefixtures("quick_diagnostics")


@pytest.fixture
def pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of two examples."""
    monkeypatch.setattr(job, "BATCH", (2, 2))
    monkeypatch.setattr(job, "rows_that_fit", lambda model, x, passes, least: 2)


@pytest.mark.parametrize("protocol", [TOY, strict(replace(TOY, repeats=1))], ids=["paper", "strict"])
def test_frames_are_iterates_of_the_reported_attack(protocol) -> None:
    """In the ball, with the maps of the network there; the lowest of them has the recorded score, or a higher one."""
    net, x, y = toy_case()
    made = evaluate_batch(net, x, y, ids=range(len(x)), protocol=protocol, map=IG, first=len(x))
    shown, score = made.gallery, {r["id"]: r["kendall"] for r in made.records}
    assert shown is not None
    assert shown.id.tolist() == [r["id"] for r in made.records if r["kept"]]
    for g, i in enumerate(shown.id.tolist()):
        moved = np.abs(shown.perturbed[g].astype(int) - shown.image[g].astype(int)) / 255
        assert 0 < moved.max() <= protocol.eps + 1 / 255
        seen = torch.as_tensor(shown.perturbed[g] / 255).to(x)  # rounded to bytes, which may cross a kink of the net
        maps, recorded = IG(net, seen, y[i].repeat(len(seen))).detach(), torch.as_tensor(shown.after[g]).float()
        assert kendall(maps, recorded).median() > 0.95
        lowest = shown.kendall[g][shown.kept[g]].min()
        assert lowest >= score[i] - 1e-6
        if not protocol.strict:  # every iterate is a frame; a strict attack has more of them
            assert lowest == pytest.approx(score[i], abs=1e-6)


def test_compiled_passes_show_the_same_walk(monkeypatch) -> None:
    """They have a fixed number of rows, and their padding is not shown."""
    monkeypatch.setattr("robattr.engine.compiled.inductor", traced)
    net, x, y = toy_case()
    eager, compiled = (
        evaluate_batch(net, x[:5], y[:5], ids=range(5), protocol=TOY, map=IG, batch=batch, first=5).gallery
        for batch in (None, 6)
    )
    for key in ("id", "perturbed", "kept"):
        np.testing.assert_array_equal(getattr(eager, key), getattr(compiled, key))
    for key in ("before", "after", "topk", "kendall"):
        np.testing.assert_allclose(getattr(eager, key), getattr(compiled, key), atol=2e-3)


def test_batches_and_continued_evaluations_make_the_same_gallery(tmp_path: Path, pairs: None) -> None:
    """The first three examples and the worst of the others: from all records, and from batches by two commands."""
    net, x, y = toy_case()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job, "rows_that_fit", lambda model, x, passes, least: len(y))
        patch.setattr(job, "BATCH", (1, len(y)))
        run.evaluate(net, x, y, protocol=TOY, map=IG, out=OutputDir(tmp_path / "once"))
    for n in (5, len(x)):
        run.evaluate(net, x[:n], y[:n], protocol=TOY, map=IG, out=OutputDir(tmp_path / "twice"))
    one, other = (gallery.read_gallery(tmp_path / name / "paper-ig-gallery.npz") for name in ("once", "twice"))
    assert len(one) > 4
    np.testing.assert_array_equal(one.id, other.id)
    np.testing.assert_array_equal(one.perturbed, other.perturbed)
    assert not list((tmp_path / "twice").glob("*.from*"))


def test_a_batch_keeps_all_that_a_gallery_of_all_may_show() -> None:
    """Whatever the batches: what is chosen from all records was chosen from those of its batch."""
    draws = np.random.default_rng(0)
    records = [{"id": i, "kept": bool(draws.random() < 0.8), "kendall": draws.random()} for i in range(40)]
    shown = {r["id"] for r in gallery.choose(records, first=9, worst=3)}
    for size in (1, 7, 40):
        kept = set()
        for at in range(0, 40, size):
            batch = records[at : at + size]
            kept |= {r["id"] for r in gallery.choose(batch, first=sum(r["id"] < 9 for r in batch), worst=3)}
        assert shown <= kept


def test_an_evaluation_that_was_stopped_keeps_its_walks(tmp_path: Path, pairs: None) -> None:
    """Stopped after its second batch: the same command shows the examples of all batches; a fresh one none of them."""
    net, x, y = toy_case()

    def stop(_: str, finished: int, total: int) -> None:
        if finished >= 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.evaluate(net, x, y, protocol=TOY, map=IG, out=OutputDir(tmp_path), watch=stop)
    assert len(list(tmp_path.glob("*.from*-gallery.npz"))) == 2
    found = run.evaluate(net, x, y, protocol=TOY, map=IG, out=OutputDir(tmp_path))
    shown = gallery.read_gallery(tmp_path / "paper-ig-gallery.npz")
    assert shown.id.tolist() == [r["id"] for r in found.records if r["kept"]]
    with pytest.raises(KeyboardInterrupt):
        run.evaluate(net, x, y, protocol=TOY, map=IG, out=OutputDir(tmp_path, fresh=True), watch=stop)
    run.evaluate(net, x[:2], y[:2], protocol=TOY, map=IG, out=OutputDir(tmp_path, fresh=True))
    assert set(gallery.read_gallery(tmp_path / "paper-ig-gallery.npz").id.tolist()) <= {0, 1}
    assert not list(tmp_path.glob("*.from*"))
