"""A whole evaluation under the `paper` protocol: how long a user waits, and what precision does to the scores."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import torch
from torch import Tensor

from robattr.attacks.maps import by_name
from robattr.bench.results import Case, Table
from robattr.bench.subjects import DATASETS, Subject, subject
from robattr.engine import precision
from robattr.evaluation.evaluate_batch import evaluate_batch as measure_block
from robattr.evaluation.protocol import Protocol, paper
from robattr.evaluation.run import OutputDir, evaluate
from robattr.evaluation.summary import summarise

SUBJECTS = {"cuda": ("mnist", 1000), "cpu": ("mini", 200)}
MAPS = ("sg", "ig")
COLUMNS = ("map", "attacked", "repeats", "iterations", "N", "seconds", "examples per second")
SCORED = {"cuda": (48, ("fp32", "tf32", "bf16")), "cpu": (24, ("fp32", "bf16"))}  # examples, precisions
SCORES = ("adv_acc", "topk", "kendall")


def measure(device: torch.device, arithmetic: str, *, quick: bool) -> Case:
    """Records, diagnostics, gallery and compilation included. Labels are the network's own: every image is attacked."""
    name, count = SUBJECTS[device.type]
    it = subject(name, device, quick=quick, batch=8 if quick else count)
    protocol = paper(DATASETS.get(name, name))
    with torch.no_grad():
        y = it.model(it.x).argmax(dim=1)
    rows: list[tuple[str | float, ...]] = []
    for map in (by_name(each, N=protocol.N, bounds=protocol.bounds) for each in MAPS):
        with tempfile.TemporaryDirectory() as folder:
            begun = time.perf_counter()
            found = evaluate(
                it.model, it.x, y,
                protocol=protocol, map=map, place=OutputDir(Path(folder)), arithmetic=arithmetic, compiled=it.x.is_cuda,
            )  # fmt: skip
            seconds = time.perf_counter() - begun
        attacked = sum(record["kept"] is not None for record in found.records)
        each = attacked / max(seconds, 1e-9)
        rows.append((map.name, attacked, protocol.repeats, protocol.steps, map.nodes, seconds, each))
    return Case(
        "evaluation",
        f"the {name} network, {len(it.x)} images, {arithmetic}",
        tables=(Table("Everything included", COLUMNS, tuple(rows)), scores(it, y, protocol)),
    )


def scores(it: Subject, y: Tensor, protocol: Protocol) -> Table:
    """The same network, images and attacks in every precision. Signs of gradients near zero flip, and walks part."""
    count, precisions = SCORED[it.device.type]
    few = it.first(count)
    map = by_name("ig", N=protocol.N, bounds=protocol.bounds)
    rows: list[tuple[str | float, ...]] = []
    for arithmetic in precisions:
        with precision(arithmetic, it.device.type):
            records = measure_block(few.model, few.x, y[:count], ids=range(len(few.x)), protocol=protocol, map=map)
        found = summarise(records, protocol)["columns"]
        rows.append((arithmetic, *(float(found[name]["value"]) for name in SCORES)))
    title = f"Final scores by precision, {len(few.x)} images"
    return Table(title, ("precision", "Adv Acc", "top-k intersection", "Kendall"), tuple(rows))
