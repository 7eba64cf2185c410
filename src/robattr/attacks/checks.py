"""Checks of the examples and settings of an attack, before any time is spent."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from robattr.errors import InvalidInput
from robattr.formula.neighbourhoods import Bounds, check_bounds


def check_attack(
    x: Tensor,
    y: Tensor,
    ids: Sequence[int] | None,
    *,
    bounds: Bounds,
    alpha: float,
    steps: int,
    restarts: int,
    seed: int,
) -> None:
    """Reject an empty batch, labels or ids of another length, and settings that cannot attack."""
    if not len(x):
        raise InvalidInput("expected at least one example to attack, got none")
    for name, each in (("labels", y), ("ids", ids)):
        if each is not None and len(each) != len(x):
            raise InvalidInput(f"expected {len(x)} {name}, one per example, got {len(each)}")
    for name, value, least in (("alpha", alpha, 0), ("steps", steps, 1), ("restarts", restarts, 1), ("seed", seed, 0)):
        if not value >= least:
            raise InvalidInput(f"expected {name} of at least {least}, got {value}")
        if name != "alpha" and not isinstance(value, int):
            raise InvalidInput(f"expected {name} to be a whole number, got {value!r}")
    check_bounds(x, bounds)
