"""The certificates of a run: read from its folder, and as a table over radii."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from robattr._form import check_form
from robattr.engine.files import read_object
from robattr.errors import CheckpointError
from robattr.evaluation.records import read
from robattr.evaluation.summary import edited
from robattr.metrics.columns import Column

if TYPE_CHECKING:
    from robattr.certificates.certificate import Bounds

COLUMNS = (
    Column("answer", "Answer certified", "examples whose smoothed answer is proved to stay the label", share=True),
    Column("share", "Pixels certified", "pixels proved to stay among the top ones, or outside", share=True),
    Column("inside", "Top pixels certified", "of the top pixels, those proved to stay", share=True),
    Column("overlap", "Top-K overlap ≥", "a lower bound of the overlap of the top pixels", share=True),
    Column("cosine", "Cosine ≥", "a lower bound of the cosine of the maps"),
)
NOTICEABLE = 0.1  # share of the top pixels certified: the figure shows the largest radius with this much
NUMBER = (float, None)
FORM = {
    "map": str, "settings": {"alpha": float, "sigma": float}, "k": int, "shape": [int], "bounds": [float],
    "per_example": {"id": [int]},
    "radii": [{"radius": float, **{c.key: {"value": NUMBER, "low": NUMBER, "high": NUMBER} for c in COLUMNS}}],
}  # fmt: skip


@dataclass(frozen=True)
class CertificateResults:
    """The certificates of a run for one kind of map: their summary and the counts of every example."""

    summary: Mapping[str, Any]
    records: tuple[Mapping[str, Any], ...]

    @cached_property
    def bounds(self) -> Bounds:
        from robattr.certificates.certificate import bounds_from  # waits for torch
        from robattr.certificates.record import tally_of
        from robattr.certificates.smoothing import Smoothing

        settings = self.summary["settings"]
        smoothing = Smoothing(**{name: settings[name] for name in Smoothing().settings()})
        return bounds_from(tally_of(self.records, smoothing), smoothing)

    @property
    def shown_radius(self) -> float:
        """The largest radius with a noticeable share of certified top pixels, else the smallest."""
        shares = {float(row["radius"]): row["inside"]["value"] or 0 for row in self.summary["radii"]}
        return max((radius for radius, share in shares.items() if share >= NOTICEABLE), default=min(shares))


def read_certificates(folder: Path) -> tuple[CertificateResults, ...]:
    """The certificates in a folder, one for each kind of map; summaries of attacks on them are ignored."""
    found = []
    for path in sorted(folder.glob("*.json")):
        summary = read_object(path)
        if "radii" in summary:
            found.append(_checked(summary, path))
    return tuple(found)


def _checked(summary: Mapping[str, Any], path: Path) -> CertificateResults:
    """A summary of certificates with its records, if it has the form of one and is as it was written."""
    try:
        check_form(summary, FORM)
        ids = set(summary["per_example"]["id"])
        if not (lines := path.with_suffix(".jsonl")).is_file():
            raise ValueError(f"{lines.name} is missing beside it")
        records = tuple(r for r in read(lines) if r["id"] in ids)
        low, high = summary["bounds"]
        if not (summary["radii"] and records and low < high and min(summary["shape"], default=1) > 0):
            raise ValueError("it has no radii, no records, or a shape or bounds that no image has")
        if odd := edited(summary, records):
            raise ValueError(odd)
    except ValueError as cause:
        raise CheckpointError(f"{path} is damaged ({cause}): delete it, and certify again") from cause
    return CertificateResults(summary, records)


def sentences(found: CertificateResults) -> tuple[str, ...]:
    """What the table says, and what it does not."""
    from robattr.certificates.summary import in_units  # waits for torch

    s, radius = found.summary["settings"], found.shown_radius
    words = in_units(radius, found.summary["shape"], tuple(found.summary["bounds"]))
    k, level, sigma = found.summary["k"], 1 - s["alpha"], s["sigma"]
    return (
        "An attack that fails proves nothing: the next one may succeed. No attack can break the bounds below. For each "
        f"example they are true with probability at least {level:.4g}, for every change of the input of at most the "
        f"radius r in ℓ₂. For instance, r = {radius:g} allows a change of {words}.",
        f"They are about smoothed explanations, taken over copies of the input with Gaussian noise of σ = {sigma:g}. "
        "The maps above have no such bounds. Answer: the share of the examples whose smoothed answer is proved to stay "
        f"the label. The other columns are means over these examples: the pixels proved to stay among the top {k} or "
        f"outside; of those {k}, the share proved to stay; lower bounds of the overlap of the top {k} and of the "
        "cosine of the maps. Brackets: 95% intervals over the examples. Vote map: how often a pixel is among the top "
        f"{k} of a noisy copy.",
    )


def rows(all_found: Sequence[CertificateResults]) -> tuple[tuple[str, ...], ...]:
    """The table: a row for each map and radius."""
    return tuple(
        (f"{found.summary['map']} · r = {row['radius']:g}", *cells(row))
        for found in all_found
        for row in found.summary["radii"]
    )


def cells(row: Mapping[str, Any]) -> list[str]:
    """The COLUMNS of a summary at a radius: `72.08% [70.1, 74.0]`."""
    found = [(column, row[column.key]) for column in COLUMNS]
    return [f"{c.show(e['value'])} {c.show_interval(e['low'], e['high'])}".rstrip() for c, e in found]
