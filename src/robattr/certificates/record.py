"""Records of certificates: the counts of one example each, from which every bound is computed again.

id, label, correct, confidence, centre   as in the records of an evaluation: they tell the example, the model, the map
shape                                    of the map
answers, votes, along, squares           see `Tally`; the votes are 32-bit integers, compressed, in base64
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from robattr.attacks.maps import AttributionMap, saliency
from robattr.certificates.bounds import Ints
from robattr.certificates.challenge import Measured
from robattr.certificates.smoothing import Smoothing, Tally
from robattr.errors import CheckpointError
from robattr.evaluation.records import Record, Rows
from robattr.evaluation.resume_checks import label_probability, mass_centres
from robattr.formula.network import second_order


def identities(model: nn.Module, map: AttributionMap, x: Tensor, y: Tensor, ids: Sequence[int]) -> list[Record]:
    """What a record says of its example, the model and the map."""
    clean = saliency(map, model, x, y)
    with second_order(model), torch.no_grad():
        confidence, predicted = label_probability(model, x, y)
    centres = mass_centres(map, model, x, y, clean=clean)
    columns = {
        "id": ids,
        "label": y.tolist(),
        "correct": (predicted == y).tolist(),
        "confidence": confidence.tolist(),
        "centre": centres,
        "shape": [list(clean.shape[1:])] * len(x),
    }
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def with_counts(identity: Sequence[Record], tally: Tally) -> list[Record]:
    """The records of a batch."""
    return [
        {
            **about,
            "answers": int(tally.answers[b]),
            "votes": packed(tally.votes[b]),
            "along": float(tally.along[b]),
            "squares": float(tally.squares[b]),
        }
        for b, about in enumerate(identity)
    ]


def attack_record(about: Record, b: int, found: Mapping[str, Measured], broken: Sequence[str]) -> Record:
    """The record of example b of an attacked batch: the estimates of every attack, and the certificates they break."""
    attacks = {kind: {key: value[b].item() for key, value in vars(of).items()} for kind, of in found.items()}
    return {**about, "attacks": attacks, "broken": list(broken)}


def tally_of(records: Rows, smoothing: Smoothing) -> Tally:
    """The counts of some records; their sums of maps are not recorded, and are zero here."""
    votes = np.stack([unpacked(str(r["votes"])) for r in records])
    return Tally(
        smoothing.samples,
        answers=np.array([r["answers"] for r in records], dtype=np.int64),
        votes=votes,
        along=np.array([r["along"] for r in records], dtype=np.float64),
        squares=np.array([r["squares"] for r in records], dtype=np.float64),
        total=np.zeros(votes.shape),
    )


def packed(counts: Ints) -> str:
    """Counts as text."""
    return base64.b64encode(zlib.compress(counts.astype("<u4").tobytes(), 9)).decode("ascii")


def unpacked(text: str) -> Ints:
    """The counts of `packed`."""
    try:
        return np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype="<u4").astype(np.int64)
    except (ValueError, zlib.error) as cause:
        raise CheckpointError("the votes of a record are damaged: certify again with --fresh") from cause
