"""Running the cases: one that fails is recorded with its reason, and the others keep their numbers."""

from __future__ import annotations

import gc
import platform
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from importlib import metadata

import torch

from robattr.bench import evaluation, ifia, kendall, scaling, training
from robattr.bench.agree import ALLOWED, Disagreement
from robattr.bench.results import Case, Report
from robattr.bench.timing import Rates, measured_rates
from robattr.errors import InvalidInput, nearest

CASES = ("mini", "mnist", "gtsrb", "flower", "kendall", "ifia", "evaluation", "scaling")
DEFAULT = {
    "cuda": ("mnist", "gtsrb", "flower", "kendall", "ifia", "evaluation"),
    "cpu": ("mini", "kendall", "ifia", "evaluation"),
}
IFIA_NETS = {"cuda": ("mnist", "gtsrb", "flower"), "cpu": ("mini",)}


def choose(device: str, arithmetic: str | None) -> tuple[torch.device, str]:
    """The device and the engine's precision that the user's words mean."""
    if device not in ("auto", "cpu", "cuda"):
        raise InvalidInput(f"unknown device {device!r}; {nearest(device, ('auto', 'cpu', 'cuda'))}")
    if device == "cuda" and not torch.cuda.is_available():
        raise InvalidInput("expected a CUDA device, found none: use --device cpu")
    where = torch.device("cuda" if device != "cpu" and torch.cuda.is_available() else "cpu")
    chosen = arithmetic or ("tf32" if where.type == "cuda" else "fp32")
    if chosen not in ALLOWED:
        raise InvalidInput(f"unknown precision {chosen!r}; {nearest(chosen, ALLOWED)}")
    return where, chosen


def run(
    device: torch.device,
    arithmetic: str,
    *,
    cases: Iterable[str] = (),
    quick: bool = False,
    progress: Callable[[str], None] = lambda _: None,
    keep: Callable[[Report], None] = lambda _: None,
) -> Report:
    """The named cases, or those that are sensible on the device; `keep` is given all there is after each of them."""
    wanted = tuple(dict.fromkeys(cases)) or DEFAULT[device.type]
    for name in wanted:
        if name not in CASES:
            raise InvalidInput(f"unknown case {name!r}; {nearest(name, CASES)}")
    begun = time.perf_counter()
    progress("measuring the device")
    rates = measured_rates(device, arithmetic)
    options = [f"--device {device.type}", *(f"--case {name}" for name in wanted), f"--precision {arithmetic}"]
    report = Report(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        command=" ".join(["robattr bench", *options, *(["--quick"] if quick else [])]),
        device=describe(device),
        precision=arithmetic,
        quick=quick,
        versions=versions(),
        rates=asdict(rates),
    )
    for name, measure in _measures(wanted, device, arithmetic, rates=rates, quick=quick):
        progress(name)
        case = attempt(name, measure)
        report = replace(report, cases=(*report.cases, case), seconds=time.perf_counter() - begun)
        keep(report)
        gc.collect()  # captured graphs hold memory until they are gone
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return report


def _measures(
    wanted: tuple[str, ...], device: torch.device, arithmetic: str, *, rates: Rates, quick: bool
) -> Iterable[tuple[str, Callable[[], Case]]]:
    for name in wanted:
        if name == "kendall":
            yield name, partial(kendall.measure, device, rates=rates, quick=quick)
        elif name == "scaling":
            yield name, partial(scaling.measure, device, arithmetic, quick=quick)
        elif name == "evaluation":
            yield name, partial(evaluation.measure, device, arithmetic, quick=quick)
        elif name == "ifia":
            for net in IFIA_NETS[device.type]:
                yield f"ifia {net}", partial(ifia.measure, net, device, arithmetic, rates=rates, quick=quick)
        else:
            yield name, partial(training.measure, name, device, arithmetic, rates=rates, quick=quick)


def attempt(name: str, measure: Callable[[], Case]) -> Case:
    """measure(), or a case that says why there is none; warnings become notes."""
    begun = time.perf_counter()
    torch.compiler.reset()  # what other cases compiled
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            case = measure()
        except Disagreement as error:
            case = Case(name, error=str(error), disagreed=True)
        except Exception as error:  # whatever one case meets must not cost the others their numbers
            first = (str(error).strip().splitlines() or ["no reason given"])[0]
            case = Case(name, error=f"{type(error).__name__}: {first}")
    ours = (str(w.message) for w in heard if issubclass(w.category, UserWarning))
    notes = tuple(dict.fromkeys(note for note in ours if "runs eagerly" in note))
    return replace(case, notes=case.notes + notes, seconds=time.perf_counter() - begun)


def describe(device: torch.device) -> str:
    """The device in words."""
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)} (host: {torch.get_num_threads()} threads)"
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"


def versions() -> dict[str, str]:
    """Of everything that decides a time."""
    from robattr._version import __version__

    found = {"robattr": __version__, "python": platform.python_version(), "torch": torch.__version__}
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    for name in ("numpy", "scipy", "triton"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
