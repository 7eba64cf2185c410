"""What a model does to its input before its first layer, and where a hardening keeps it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isclose, isfinite
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from robattr.errors import InvalidInput
from robattr.training.run_directory import RunDirectory


@dataclass(frozen=True)
class Preprocessing:
    """(x − mean) / std, per channel (axis 1), in the units of the data; one number serves every channel."""

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        if not self.mean or not self.std or not all(map(isfinite, self.mean)) or any(not 0 < s < inf for s in self.std):
            raise InvalidInput(f"expected a finite mean and positive std, per channel or one for all, got {self}")

    def agrees(self, other: Preprocessing) -> bool:
        """Whether both do the same to every channel, but for the rounding of a file."""
        pairs = ((self.mean, other.mean), (self.std, other.std))
        return all(
            (len(a) == len(b) or 1 in (len(a), len(b)))
            and all(isclose(a[i % len(a)], b[i % len(b)], rel_tol=1e-5) for i in range(max(len(a), len(b))))
            for a, b in pairs
        )

    @classmethod
    def of(cls, given: Preprocessing | Mapping[str, Any] | None) -> Preprocessing | None:
        """As given, or from Foolbox's `dict(mean=…, std=…)`."""
        if given is None or isinstance(given, Preprocessing):
            return given
        if unknown := given.keys() - {"mean", "std", "axis"}:
            raise InvalidInput(f"unknown preprocessing {sorted(unknown)}: expected mean and std, per channel")
        if given.get("axis") not in (None, -3, 1):
            raise InvalidInput(f"expected the channels on axis -3, got axis={given['axis']}: move them there")
        return cls(_tuple(given.get("mean", 0.0)), _tuple(given.get("std", 1.0)))


def check_given(given: Mapping[str, Sequence[float]], weights: Path | None) -> None:
    """Refuse weights that were hardened behind another preprocessing: they would answer wrongly, and silently."""
    here = None if weights is None else RunDirectory(weights.parent)
    if here is None or here.weights != weights or not here.preprocessing.is_file():
        return
    remedy = f"give the --mean and --std in {here.preprocessing}"
    if not given:
        here.check_bare(remedy)
    told = json.loads(here.preprocessing.read_text("utf-8"))
    kept, asked = (Preprocessing(**{key: tuple(each) for key, each in one.items()}) for one in (told, given))
    if not asked.agrees(kept):
        raise InvalidInput(f"{weights} was hardened behind {kept}, got {asked}: {remedy}")


def _tuple(value: float | Sequence[float] | Tensor) -> tuple[float, ...]:
    return tuple(torch.as_tensor(value, dtype=torch.float64).reshape(-1).tolist())
