"""Publish a trained model: round its weights to half precision, and add it to the zoo of the package.

    python results/zoo.py half runs/tuned/mnist/natural
    robattr evaluate runs/tuned/mnist/natural; robattr record runs/tuned/mnist/natural
    python results/zoo.py add mnist/natural-tuned runs/tuned/mnist/natural results/mnist-natural-tuned-….json
    python results/zoo.py cards

In this order the record belongs to the very weights that are shipped.
"""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

import torch
from safetensors.torch import load_file

from robattr.engine.files import write_atomically
from robattr.errors import CheckpointError
from robattr.models import read_metadata, zoo
from robattr.models.weights_file import write_tensors
from robattr.reporting import model_card, read_runs

ROOT = Path(__file__).parents[1]


def half(run: str | Path) -> float:
    """Round the weights of a run to half precision, in place; `load_model` still returns float32.

    Returns the largest rounding error, relative to the largest weight of its tensor.
    """
    path = Path(run) / "model.safetensors"
    exact = load_file(path)
    rounded = {name: value.half() if value.is_floating_point() else value for name, value in exact.items()}
    worst = 0.0
    for name, value in exact.items():
        if value.is_floating_point() and value.numel():
            largest = value.abs().max().float().clamp_min(torch.finfo(torch.float32).tiny)
            error = float((rounded[name].float() - value.float()).abs().max() / largest)
            if not error < 2**-10:  # half precision has eleven bits; also true for NaN
                raise CheckpointError(f"{path}: {name} does not fit half precision (error {error:.1e}): keep float32")
            worst = max(worst, error)
    write_tensors(rounded, path, read_metadata(path))
    return worst


def add(name: str, run: str | Path, record: str, licence: str = "Apache-2.0") -> zoo.Entry:
    """Copy the weights of a run into the zoo under `name`; `record` is the file in results/ with its scores."""
    kept = zoo.FOLDER / f"{name.replace('/', '-')}.safetensors"
    write_atomically(kept, (Path(run) / "model.safetensors").read_bytes())
    entry = zoo.Entry(kept.name, hashlib.sha256(kept.read_bytes()).hexdigest(), licence, record)
    index = {**zoo.entries(), name: entry}
    text = json.dumps({key: asdict(index[key]) for key in sorted(index)}, indent=2, ensure_ascii=False)
    write_atomically(zoo.FOLDER / "index.json", f"{text}\n".encode())
    return entry


def cards() -> dict[Path, str]:
    """The card of every network of the zoo, by its file: all records of its weights, and theirs alone."""
    made = {}
    for name, entry in zoo.entries().items():
        stem = entry.record.partition("-paper-")[0]
        run = read_runs(ROOT.glob(f"{stem}-*.json"))[0]
        weights = next(e.weights for e in run.evaluations if e.source == ROOT / entry.record)
        run = replace(run, evaluations=tuple(e for e in run.evaluations if e.weights == weights))
        made[entry.card] = model_card(run, license=entry.licence.lower(), weights=zoo.fetch(name))
    return made


if __name__ == "__main__":
    command, *words = sys.argv[1:] or [""]
    match command:
        case "half":
            print(f"largest relative error: {half(*words):.1e}")
        case "add":
            print(add(*words))
        case "cards":
            for file, text in cards().items():
                write_atomically(file, text.encode())
                print(f"wrote {file}")
        case _:
            sys.exit(__doc__)
