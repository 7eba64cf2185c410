"""The certificates of a run on its page: a table over radii, and maps with the certified pixels marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from robattr._extras import need
from robattr._form import check_form
from robattr.engine.files import read_object
from robattr.errors import CheckpointError
from robattr.evaluation.gallery import Array, Gallery
from robattr.evaluation.records import read
from robattr.evaluation.summary import edited
from robattr.metrics.columns import Column
from robattr.reporting.display import brightness

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
SHOWN = 6  # examples in the figure
EDGES = {"left": 0.06, "right": 1.0, "bottom": 0.09, "top": 1.0}
NUMBER = (float, None)
FORM = {
    "map": str, "settings": {"alpha": float, "sigma": float}, "k": int, "shape": [int], "bounds": [float],
    "per_example": {"id": [int]},
    "radii": [{"radius": float, **{c.key: {"value": NUMBER, "low": NUMBER, "high": NUMBER} for c in COLUMNS}}],
}  # fmt: skip
MARKS = {"stay among the most important": "#12a594", "stay out": "#39414c", "not certified": "#c3c6cb"}


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

    def row(self, radius: float) -> Mapping[str, Any]:
        """The summary at a radius."""
        return next(row for row in self.summary["radii"] if row["radius"] == radius)

    def cells(self, radius: float) -> list[str]:
        """The columns at a radius: `72.08% [70.1, 74.0]`."""
        found = [(column, self.row(radius)[column.key]) for column in COLUMNS]
        return [f"{c.show(e['value'])} {c.show_interval(e['low'], e['high'])}".rstrip() for c, e in found]

    @property
    def radii(self) -> list[float]:
        return [float(row["radius"]) for row in self.summary["radii"]]

    @property
    def shown_radius(self) -> float:
        """The largest radius with a noticeable share of certified top pixels, else the smallest."""
        some = [r for r in self.radii if (self.row(r)["inside"]["value"] or 0) >= NOTICEABLE]
        return max(some, default=min(self.radii))


def read_certificates(folder: Path) -> tuple[CertificateResults, ...]:
    """The certificates in a folder, those of one map each; summaries of attacks on them are passed over."""
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
        records = tuple(r for r in read(path.with_suffix(".jsonl")) if r["id"] in ids)
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
        f"example they hold with probability at least {level:.4g}, for every change of the input of at most the radius "
        f"r in L2. For instance, r = {radius:g} allows a change of {words}.",
        f"They are about smoothed explanations, taken over copies of the input with Gaussian noise of σ = {sigma:g}. "
        "The maps above have no such bounds. Answer: the share of the examples whose smoothed answer is proved to stay "
        f"the label. The other columns are means over these examples: the pixels proved to stay among the top {k} or "
        f"outside; of those {k}, the share proved to stay; lower bounds of the overlap of the top {k} and of the "
        "cosine of the maps. Brackets: 95% intervals over the examples.",
    )


def marked_maps(found: CertificateResults, gallery: Gallery) -> Any | None:
    """Images, vote maps and certified pixels of a few examples; None where maps are not of the images' size."""
    places = {int(i): at for at, i in enumerate(gallery.id)}
    shape = tuple(found.records[0]["shape"])
    rows = [b for b, r in enumerate(found.records) if r["id"] in places][:SHOWN]
    if not rows or shape != gallery.image.shape[2:]:
        return None
    matplotlib = need("matplotlib", extra="report")
    there, votes = found.bounds.at(found.shown_radius), (found.bounds.low + found.bounds.high) / 2
    figure = need("matplotlib.figure", extra="report").Figure(figsize=(1.25 * len(rows), 4.2))
    axes = figure.subplots(3, len(rows), squeeze=False, gridspec_kw={"wspace": 0.08, "hspace": 0.08, **EDGES})
    for column, b in enumerate(rows):
        image = gallery.image[places[int(found.records[b]["id"])]]
        marks = np.where(there.inside[b], 0, np.where(there.outside[b], 1, 2)).reshape(shape)
        shades = np.array([matplotlib.colors.to_rgb(colour) for colour in MARKS.values()])
        drawn: list[tuple[Array, dict[str, Any]]] = [
            (np.moveaxis(image, 0, -1) if len(image) == 3 else image[0], {"cmap": "gray", "vmin": 0, "vmax": 255}),
            (brightness(votes[b].reshape(shape), 1.0), {"cmap": "magma", "vmin": 0, "vmax": 1}),
            (shades[marks], {}),
        ]
        for axis, (values, how) in zip(axes[:, column], drawn, strict=True):
            axis.imshow(values, interpolation="nearest", **how)
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set_visible(False)
    for axis, title in zip(axes[:, 0], ("image", "vote map", f"r = {found.shown_radius:g}"), strict=True):
        axis.set_ylabel(title, fontsize=8.5)
    patches = [matplotlib.patches.Patch(color=colour, label=name) for name, colour in MARKS.items()]
    figure.legend(handles=patches, loc="lower center", ncols=3, fontsize=8.5, handlelength=1, handleheight=1)
    return figure


def rows(all_found: Sequence[CertificateResults]) -> tuple[tuple[str, ...], ...]:
    """The table: a row for each map and radius."""
    return tuple(
        (f"{found.summary['map']} · r = {radius:g}", *found.cells(radius))
        for found in all_found
        for radius in found.radii
    )
