"""`python -m benchmarks`: measure robattr against the eager port, and render docs/benchmarks.md."""

from __future__ import annotations

import argparse
import gc
import platform
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from pathlib import Path

import torch

from benchmarks import ifia, kendall, real, render, scaling, training
from benchmarks.bars import AUDITED
from benchmarks.measure import ALLOWED, Rates, measured_rates
from benchmarks.results import Case, Report, read
from robattr.auditing.record import ProtocolName
from robattr.engine.files import write_atomically

NETWORKS = ("mini", "mnist", "fashion", "gtsrb", "flower")
CASES = (*NETWORKS, "kendall", "ifia", "scaling", *AUDITED)
DEFAULT = {"cuda": (*NETWORKS[1:], "kendall", "ifia"), "cpu": ("mini", "kendall", "ifia")}
ATTACKED = {"cuda": ("mnist", "gtsrb", "flower"), "cpu": ("mini",)}


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; exit code 1 if the two sides of a case disagree or a case fails."""
    has_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if has_gpu else "cpu")
    parser.add_argument("--case", choices=CASES, action="append", help="may be given several times")
    parser.add_argument("--precision", choices=tuple(ALLOWED), help="default: tf32 on a GPU, fp32 on a CPU")
    parser.add_argument("--protocol", choices=("paper", "both"), default="paper", help="of the audits")
    parser.add_argument("--json", type=Path, help="write the results to this file, after each case")
    parser.add_argument("--quick", action="store_true", help="small batches and few repeats: a check, not a benchmark")
    parser.add_argument("--render", type=Path, nargs="*", metavar="FILE", help="render results instead of measuring")
    parser.add_argument("-o", "--out", type=Path, default=render.PAGE, help="the page of --render (%(default)s)")
    options = parser.parse_args(words)
    if options.render is not None:
        write_atomically(options.out, render.markdown([read(f) for f in options.render or render.FILES]).encode())
        print(f"wrote {options.out}")
        return 0
    if options.device == "cuda" and not has_gpu:
        parser.error("expected a CUDA device, found none: use --device cpu")
    device = torch.device(options.device)
    cases = tuple(dict.fromkeys(options.case or DEFAULT[device.type]))
    arithmetic = options.precision or ("tf32" if device.type == "cuda" else "fp32")
    report = run(device, arithmetic, cases, quick=options.quick, json=options.json, protocol=options.protocol)
    print("\n\n".join(render.sections([report.plain()])))
    return 1 if any(case.error for case in report.cases) else 0


def run(
    device: torch.device,
    arithmetic: str,
    cases: tuple[str, ...],
    *,
    quick: bool = False,
    json: Path | None = None,
    protocol: ProtocolName = "paper",
) -> Report:
    """Measure the cases; a failing one is recorded with its reason and the others keep their numbers."""
    begun = time.perf_counter()
    rates = measured_rates(device, arithmetic)
    options = [f"--device {device.type}", *(f"--case {name}" for name in cases), f"--precision {arithmetic}"]
    options += [f"--protocol {protocol}"] if set(cases) & set(AUDITED) else []
    report = Report(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        command=" ".join(["python -m benchmarks", *options, *(["--quick"] if quick else [])]),
        device=describe(device),
        precision=arithmetic,
        quick=quick,
        versions=versions(),
        rates=asdict(rates),
    )
    for name, measure in measures(cases, device, arithmetic, rates=rates, quick=quick, protocol=protocol):
        print(f"{name} …", file=sys.stderr)
        case = attempt(name, measure)
        report = replace(report, cases=(*report.cases, case), seconds=time.perf_counter() - begun)
        if json is not None:
            report.write(json)
        gc.collect()  # captured graphs keep their memory until they are collected
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return report


def measures(
    cases: tuple[str, ...], device: torch.device, arithmetic: str, *, rates: Rates, quick: bool, protocol: ProtocolName
) -> Iterator[tuple[str, Callable[[], Case]]]:
    """The functions that measure the cases, by name."""
    for name in cases:
        if name == "kendall":
            yield name, partial(kendall.measure, device, rates=rates, quick=quick)
        elif name == "scaling":
            yield name, partial(scaling.measure, device, arithmetic, quick=quick)
        elif name == "ifia":
            for net in ATTACKED[device.type]:
                yield f"ifia {net}", partial(ifia.measure, net, device, arithmetic, rates=rates, quick=quick)
        elif name in AUDITED:
            yield name, partial(real.measure, name, device, protocol=protocol, quick=quick)
        else:
            yield name, partial(training.measure, name, device, arithmetic, rates=rates, quick=quick)


def attempt(name: str, measure: Callable[[], Case]) -> Case:
    """measure(), or a case with the reason of its failure; a fall-back to eager mode becomes a note."""
    begun = time.perf_counter()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            case = measure()
        except Exception as error:  # one failing case must not cost the others their numbers
            first = (str(error).strip().splitlines() or ["no reason given"])[0]
            case = Case(name, error=f"{type(error).__name__}: {first}")
    notes = dict.fromkeys(str(w.message) for w in heard if "runs eagerly" in str(w.message))
    return replace(case, notes=(*case.notes, *notes), seconds=time.perf_counter() - begun)


def describe(device: torch.device) -> str:
    """The device in words."""
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)} (host: {torch.get_num_threads()} threads)"
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"


def versions() -> dict[str, str]:
    """The versions that a time depends on."""
    found = {"robattr": metadata.version("robattr"), "python": platform.python_version(), "torch": torch.__version__}
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    for name in ("numpy", "scipy", "triton"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


if __name__ == "__main__":
    sys.exit(main())
