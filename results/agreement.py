"""`paper` against the attack of the reference: `python -m results.agreement RUN…` writes results/agreement.json.

With `--directions bf16` its directions are of that precision.

The reference differentiates all N nodes of the map and scores every iterate by it. `paper` differentiates the map's
coarse version and scores one iterate of each window (`Protocol.window`). Both attack the same validation images from
the same starts; docs/evaluation.md shows the paired differences.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from robattr._version import __version__
from robattr.attacks.maps import integrated_gradients, saliency
from robattr.engine.files import write_atomically
from robattr.engine.precision import precision
from robattr.evaluation.protocol import for_dataset
from robattr.evaluation.suite import attribution_attacks
from robattr.formula.network import second_order
from robattr.metrics import intervals, topk_intersection
from robattr.reporting.tables import grid
from robattr.runs import open_run

FILE = Path(__file__).parent / "agreement.json"
EXAMPLES = 200
HEADINGS = ("Run", "Images", "TopK, reference", "paper − reference", "Rank, reference", "paper − reference", "Faster")


def measure(
    run: str, device: torch.device, *, examples: int = EXAMPLES, directions: str | None = None
) -> dict[str, Any]:
    """Scores of both attacks on the first correctly classified validation images."""
    opened = open_run(run)
    model, p = opened.model.to(device).eval(), for_dataset(opened.data)
    x, y, ids = opened.data.examples("validation", 2 * examples)
    x, y = x.to(device), y.to(device)
    with second_order(model), torch.no_grad(), precision("tf32", device.type):
        right = (model(x).argmax(dim=1) == y).nonzero()[:examples, 0]
        x, y, names = x[right], y[right], ids[right.cpu()].tolist()
        map = integrated_gradients(p.N)
        clean = saliency(map, model, x, y)
        found: dict[str, dict[str, Any]] = {}
        for name, window, low in (("reference", 1, None), ("paper", p.window, directions)):
            batch = None if device.type == "cpu" else len(x)
            protocol = replace(p, window=window)
            attack = attribution_attacks(protocol, model, map, images=True, batch=batch, directions=low)[0]
            attack(x[:2], y[:2], ids=names[:2])  # compile
            began = time.perf_counter()
            result = attack(x, y, ids=names, clean=clean)
            scores = {"topk": topk_intersection(clean, result.map, p.eval_k), "kendall": result.score}
            found[name] = {key: values.tolist() for key, values in scores.items()}
            found[name]["seconds"] = round(time.perf_counter() - began, 2)
    return {"run": run, "dataset": opened.data.name, "examples": len(x), **found}


def difference(made: Mapping[str, Any], key: str) -> intervals.Estimate:
    """The mean of paper − reference over the images, with its 95% interval."""
    pairs = zip(made["paper"][key], made["reference"][key], strict=True)
    return intervals.mean(a - b for a, b in pairs)


def table(records: Sequence[Mapping[str, Any]]) -> str:
    """One row per run."""
    rows = []
    for made in records:
        cells = []
        for key, scale, digits in (("topk", 100, 2), ("kendall", 1, 4)):
            d = difference(made, key)
            reference = intervals.mean(made["reference"][key]).value
            cells += [
                f"{scale * reference:.{digits}f}",
                f"{scale * d.value:+.{digits}f} [{scale * d.low:+.{digits}f}, {scale * d.high:+.{digits}f}]",
            ]
        speed = made["reference"]["seconds"] / made["paper"]["seconds"]
        rows.append([made["run"], str(made["examples"]), *cells, f"{speed:.1f}×"])
    return grid(HEADINGS, rows)


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("python -m results.agreement", description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--directions", choices=("tf32", "bf16"))
    options = parser.parse_args(words)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    records = []
    for run in options.runs:
        records.append(measure(run, device, directions=options.directions))
        print(table(records[-1:]), flush=True)
    about = {
        "directions": options.directions or "tf32",
        "robattr": __version__,
        "torch": torch.__version__,
        "device": str(device),
    }
    write_atomically(FILE, json.dumps({**about, "runs": records}, indent=1).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
