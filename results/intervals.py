"""Certificates by interval bounds of trained runs: `python -m results.intervals RUN…` measures them and writes records.

`results/render.py` shows the records of results/intervals/ in docs/results.md.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch

from robattr.certificates import measure_intervals
from robattr.engine.files import write_atomically
from robattr.metrics.intervals import proportion
from robattr.reporting.record import APPROACHES
from robattr.reporting.tables import escape_markdown, grid
from robattr.runs import Run, open_run

FOLDER = Path(__file__).parent / "intervals"
EXAMPLES = 1000  # the first of the test split
KEPT = (
    "dataset", "model", "method", "eps", "weight", "worst_case", "steps", "batch", "lr", "attack_steps", "step_size",
    "eps_ramp", "seed",
)  # fmt: skip
NAMES = {**APPROACHES, "interval-bound": "interval bound"}
HEADINGS = (
    "Dataset", "Training", "Steps", "ε", "Accuracy", "Certified accuracy", "An attack reaches", "**Certified bound**",
    "Bound / attack (median)", "Bound without x",
)  # fmt: skip
TEXT = """\
‖IG(x, x')‖₁ for all x' with ‖x' − x‖∞ ≤ ε, bounded by intervals: a proof, not a search
([Certificates](certificates.md#interval-bounds)). `small_cnn` by `robattr train DATASET/interval-bound`, with NATURAL
and Madry as controls (`--set method=…`, fewer steps); CPU, one seed each, settings from short trials on validation
images. *Certified accuracy*: share of images proved to be classified correctly on the whole ball. *An attack
reaches*: largest ‖IG(x, x')‖₁ of 2 runs of 20 steps of PGD (from the end of PGD on the loss, from a random point);
the truth is between it and the bound. *Bound without x* holds for any valid input in the place of x.

A bound far above the attack, or not far below the bound without x, says nothing. A constant network has bound 0: read
it beside the accuracy."""


def record(run: Run, *, examples: int = EXAMPLES) -> dict[str, Any]:
    """The certificates of a run on the first test examples, with the settings that trained it."""
    assert run.config is not None
    split, data = run.data.test, run.data
    x, y = data.pixels(split.images[:examples]).float(), split.labels[:examples]
    settings = {key: value for key, value in run.config.as_dict().items() if key in KEPT}
    found = measure_intervals(run.model, x, y, run.config.eps, bounds=data.bounds)
    return {"config": settings, "examples": len(x), "versions": {"torch": torch.__version__}, "found": found}


def section(records: Sequence[Mapping[str, Any]]) -> str:
    """The section of docs/results.md."""
    if not records:
        return ""
    counts = sorted({made["examples"] for made in records})
    note = f"Test images: {', '.join(f'{n:,}' for n in counts)}."
    return "\n\n".join(["## Interval bounds", TEXT, grid(HEADINGS, [_row(made) for made in records]), note])


def read(folder: Path = FOLDER) -> list[dict[str, Any]]:
    """The records, by dataset and method."""
    order = list(NAMES)
    found = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))]
    return sorted(found, key=lambda m: (m["config"]["dataset"] != "mnist", order.index(m["config"]["method"])))


def _row(made: Mapping[str, Any]) -> list[str]:
    config, found = made["config"], made["found"]
    ratio = median(b / a if a else float("inf") for b, a in zip(found["bound"], found["attacked"], strict=True))
    correct, answer = (proportion(found[key]) for key in ("correct", "answer"))
    return [
        config["dataset"],
        escape_markdown(NAMES[config["method"]]),
        f"{config['steps']:,}",
        f"{config['eps']:g}",
        f"{correct.value:.1%} [{100 * correct.low:.1f}, {100 * correct.high:.1f}]",
        f"{answer.value:.1%} [{100 * answer.low:.1f}, {100 * answer.high:.1f}]",
        f"{fmean(found['attacked']):.3g}",
        f"**{fmean(found['bound']):.3g}**",
        f"{ratio:.3g}",
        f"{fmean(found['uninformed']):.3g}",
    ]


def main() -> None:
    for reference in sys.argv[1:]:
        made = record(open_run(reference))
        FOLDER.mkdir(exist_ok=True)
        file = FOLDER / f"{made['config']['dataset']}-{made['config']['method']}-seed{made['config']['seed']}.json"
        write_atomically(file, f"{json.dumps(made)}\n".encode())
        print(f"wrote {file.relative_to(FOLDER.parent.parent)}")


if __name__ == "__main__":
    main()
