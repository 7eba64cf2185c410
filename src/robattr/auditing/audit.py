"""Audit the explanations of a model: evaluations under both protocols, a run directory, a verdict and a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import nn

from robattr._progress import Watch, silent
from robattr.attacks.maps import AttributionMap
from robattr.attacks.passes import compiled_once
from robattr.auditing.as_dataset import Data, as_dataset, check_names
from robattr.auditing.record import ProtocolName, Settings, record
from robattr.auditing.wrapped_model import Preprocessing, wrap
from robattr.certificates import Smoothing
from robattr.engine.files import as_path
from robattr.engine.processes import join
from robattr.errors import CheckpointError, InvalidInput
from robattr.formula.network import second_order
from robattr.reporting.html import write_page
from robattr.reporting.run_results import RunResults
from robattr.reporting.verdict import Verdict, verdict

CALLED = "robattr.audit(model, data, ...)  # in Python, with the settings listed above"

MAX_READ = 1000  # images of a folder to read, and to check for broken ones, even for a small audit


@dataclass(frozen=True)
class Audit:
    """The verdict, the run with its records and summaries, and the page if one was written."""

    verdict: Verdict
    run: RunResults = field(repr=False)
    page: Path | None
    notes: tuple[str, ...]
    skipped: tuple[str, ...]


@compiled_once()
def audit(
    model: nn.Module,
    data: Data,
    *,
    bounds: tuple[float, float] = (0.0, 1.0),
    preprocessing: Preprocessing | Mapping[str, Any] | None = None,
    eps: float | None = None,
    maps: str | AttributionMap | Sequence[str | AttributionMap] = "ig",
    protocol: ProtocolName = "both",
    examples: int | None = 100,
    steps: int | None = None,
    points: int | None = None,
    out: str | Path | None = None,
    name: str | None = None,
    size: int | None = None,
    channels: int | None = None,
    classes: Sequence[str] | None = None,
    seed: int = 0,
    device: str = "auto",
    compiled: bool | None = None,
    certify: Smoothing | bool = False,
    precision: str = "auto",
    fresh: bool = False,
    command: str | None = None,
    watch: Watch = silent,
) -> Audit:
    """Attack the explanations of `model` on `data` and report how robust they are.

    model           any module that returns logits, or an output with .logits; it is not changed
    data            a folder of class folders, a dataset's name, a `Dataset`, a pair (x, y), or a torch dataset
    bounds          the range of the data; preprocessing=dict(mean=…, std=…) is applied inside the network
    eps             the radius of the attack, in the units of the data (default: 8/255 of the range)
    maps            which explanations: "ig,sg,captum:Saliency", your own `AttributionMap`, or a list of both
    protocol        "paper" compares with published numbers, "strict" is a stronger attack, or "both"
    compiled        compile the attack; None: on a GPU, where that saves time
    certify         also certify smoothed explanations (docs/certificates.md); True: σ of a quarter of the range
    precision       of matrix products: fp32, tf32, bf16, or "auto": on a GPU bf16 or tf32, if the scores of the first
                    examples under random noise stay those in fp32 (docs/audit.md), else fp32
    out             the page to write, "audit.html"; records go to the folder "audit" beside it, and the same call
                    continues an interrupted audit. None: nothing is written
    """
    settings = Settings(eps, maps, protocol, examples, steps, points, seed, compiled, certify, precision)
    with join(device) as world, TemporaryDirectory() as scratch:
        if out is None and world.size > 1:
            raise InvalidInput("several processes share an audit through its folder: give one, out='audit.html'")
        audited, notes = wrap(model, preprocessing=preprocessing, device=world.device)
        limit = None if examples is None else max(MAX_READ, 4 * examples)
        given = as_dataset(
            data, model=model, bounds=bounds, size=size, channels=channels, classes=classes, limit=limit,
            seed=settings.seed,
        )  # fmt: skip
        check_names(classes, audited, given)
        folder = Path(scratch) if out is None else _folder(as_path(out))
        called = name or type(model).__name__
        config = {"name": called, "method": "audit", "notes": notes, "skipped": list(given.skipped)}
        with second_order(audited):
            run = record(
                audited, given, settings, folder,
                config=config, world=world, fresh=fresh, command=command or CALLED, watch=watch,
            )  # fmt: skip
        page = None
        if out is None:
            run = replace(run, evaluations=tuple(replace(e, gallery=None) for e in run.evaluations))
        elif world.leads:
            page = write_page([run], out, title=f"Audit of {called}")
            if not folder.is_dir():
                raise CheckpointError(f"{folder} was removed during the audit, and the records with it: audit again")
    return Audit(verdict(run), run, page, tuple(run.config["notes"]), given.skipped)


def _folder(page: Path) -> Path:
    if page.suffix.lower() not in (".html", ".htm") or page.is_dir():
        raise InvalidInput(f"expected a page that ends in .html, such as audit.html, got {str(page)!r}")
    return page.with_suffix("")
