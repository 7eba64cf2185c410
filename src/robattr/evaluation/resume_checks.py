"""Checks that a resumed evaluation uses the same model, examples and map.

Equal weights and names are not enough: the model's code or the files of a folder may have changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from math import isnan
from pathlib import Path

import torch
from torch import Tensor, nn

from robattr.attacks.maps import AttributionMap, saliency
from robattr.engine import exactly
from robattr.errors import CheckpointError
from robattr.evaluation.example_set import ExampleSet
from robattr.evaluation.records import Rows, read
from robattr.evaluation.scores import PROBED
from robattr.formula.network import second_order
from robattr.models.weights_file import unwrapped

PROBABILITY_TOLERANCE = 0.01  # other hardware may change a probability by this much
CENTRE_TOLERANCE = 0.005  # and a mass centre, as a share of the side
BATCH = 256


def label_probability(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """(B,) the probability of the label, and the predicted class, in fp32."""
    logits = exactly(model)(x)
    return logits.softmax(dim=1).gather(1, y[:, None])[:, 0], logits.argmax(dim=1)


def mass_centres(
    map: AttributionMap, model: nn.Module, x: Tensor, y: Tensor, *, clean: Tensor | None = None
) -> list[list[float | None]]:
    """The mass centre of each clean map along each axis, from 0 to 1, followed by that of its guide if it has one.

    They identify a user's map, whose name does not determine its function.
    """
    found = [_mass_centre(saliency(map, model, x, y) if clean is None else clean)]
    if map.guide is not None:
        found.append(_mass_centre(saliency(map.guide, model, x, y)))
    return [[None if isnan(share) else share for share in row] for row in torch.cat(found, dim=1).tolist()]


def _mass_centre(map: Tensor) -> Tensor:
    """(B, axes) the mass centre along each axis of the map, as a share of its length."""
    mass, axes, found = map.double(), range(1, map.dim()), []
    for axis in axes:
        others = [a for a in axes if a != axis]
        along = mass.sum(dim=others) if others else mass
        position = torch.linspace(0, 1, along.shape[1], dtype=along.dtype, device=along.device)
        found.append((along * position).sum(dim=1) / along.sum(dim=1))
    return torch.stack(found, dim=1).mul(1e4).round() / 1e4


def digest_of_weights(model: nn.Module) -> str:
    """A short digest of a model's weights and buffers, without extra state that is not a tensor."""
    return digest_of_tensors({name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)})


def digest_of_tensors(tensors: Mapping[str, Tensor]) -> str:
    """The same digest, of a state dict or of a weights file; wrappers such as an audit's do not change it."""
    weights = hashlib.sha256()
    for name, tensor in sorted(unwrapped(tensors)[-1].items()):
        weights.update(name.encode())
        weights.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return weights.hexdigest()[:16]


def check_same(path: Path, done: set[int], examples: ExampleSet) -> None:
    """Reject records, those of the ids `done`, that are of other examples, of another model or of another map."""
    known = read(path, examples.ids) if done else []
    _check_predictions(path, known, examples)
    if some := [r for r in known if r.get("centre")][:PROBED]:
        examples.parts(lambda part: _check_map(path, some[part], examples), len(some))


def _check_predictions(path: Path, records: Rows, examples: ExampleSet) -> None:
    for part in (records[at : at + BATCH] for at in range(0, len(records), BATCH)):
        x, y, ids = examples.examples_of(part)
        with second_order(examples.model), torch.no_grad():
            probability = label_probability(examples.model, x, y)[0].tolist()
        for i, label, now, record in zip(ids, y.tolist(), probability, part, strict=True):
            then = record.get("confidence", now)
            if label != record["label"] or not abs(now - then) <= PROBABILITY_TOLERANCE:
                raise CheckpointError(
                    f"expected the model and the examples that {path} was made with, got others (example {i}: "
                    f"label {record['label']} with probability {then:.2f} then, {label} with {now:.2f} now): "
                    "write elsewhere, or start again with --fresh"
                )


def _check_map(path: Path, records: Rows, examples: ExampleSet) -> None:
    x, y, ids = examples.examples_of(records)
    for i, record, now in zip(ids, records, mass_centres(examples.map, examples.model, x, y), strict=True):
        then = record["centre"]
        if len(then) != len(now) or any(not _close(a, b) for a, b in zip(then, now, strict=True)):
            raise CheckpointError(
                f"expected the map {examples.map.name!r} that {path} was made with, got another of that name (example "
                f"{i}: the mass centres of it and its guide were {then} and are {now}): give it another name, write "
                "elsewhere, or start again with --fresh"
            )


def _close(a: float | None, b: float | None) -> bool:
    return a == b if a is None or b is None else abs(a - b) <= CENTRE_TOLERANCE
