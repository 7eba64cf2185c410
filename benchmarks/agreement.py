"""`paper` against the reference's attack: `python -m benchmarks.agreement RUN…` writes results/bench/agreement.json.

The reference differentiates all N nodes of the map and scores every iterate by it. `paper` differentiates the map's
coarse version and scores one iterate of each window (`Protocol.window`). Both attack the same validation images from
the same starts; on a GPU, `paper` also with directions in bf16. docs/benchmarks.md shows the paired differences.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.results import SCHEMA
from robattr._version import __version__
from robattr.attacks.maps import integrated_gradients, saliency
from robattr.engine.files import write_atomically
from robattr.engine.precision import precision
from robattr.evaluation.protocol import Protocol, for_dataset
from robattr.evaluation.suite import attribution_attacks
from robattr.formula.network import second_order
from robattr.metrics import intervals, topk_intersection
from robattr.reporting.tables import grid
from robattr.runs import open_run

FILE = Path(__file__).parents[1] / "results" / "bench" / "agreement.json"
EXAMPLES = 200
ATTACKS = {"paper": "as the scores", "bf16": "bf16"}  # and the precision of their directions
COLUMNS = ("model", "directions", "images", "TopK, reference", "difference", "Rank, reference", "difference", "faster")


def measure(run: str, device: torch.device, *, examples: int = EXAMPLES) -> dict[str, Any]:
    """Scores of the attacks on the first correctly classified validation images."""
    opened = open_run(run)
    model, p = opened.model.to(device).eval(), for_dataset(opened.data)
    x, y, ids = opened.data.examples("validation", 2 * examples)
    return {"run": run, "dataset": opened.data.name, **compared(model, p, x.to(device), y.to(device), ids, examples)}


def compared(model: nn.Module, p: Protocol, x: Tensor, y: Tensor, ids: Tensor, examples: int) -> dict[str, Any]:
    """{attack: scores and seconds} on the first correctly classified of the images."""
    on_gpu, map = x.is_cuda, integrated_gradients(p.N)
    variants = {"reference": (1, None), "paper": (p.window, None)} | ({"bf16": (p.window, "bf16")} if on_gpu else {})
    found: dict[str, dict[str, Any]] = {}
    with second_order(model), torch.no_grad(), precision("tf32", x.device.type):
        right = (model(x).argmax(dim=1) == y).nonzero()[:examples, 0]
        x, y, names = x[right], y[right], ids[right.cpu()].tolist()
        clean = saliency(map, model, x, y)
        for name, (window, directions) in variants.items():
            attack, *_ = attribution_attacks(replace(p, window=window), model, map, images=True, directions=directions)
            attack(x[:2], y[:2], ids=names[:2])  # warm up
            began = time.perf_counter()
            result = attack(x, y, ids=names, clean=clean)
            scores = {"topk": topk_intersection(clean, result.map, p.eval_k), "kendall": result.score}
            found[name] = {key: values.tolist() for key, values in scores.items()}
            found[name]["seconds"] = round(time.perf_counter() - began, 2)
    return {"examples": len(x), **found}


def difference(made: Mapping[str, Any], key: str, *, of: str = "paper") -> intervals.Estimate:
    """The mean of `of` − reference over the images, with its 95% interval."""
    pairs = zip(made[of][key], made["reference"][key], strict=True)
    return intervals.mean(a - b for a, b in pairs)


def rows(records: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """One row per run and attack, in the order of COLUMNS."""
    made = []
    for record, (name, directions) in product(records, ATTACKS.items()):
        if name not in record:
            continue
        cells = []
        for key, scale, digits in (("topk", 100, 2), ("kendall", 1, 4)):
            d = difference(record, key, of=name)
            reference = intervals.mean(record["reference"][key]).value
            cells += [
                f"{scale * reference:.{digits}f}",
                f"{scale * d.value:+.{digits}f} [{scale * d.low:+.{digits}f}, {scale * d.high:+.{digits}f}]",
            ]
        speed = record["reference"]["seconds"] / record[name]["seconds"]
        made.append([record["run"], directions, str(record["examples"]), *cells, f"{speed:.1f}×"])
    return made


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.agreement", description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", metavar="RUN")
    options = parser.parse_args(words)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    records = []
    for run in options.runs:
        records.append(measure(run, device))
        print(grid(COLUMNS, rows(records[-1:])), flush=True)
    about = {
        "schema": SCHEMA,
        "date": datetime.now(UTC).date().isoformat(),
        "robattr": __version__,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
    }
    write_atomically(FILE, json.dumps({**about, "runs": records}).encode() + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
