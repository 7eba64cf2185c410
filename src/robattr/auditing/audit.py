"""Can the explanations of this model be trusted? One call from a model and its data to a page that says so.

An audit is an evaluation under one or both protocols, for one or more maps, recorded in a run directory; the page, the
verdict and the tables are renderings of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import nn

from robattr._text import printable
from robattr.attacks.maps import AttributionMap
from robattr.auditing.as_dataset import Data, check_folder, material
from robattr.auditing.preprocessing import Preprocessing
from robattr.auditing.record import Watch, record, silent
from robattr.auditing.settings import ProtocolName, Settings
from robattr.auditing.wrapped_model import wrap
from robattr.engine.processes import join
from robattr.errors import InvalidInput
from robattr.formula.network import second_order
from robattr.reporting.html import write_page
from robattr.reporting.runs import RunResults
from robattr.reporting.verdict import Verdict, verdict

CALLED = "robattr.audit(model, data, ...)  # in Python, with the settings listed above"

READ = 1000  # images of a folder that are read, and looked through for broken ones, even for a small audit


@dataclass(frozen=True)
class Audit:
    """What was found: `verdict` to read, `run` with every record and summary, `page` where one was written."""

    verdict: Verdict
    run: RunResults
    page: Path | None
    notes: tuple[str, ...]
    skipped: tuple[str, ...]


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
    compiled: bool = False,
    fresh: bool = False,
    command: str | None = None,
    watch: Watch = silent,
) -> Audit:
    """Attack the explanations of `model` on `data` and say how far they hold.

    model           any module that returns logits, or an output with .logits; it is left as it was
    data            a folder of class folders, a dataset's name, a `Dataset`, a pair (x, y), or a torch dataset
    bounds          the range of the data; preprocessing=dict(mean=…, std=…) is applied after it, inside the network
    eps             the radius of the attack, in the units of the data (default: 8/255 of the range)
    maps            which explanations: "ig,sg,captum:Saliency", your own `AttributionMap`, or a list of both
    protocol        "paper" compares with published numbers, "strict" is what it takes to trust them, or "both"
    compiled        compile the attack, which takes minutes and pays on a GPU
    out             the page to write, "audit.html"; records go to the folder "audit" beside it, and the same call
                    continues an interrupted audit from them. None: nothing is kept
    """
    settings = Settings(eps, maps, protocol, examples, steps, points, seed, compiled)
    check_folder(data, size=size, channels=channels)
    with join(device) as world, TemporaryDirectory() as scratch:
        if out is None and world.size > 1:
            raise InvalidInput("several processes share an audit through its folder: say where, out='audit.html'")
        audited, notes = wrap(model, preprocessing=preprocessing, device=world.device)
        given = material(
            data,
            bounds=bounds,
            size=size,
            channels=channels or input_channels(model),
            classes=classes or own_classes(model, data),
            limit=None if examples is None else max(READ, 4 * examples),
            seed=seed,
        )
        folder = Path(scratch) if out is None else _folder(Path(out))
        called = name or type(model).__name__
        config = {"name": called, "method": "audit", "notes": notes, "skipped": inside(given.skipped, data)}
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
    return Audit(verdict(run), run, page, tuple(notes), tuple(config["skipped"]))


def own_classes(model: nn.Module, data: Data) -> list[str] | None:
    """The class names a Hugging Face model carries, where the class folders of `data` are named after them."""
    table = getattr(getattr(model, "config", None), "id2label", None)
    if (
        not isinstance(table, Mapping)
        or not all(str(key).isdigit() for key in table)
        or not isinstance(data, str | Path)
        or not Path(data).is_dir()
    ):
        return None
    names = [str(table[key]) for key in sorted(table, key=int)]
    top = Path(data) / "train" if (Path(data) / "train").is_dir() else Path(data)
    folders = {child.name for child in top.iterdir() if child.is_dir() and not child.name.startswith(".")}
    return names if folders and folders <= set(names) else None


def input_channels(model: nn.Module) -> int:
    """1 where the first convolution says so, else 3."""
    first = next((m for m in model.modules() if isinstance(m, nn.Conv2d)), None)
    return 1 if first is not None and first.in_channels == 1 else 3


def _folder(page: Path) -> Path:
    if page.suffix.lower() not in (".html", ".htm") or page.is_dir():
        raise InvalidInput(f"expected a page that ends in .html, as audit.html does, got {str(page)!r}")
    return page.with_suffix("")


def inside(skipped: Sequence[str], data: Data) -> list[str]:
    """The names of skipped files below the folder of the data: what lies above it is nobody's business."""
    top = Path(data).expanduser() if isinstance(data, str | Path) else Path()
    below = [str(Path(f).relative_to(top)) if Path(f).is_relative_to(top) else Path(f).name for f in skipped]
    return [printable(name) for name in below]
