"""A model, a map and examples: what evaluations and certificates record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from robattr.attacks.maps import AttributionMap
from robattr.engine.parts import Parts


@dataclass(frozen=True)
class ExampleSet:
    """A model, a map, and examples x with labels y and ids.

    `parts` divides a batch where the memory of the device is too small.
    """

    model: nn.Module
    map: AttributionMap
    x: Tensor
    y: Tensor
    ids: list[int]
    parts: Parts = field(default_factory=Parts, kw_only=True, repr=False, compare=False)

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return next((p.device for p in self.model.parameters()), self.x.device)

    def take(self, at: Sequence[int]) -> tuple[Tensor, Tensor, list[int]]:
        """The examples at some positions, with their labels, on the device, and their ids."""
        index = torch.tensor(list(at), dtype=torch.long, device=self.x.device)
        return self.x[index].to(self.device), self.y[index].to(self.device), [self.ids[i] for i in at]

    def examples_of(self, records: Sequence[Mapping[str, Any]]) -> tuple[Tensor, Tensor, list[int]]:
        """The examples of some records, in the same order."""
        position = {i: at for at, i in enumerate(self.ids)}
        return self.take([position[r["id"]] for r in records])

    def cut(self, size: int) -> list[range]:
        """Positions of the examples of each batch of `size`."""
        return [range(at, min(at + size, len(self.x))) for at in range(0, len(self.x), size)]
