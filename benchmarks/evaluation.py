"""A whole evaluation under the paper's protocol: its time, and the effect of precision on the scores."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.results import Case, Table
from benchmarks.workloads import DATASETS, Workload, workload
from robattr.attacks.maps import by_name
from robattr.engine import precision
from robattr.evaluation import OutputDir, Protocol, evaluate, paper
from robattr.evaluation.evaluate_batch import evaluate_batch
from robattr.evaluation.summary import summarise

WORKLOADS = {"cuda": ("mnist", 1000), "cpu": ("mini", 200)}
SCORED = {"cuda": (48, ("fp32", "tf32", "bf16")), "cpu": (24, ("fp32", "bf16"))}  # examples, precisions


def measure(device: torch.device, arithmetic: str, *, quick: bool) -> Case:
    """Records, diagnostics, gallery and compilation included. Labels are the network's own, so all are attacked."""
    name, count = WORKLOADS[device.type]
    work = workload(name, device, quick=quick, batch=8 if quick else count)
    protocol = paper(DATASETS.get(name, name))
    with torch.no_grad():
        y = work.model(work.x).argmax(dim=1)
    rows: list[tuple[str | float, ...]] = []
    for map in (by_name(each, N=protocol.N, bounds=protocol.bounds) for each in ("sg", "ig")):
        with tempfile.TemporaryDirectory() as folder:
            begun = time.perf_counter()
            found = evaluate(
                work.model, work.x, y, protocol=protocol, map=map, out=OutputDir(Path(folder)), precision=arithmetic,
                compiled=work.x.is_cuda,
            )  # fmt: skip
            seconds = time.perf_counter() - begun
        attacked = sum(record["kept"] is not None for record in found.records)
        rows.append(
            (map.name, attacked, protocol.repeats, protocol.steps, map.nodes, seconds, attacked / max(seconds, 1e-9))
        )
    columns = ("map", "attacked", "repeats", "iterations", "N", "seconds", "examples per second")
    setting = f"the {name} network, {len(work.x)} images, {arithmetic}"
    return Case(
        "evaluation",
        setting,
        tables=(Table("Everything included", columns, tuple(rows)), scores(work, y, protocol)),
    )


def scores(work: Workload, y: Tensor, protocol: Protocol) -> Table:
    """The scores of the same network, images and attacks in every precision."""
    count, precisions = SCORED[work.device.type]
    few, map = work.first(count), by_name("ig", N=protocol.N, bounds=protocol.bounds)
    rows: list[tuple[str | float, ...]] = []
    for arithmetic in precisions:
        with precision(arithmetic, work.device.type):
            records = evaluate_batch(few.model, few.x, y[:count], ids=range(len(few.x)), protocol=protocol, map=map)
        found = summarise(records, protocol)["columns"]
        rows.append((arithmetic, *(float(found[name]["value"]) for name in ("adv_acc", "topk", "kendall"))))
    title = f"Final scores by precision, {len(few.x)} images"
    return Table(title, ("precision", "Adv Acc", "top-k intersection", "Kendall"), tuple(rows))
