"""Is it the same? By what an evaluation that goes on knows its model, its examples and its map again.

Equal weights and names are not enough: the code behind them, and the files of a folder, may have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isnan
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from robattr.attacks.maps import AttributionMap, saliency
from robattr.errors import CheckpointError
from robattr.formula.network import second_order

ANSWER = 0.01  # what other hardware may change of a probability
PLACE = 0.005  # and of where the mass of a map lies
ASKED = 256  # examples that are asked for an answer at once

Known = Sequence[Mapping[str, Any]]
Examples = Callable[[Known], tuple[Tensor, Tensor, list[int]]]
"""x, y and ids of the examples that records are about, in their order."""


def answers(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """(B,) the probability the model gives the label, and the class it predicts."""
    logits = model(x)
    return logits.softmax(dim=1).gather(1, y[:, None])[:, 0], logits.argmax(dim=1)


def centres(
    map: AttributionMap, model: nn.Module, x: Tensor, y: Tensor, *, clean: Tensor | None = None
) -> list[list[float | None]]:
    """Where the mass of each clean map lies along each of its axes, from 0 to 1, and that of its guide where it has
    one: by these a map is known again whose name says nothing of its function.
    """
    found = [_centre(saliency(map, model, x, y) if clean is None else clean)]
    if map.guide is not None:
        found.append(_centre(saliency(map.guide, model, x, y)))
    return [[None if isnan(share) else share for share in row] for row in torch.cat(found, dim=1).tolist()]


def _centre(map: Tensor) -> Tensor:
    """(B, axes) the centre of mass along each axis of the map, as a share of its length."""
    mass, axes, found = map.double(), range(1, map.dim()), []
    for axis in axes:
        others = [a for a in axes if a != axis]
        along = mass.sum(dim=others) if others else mass
        places = torch.linspace(0, 1, along.shape[1], dtype=along.dtype, device=along.device)
        found.append((along * places).sum(dim=1) / along.sum(dim=1))
    return torch.stack(found, dim=1).mul(1e4).round() / 1e4


def check_answers(path: Path, known: Known, model: nn.Module, of: Examples) -> None:
    """Refuse to go on with records of other examples, or of a model that answers otherwise."""
    for part in (known[at : at + ASKED] for at in range(0, len(known), ASKED)):
        x, y, ids = of(part)
        with second_order(model), torch.no_grad():
            sure = answers(model, x, y)[0].tolist()
        for i, label, now, record in zip(ids, y.tolist(), sure, part, strict=True):
            then = record.get("confidence", now)
            if label != record["label"] or not abs(now - then) <= ANSWER:
                raise CheckpointError(
                    f"expected the model and the examples that {path} was made with, got others (example {i}: "
                    f"label {record['label']} with probability {then:.2f} then, {label} with {now:.2f} now): "
                    "write elsewhere, or begin anew with --fresh"
                )


def check_map(path: Path, known: Known, model: nn.Module, map: AttributionMap, of: Examples) -> None:
    """Refuse to go on with records of another map of that name."""
    x, y, ids = of(known)
    for i, record, now in zip(ids, known, centres(map, model, x, y), strict=True):
        then = record["centre"]
        if len(then) != len(now) or any(not _near(a, b) for a, b in zip(then, now, strict=True)):
            raise CheckpointError(
                f"expected the map {map.name!r} that {path} was made with, got another of that name (example {i}: the "
                f"centre of its mass, and of its guide's, was {then} and is {now}): give it another name, write "
                "elsewhere, or begin anew with --fresh"
            )


def _near(a: float | None, b: float | None) -> bool:
    return a == b if a is None or b is None else abs(a - b) <= PLACE
