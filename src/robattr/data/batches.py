"""Training batches as a pure function of (seed, step): nothing to save, resumable and shardable by construction."""

from __future__ import annotations

import torch
from torch import Tensor

from robattr.data.augmentation import draw, sources, truncate, warp
from robattr.data.dataset import Dataset
from robattr.engine.cuda_graph import Graphed
from robattr.engine.seeds import generator
from robattr.errors import InvalidInput

ORDER, AUGMENTATION, MIRROR = 0, 1, 2  # independent streams of one seed


class Batches:
    """The global training batch of every step; images stay on `device` as uint8, and no step waits for the device.

    An epoch is a fresh permutation. Plain datasets: consecutive slices of it, ⌊N/size⌋ an epoch (MNIST:
    55,000/50 = 1,100 exactly), without the remainder; a dataset smaller than `size` is one batch.

    Balanced datasets (`per_class` = P > 0): a virtual epoch of classes × P examples. Example i of a class is
    the class's original number i while there are any, and afterwards a freshly augmented copy of original
    number i mod count. Slices follow the reference's rule: when fewer than `size` remain they are skipped, the
    next permutation's first `size` are returned, but the pointer advances only by the skipped remainder, so
    that a few examples come twice. (The reference augments once, unseeded, before training; here every visit is
    a new draw.)

    With `mirror`, every example is flipped left to right with probability ½, drawn anew at every visit.
    """

    def __init__(
        self,
        dataset: Dataset,
        size: int = 50,
        *,
        seed: int = 0,
        mirror: bool = False,
        device: torch.device | str = "cpu",
    ) -> None:
        if size < 1:
            raise InvalidInput(f"expected a batch size >= 1, got {size}")
        if not len(dataset.train):
            raise InvalidInput(f"{dataset.name}: expected training examples, got an empty split")
        if mirror and dataset.train.images.ndim != 4:
            got = tuple(dataset.train.images.shape[1:])
            raise InvalidInput(f"{dataset.name}: expected images (C, H, W) to mirror, got inputs of shape {got}")
        self._dataset = dataset
        self._train = dataset.train.to(device)
        self._seed = seed
        self._mirror = mirror
        self._device = torch.device(device)
        self._epoch_order: tuple[int, Tensor] | None = None
        if dataset.per_class:
            self._prepare_balance(dataset)
        self._balanced = Graphed(self._balance)
        self._length = len(dataset.classes) * dataset.per_class or len(self._train)
        self.size = min(size, self._length)

    @property
    def per_epoch(self) -> int:
        """Whole batches in one pass over the (virtual) training set."""
        return self._length // self.size

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """(x, y) of a step: x (size, C, H, W) float32 in the dataset's bounds, y (size,) int64, both on the device."""
        if step < 0:
            raise InvalidInput(f"expected a step >= 0, got {step}")
        epoch, start = self._locate(step)
        chosen = self._order(epoch)[start : start + self.size]
        flips = [self._to_device(self._flips(step))] if self._mirror else []
        if not self._dataset.per_class:
            return self._dataset.pixels(_flipped(self._train.images[chosen], *flips)), self._train.labels[chosen]
        side = self._train.images.shape[-1]
        maps = sources(draw(len(chosen), side, generator(self._seed, AUGMENTATION, step)), side)
        x, y = self._balanced(chosen, self._to_device(maps), *flips)
        return x.clone(), y.clone()  # not the graph's own memory, which the next call changes

    def _flips(self, step: int) -> Tensor:
        """Which examples of a step's batch are flipped: (size,) bool."""
        return torch.rand(self.size, generator=generator(self._seed, MIRROR, step)) < 0.5

    def _to_device(self, drawn: Tensor) -> Tensor:
        """Copy what was drawn on the host to the device, without waiting for the copy."""
        return drawn.pin_memory().to(self._device, non_blocking=True) if self._device.type == "cuda" else drawn

    def _locate(self, step: int) -> tuple[int, int]:
        """The epoch of a step and where in the epoch's permutation its batch starts."""
        if not self._dataset.per_class or step < self.per_epoch:
            epoch, k = divmod(step, self.per_epoch)
            return epoch, k * self.size
        # From the second epoch on: one batch at 0, then ⌊N/size⌋ more from where the last remainder left the pointer.
        # The remainder is N mod size, then 0, then N mod size again, ...
        epoch, k = divmod(step - self.per_epoch, self.per_epoch + 1)
        pointer = self._length % self.size if epoch % 2 == 0 else 0
        return epoch + 1, 0 if k == 0 else pointer + (k - 1) * self.size

    def _order(self, epoch: int) -> Tensor:
        if self._epoch_order is None or self._epoch_order[0] != epoch:
            order = torch.randperm(self._length, generator=generator(self._seed, ORDER, epoch))
            self._epoch_order = epoch, order.to(self._device, non_blocking=True)
        return self._epoch_order[1]

    def _prepare_balance(self, dataset: Dataset) -> None:
        counts = torch.bincount(dataset.train.labels.cpu(), minlength=len(dataset.classes))
        if not bool(counts.all()):
            empty = [name for name, count in zip(dataset.classes, counts.tolist(), strict=True) if not count]
            raise InvalidInput(f"{dataset.name}: cannot balance classes without examples: {', '.join(empty)}")
        if (most := int(counts.max())) > dataset.per_class:
            raise InvalidInput(
                f"{dataset.name}: expected per_class of at least {most}, the examples of the largest class, got "
                f"{dataset.per_class}: the others would never be seen"
            )
        by_class = dataset.train.labels.cpu().argsort(stable=True)
        self._counts = counts.to(self._device)
        self._starts = (counts.cumsum(0) - counts).to(self._device)
        self._by_class = by_class.to(self._device)

    def _balance(self, chosen: Tensor, maps: Tensor, *flips: Tensor) -> tuple[Tensor, Tensor]:
        """Examples of the virtual epoch, by number, flipped where `flips` is true; copies are warped by `maps`."""
        label = chosen.div(self._dataset.per_class, rounding_mode="floor")
        number = chosen % self._dataset.per_class
        count = self._counts[label]
        images = _flipped(self._train.images[self._by_class[self._starts[label] + number % count]], *flips)
        copies = (number >= count).view(-1, 1, 1, 1)
        # Warping every image is cheaper than waiting for the host to find out which ones are copies.
        images = torch.where(copies, truncate(warp(images, maps)), images)
        return self._dataset.pixels(images), label


def _flipped(images: Tensor, *flips: Tensor) -> Tensor:
    """Mirror the images (B, C, H, W) where a flip (B,) is true; without flips they are unchanged."""
    for flip in flips:
        images = torch.where(flip.view(-1, 1, 1, 1), images.flip(-1), images)
    return images
