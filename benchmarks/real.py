"""Audits of torchvision's ResNet-50 and ViT-B/16 at 224², fitted for a moment to the embedded images.

Minutes of `robattr.audit` by default settings, with everything that it does, compilation included, beside what `doctor`
had estimated; then the second-order passes a second of the compiled attack, where their time goes, and how long a step
of `robattr.harden` takes.
"""

from __future__ import annotations

import gc
import inspect
import json
import statistics
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn

from benchmarks.bars import AUDITS, HARDENED, SPENT
from benchmarks.measure import profiled, timed
from benchmarks.results import Case, Table
from benchmarks.workloads import fit, images
from robattr import audit, harden
from robattr._progress import Watching
from robattr.attacks import IFIA, passes
from robattr.attacks.maps import integrated_gradients
from robattr.auditing.arithmetic import choose
from robattr.auditing.cost import audit_estimate
from robattr.auditing.record import ProtocolName
from robattr.auditing.wrapped_model import wrap
from robattr.engine import precision
from robattr.errors import RobattrError
from robattr.evaluation import scaled
from robattr.evaluation.job import BATCH
from robattr.formula.network import second_order
from robattr.training.run_directory import RunDirectory

SIZE, CLASSES = 224, 10
FITS = 4  # times that a network is fitted for a moment, until it answers as many images rightly as are attacked


def measure(name: str, device: torch.device, *, protocol: ProtocolName, quick: bool) -> Case:
    """One network: an audit under `protocol`, "paper" or "both", and on a GPU the passes a second in bf16."""
    import torchvision

    torch.manual_seed(0)
    model = getattr(torchvision.models, name)(weights=None, num_classes=CLASSES).to(device)
    examples = 4 if quick else 100
    x, y = (t.to(device) for t in images(2 * examples, channels=3, size=SIZE, high=1.0))
    for _ in range(FITS):
        model.train()
        with precision("tf32" if device.type == "cuda" else "fp32", device.type):
            fit(model, x, y, steps=300 if device.type == "cuda" else 20, rate=1e-4)
        model.eval()
        with torch.no_grad():
            answers = torch.cat([model(part).argmax(1) for part in x.split(32)])
        right = answers == y
        if right.sum() >= examples:
            break
    # An audit attacks what is answered rightly: where too few images are, the network's own answers are the labels.
    first = right.byte().argsort(descending=True, stable=True)[:examples]
    x, y = x[first].cpu(), answers[first].cpu()
    wrapped, _ = wrap(model, device=device)
    protocol_of_audit = scaled("", pixels=SIZE**2, bounds=(0.0, 1.0))
    some = x[:32].to(device), y[:32].to(device)
    arithmetic, said = choose(wrapped, [integrated_gradients()], *some, protocol=protocol_of_audit)
    print(f"{name}: {said}", file=sys.stderr)
    with precision(arithmetic, device.type):  # as `doctor` does
        paper, both = audit_estimate(wrapped, *some, protocol_of_audit, examples=examples)
    begun, reached = time.perf_counter(), dict[str, float]()
    with TemporaryDirectory() as folder, Watching() as shown:

        def watch(title: str, done: int, total: int, unit: str = "examples") -> None:
            if (now := title.split()[0]) not in reached:  # a run that is stopped leaves at least this
                print(f"{name}: {now} after {(time.perf_counter() - begun) / 60:.2f} min", file=sys.stderr)
            reached[now] = time.perf_counter()  # the last call of each protocol
            shown(title, done, total, unit)

        made = audit(
            model, (x, y), examples=examples, steps=2 if quick else None, points=10 if quick else None,
            device=device.type, out=Path(folder) / "audit.html", protocol=protocol, watch=watch,
        )  # fmt: skip
        reached[protocol] = time.perf_counter()  # with the page
    asked = {"paper": paper, "both": both}
    rows: list[tuple[str | float, ...]] = [
        (name, (reached[name] - begun) / 60, asked[name] / 60) for name in asked if name in reached
    ]
    spent: dict[str, float] = {}
    if device.type == "cuda":
        rate, spent = passes_per_second(wrapped, x, y, device)
        rows.append(("second-order passes, compiled, bf16", rate, 0.0))
    setting = (
        f"{len(x)} images of 3×{SIZE}×{SIZE}, {sum(p.numel() for p in model.parameters()):,} parameters, fitted to "
        f"{right.double().mean():.0%} of {len(right)} images"
    )
    tables = [
        Table(AUDITS, ("what", "value", "estimate"), tuple(rows)),
        Table(SPENT, ("kind", "share"), tuple(spent.items())),
    ]
    notes = list(made.notes)
    try:
        row = hardening(model, x, y, device, quick=quick)
        tables.append(Table(HARDENED, ("batch", "seconds a step", "minutes", "GiB"), (row,)))
    except RobattrError as error:  # the minutes of the audit stay
        notes.append(f"no time for harden: {error}")
    return Case(name, setting, (), tuple(tables), notes=tuple(notes))


def passes_per_second(model: nn.Module, x: Tensor, y: Tensor, device: torch.device) -> tuple[float, dict[str, float]]:
    """Second-order image passes a second of an audit's attack on IG, with ten nodes in bf16; {kind: share of time}."""
    map = integrated_gradients()
    attack = IFIA(model, 0.1, 0.01, 10, map=map, restarts=3, batch=BATCH[1], window=2)
    guide, rows = map.coarse, attack.rows(x[:1].to(device))
    assert guide is not None
    x, y = x[:rows].to(device), y[:rows].to(device)
    with second_order(model), precision("bf16", device.type), torch.no_grad(), passes.compiled_once():
        gradient = passes.compiled_gradient(model, guide, kind="topk", keep=0.0)
        mask = torch.zeros(len(x), SIZE, SIZE, device=device)
        mask[:, : SIZE // 10] = 1
        (found,) = timed(lambda: gradient(x, y, mask, y, 1.0), device=device)
        spent = profiled(lambda: gradient(x, y, mask, y, 1.0), device).shares
    return 1e3 * len(x) * guide.nodes / found.ms, spent


def hardening(
    model: nn.Module, x: Tensor, y: Tensor, device: torch.device, *, quick: bool
) -> tuple[float, float, float, float]:
    """`harden` by default settings for a few steps: the batch, seconds a step, minutes of all steps, GiB on a GPU."""
    gc.collect()  # what the audit has captured
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    steps = 2 if quick else 20
    x, y = (t.repeat(-(-100 // len(t)), *[1] * (t.dim() - 1)) for t in (x, y))  # enough of each class to hold some out
    with TemporaryDirectory() as folder:
        made = harden(
            model,
            (x, y),
            out=folder,
            steps=steps,
            examples=16,
            audit_steps=1,
            points=2,
            held_out=0.2,
            device=device.type,
        )
        here = RunDirectory(made.outcome.path)
        logged = [json.loads(line) for line in here.metrics.read_text().splitlines()]
        asked = json.loads(here.config.read_text())
    rates = [line["rate"] for line in logged if "rate" in line]
    seconds = 1 / statistics.median(rates)
    peak = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else 0.0
    default = inspect.signature(harden).parameters["steps"].default
    return asked["batch"], seconds, default * seconds / 60, peak
