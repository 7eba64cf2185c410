"""Splits, datasets and batches: shapes, determinism, balance, the reference's remainder rule."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from robattr import data
from robattr.data.batches import AUGMENTATION, MIRROR, generator
from robattr.errors import InvalidInput


def dataset(counts: tuple[int, ...], *, per_class: int = 0, size: int = 8, equalised: bool = False) -> data.Dataset:
    """Classes of the given counts; every image is flat, and its level is its id, so that it can be recognised."""
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))]
    ids = torch.arange(len(labels))
    images = ids.to(torch.uint8).view(-1, 1, 1, 1).repeat(1, 3, size, size)
    split = data.Split(images, labels, ids)
    names = tuple(f"c{i}" for i in range(len(counts)))
    return data.Dataset("flat", split, split.first(2), split.first(3), names, (0.0, 255.0), equalised, per_class)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda: dataset((3, 3)).split("tset"), "no split is called 'tset': did you mean 'test'"),
        (lambda: dataset((3, 3)).train.first(-1), "expected a number of examples >= 0, got -1"),
        (
            lambda: data.Dataset("d", *(dataset((3, 3)).train,) * 3, ("only",), (0.0, 1.0)),
            r"expected train labels in 0\.\.0, got 0\.\.1: number classes from 0, and name every class",
        ),
        (
            lambda: data.Dataset("d", *(dataset((3, 3)).train,) * 3, ("a", "b"), (1.0, 1.0)),
            r"expected bounds \(low, high\) with low < high",
        ),
        (lambda: data.Batches(dataset((3, 3)), 0), "expected a batch size >= 1, got 0"),
        (lambda: data.Batches(dataset((3, 3)), 2).batch(-1), "expected a step >= 0, got -1"),
        (lambda: data.Batches(dataset((3, 0), per_class=5), 2), "cannot balance classes without examples"),
        (lambda: data.Batches(dataset((3, 6), per_class=5), 2), "expected per_class of at least 6"),
    ],
)
def test_mistakes_are_named(broken, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        broken()


def test_an_epoch_is_a_permutation() -> None:
    batches = data.Batches(dataset((30, 30)), 10, seed=5)
    assert batches.per_epoch == 6
    epochs = [
        torch.cat([batches.batch(step)[0][:, 0, 0, 0] for step in range(6 * e, 6 * e + 6)]).tolist() for e in (0, 1)
    ]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(60))
    assert epochs[0] != epochs[1]


def test_remainder_of_a_plain_dataset_is_left_out_and_small_ones_are_one_batch() -> None:
    batches = data.Batches(dataset((7, 6)), 5)
    assert batches.per_epoch == 2
    assert {len(batches.batch(step)[1]) for step in range(6)} == {5}
    small = data.Batches(dataset((2, 2)), 50)
    assert small.per_epoch == 1
    assert sorted(small.batch(3)[0][:, 0, 0, 0].tolist()) == [0, 1, 2, 3]


@pytest.mark.parametrize("per_class", [0, 40])
def test_batches_are_a_function_of_seed_and_step(per_class: int) -> None:
    flat = dataset((5, 9, 2), per_class=per_class)
    forward, backward = data.Batches(flat, 4, seed=1), data.Batches(flat, 4, seed=1)
    seen = {step: forward.batch(step) for step in range(40)}
    for step in (39, 3, 17, 0, 38):
        x, y = backward.batch(step)
        assert torch.equal(x, seen[step][0])
        assert torch.equal(y, seen[step][1])
    other = data.Batches(flat, 4, seed=2)
    assert any(not torch.equal(other.batch(step)[0], seen[step][0]) for step in range(4))


def naive_starts(length: int, size: int, steps: int) -> list[tuple[int, int]]:
    """The reference's loop, with its pointer, as it runs."""
    epoch, pointer, out = 0, 0, []
    for _ in range(steps):
        left = min(size, length - pointer)
        if left < size:
            epoch, pointer = epoch + 1, 0
        out.append((epoch, pointer))
        pointer += left
    return out


@pytest.mark.parametrize("size", [3, 4, 7, 16, 60])
def test_the_references_remainder_rule(size: int) -> None:
    batches = data.Batches(dataset((3, 5), per_class=30), size)
    expected = naive_starts(60, size, 200)
    assert [batches._locate(step) for step in range(200)] == expected


def test_balanced_epoch_is_originals_then_copies() -> None:
    """Each class comes per_class times; original k once as it is, the copies of originals i mod count."""
    flat = dataset((3, 5), per_class=20)
    batches = data.Batches(flat, 20, seed=3)
    x, y = (torch.cat(parts) for parts in zip(*(batches.batch(step) for step in range(2)), strict=True))
    assert y.bincount().tolist() == [20, 20]
    level = x[:, 0, 4, 4]  # the middle of a flat image keeps its level, up to truncation
    for label, count in ((0, 3), (1, 5)):
        of_class = flat.train.images[flat.train.labels == label][:, 0, 0, 0].tolist()
        chosen = level[y == label]
        near = torch.tensor([[abs(float(v) - o) <= 1 for o in of_class] for v in chosen])
        assert bool(near.any(1).all())
        untouched = [(image == image[0, 0, 0]).all() and float(image[0, 0, 0]) in of_class for image in x[y == label]]
        assert sum(map(bool, untouched)) >= count


@pytest.mark.parametrize("device", ["cpu", *(["cuda"] if torch.cuda.is_available() else [])])
@pytest.mark.parametrize("equalised", [False, True])
def test_balanced_batches_one_by_one(device: str, equalised: bool) -> None:
    """Against a loop over the examples, on every device; a batch that was handed out is not written to again."""
    flat = dataset((3, 5), per_class=20, size=16)
    images = torch.randint(0, 256, (8, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    textured = data.Dataset(
        "textured", data.Split(images, flat.train.labels, flat.train.ids), flat.validation, flat.test,
        flat.classes, flat.bounds, equalised, 20,
    )  # fmt: skip
    batches = data.Batches(textured, 15, seed=3, device=device)
    made = [batches.batch(step) for step in range(6)]
    for step, (x, y) in enumerate(made):
        epoch, start = batches._locate(step)
        drawn = data.draw(15, 16, generator(3, AUGMENTATION, step))
        for i, number in enumerate(batches._order(epoch).cpu()[start : start + 15].tolist()):
            label, k = divmod(number, 20)
            of_class = images[flat.train.labels == label]
            image = of_class[k % len(of_class)][None]
            if k >= len(of_class):
                geometry = data.Geometry(drawn.angle[i, None], drawn.shift[i, None], drawn.corners[i, None])
                image = data.augment(image, geometry)
            assert y[i] == label
            assert torch.equal(x[i].cpu(), textured.pixels(image)[0])


@pytest.mark.parametrize("device", ["cpu", *(["cuda"] if torch.cuda.is_available() else [])])
@pytest.mark.parametrize("per_class", [0, 20])
def test_mirrored_batches_one_by_one(device: str, per_class: int) -> None:
    """About half of the examples are NumPy's fliplr of what they would be without `mirror`, before any warp."""
    flat = dataset((4, 6), per_class=per_class, size=16)
    images = torch.randint(0, 256, (10, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    turned = torch.from_numpy(np.stack([[np.fliplr(channel) for channel in image] for image in images.numpy()]))
    plain, other = (
        data.Batches(
            data.Dataset("t", data.Split(pixels, flat.train.labels, flat.train.ids), flat.validation, flat.test,
                         flat.classes, flat.bounds, per_class=per_class),
            10, seed=3, device=device,
        )
        for pixels in (images, turned)
    )  # fmt: skip
    mirrored = data.Batches(plain._dataset, 10, seed=3, mirror=True, device=device)
    flips = 0
    for step in range(12):
        tosses = torch.rand(10, generator=generator(3, MIRROR, step)) < 0.5
        (x, y), (left, _), (right, _) = (each.batch(step) for each in (mirrored, plain, other))
        for i, toss in enumerate(tosses.tolist()):
            assert torch.equal(x[i], right[i] if toss else left[i])
        assert torch.equal(y, plain.batch(step)[1])
        flips += int(tosses.sum())
    assert 40 < flips < 80


def test_copies_are_fresh_in_every_epoch() -> None:
    flat = dataset((1, 1), per_class=4, size=16)
    images = torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    train = data.Split(images, flat.train.labels, flat.train.ids)
    batches = data.Batches(data.Dataset("r", train, train, train, flat.classes, (0.0, 255.0), per_class=4), 8)
    x = torch.cat([batches.batch(step)[0] for step in (0, 1, 3)]).flatten(1)
    distinct = x.unique(dim=0)
    assert len(distinct) == 2 + 3 * 6  # two originals, and six new copies in each of three batches


def test_labels_follow_images() -> None:
    flat = dataset((4, 4, 4), per_class=30, size=16)
    x, y = data.Batches(flat, 45).batch(0)
    by_level = {int(level): int(label) for level, label in zip(flat.train.ids, flat.train.labels, strict=True)}
    originals = [(int(i[0, 0, 0]), int(label)) for i, label in zip(x, y, strict=True) if bool((i == i[0, 0, 0]).all())]
    assert originals
    assert all(by_level[level] == label for level, label in originals if level in by_level and level > 0)


def test_generators_of_neighbouring_steps_are_unrelated() -> None:
    firsts = torch.stack([torch.rand(4, generator=generator(0, 1, step)) for step in range(2000)])
    assert abs(float(firsts.mean()) - 0.5) < 0.02
    assert float(torch.corrcoef(torch.stack([firsts[:-1, 0], firsts[1:, 0]]))[0, 1].abs()) < 0.1
    seeds = {
        generator(seed, stream, index).initial_seed() for seed in (-1, 0, 1) for stream in (0, 1) for index in (0, 1)
    }
    assert len(seeds) == 12
