"""Publication figures: the paper's figure 1 (maps), figure 2 (box plots) and curves, with the table.

Functions return a matplotlib `Figure`; `write_figures` writes files and `inline_svg` makes the charts of the page. Both
are reproducible: no dates, fixed ids.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from robattr._extras import need
from robattr.engine.files import write_atomically
from robattr.evaluation.gallery import Array, Gallery, read_gallery
from robattr.metrics.columns import COLUMN
from robattr.reporting import tables
from robattr.reporting.certified import CertificateResults
from robattr.reporting.curves import COLOURS, Panel, score_panels, scores, styles, training_panels
from robattr.reporting.display import brightness, ceiling
from robattr.reporting.faithfulness import faithfulness_table
from robattr.reporting.groups import Group, group_evaluations
from robattr.reporting.record import slug
from robattr.reporting.run_results import EvaluationResults, RunResults

FORMATS = ("pdf", "svg", "png")
PALETTE = ("#7d838b", "#c47f12", "#2f80c9", "#0b6e66", "#a84583", "#6a4fc4")
STYLE = {
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "legend.frameon": False,
    "pdf.fonttype": 42,
    "svg.hashsalt": "robattr",
}
MARKS = {"stay among the most important": "#12a594", "stay out": "#39414c", "not certified": "#c3c6cb"}
MOST_MODELS = 6  # in figure 1; also examples in the figure of certificates
LONGEST_NAME = 48  # characters
DASHES = ("-", "--", ":", "-.")
NO_DATES = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {"Software": None}}


def write_figures(
    runs: Sequence[RunResults], folder: str | Path, *, formats: Sequence[str] = FORMATS, rows: int = 4
) -> list[Path]:
    """Write every figure the runs have data for, and the tables as Markdown, LaTeX and CSV; return the paths."""
    matplotlib = need("matplotlib", extra="report")
    target, groups = Path(folder), group_evaluations(runs)
    target.mkdir(parents=True, exist_ok=True)
    written = []
    made = {"table": tables.table(groups), "faithfulness": faithfulness_table(groups)}
    for name, table in ((name, table) for name, table in made.items() if table):
        for suffix, make in _TABLES.items():
            written.append(target / f"{name}.{suffix}")
            write_atomically(written[-1], make(table).encode())
    with matplotlib.rc_context(STYLE):
        for name, figure in _figures(runs, groups, rows):
            for suffix in formats:
                file = io.BytesIO()
                figure.savefig(file, format=suffix, bbox_inches="tight", dpi=200, metadata=NO_DATES.get(suffix))
                written.append(target / f"{name}.{suffix}")
                write_atomically(written[-1], file.getvalue())
    return written


def map_grid(group: Group, *, rows: int = 4) -> Any | None:
    """The paper's figure 1: each example's image and map before the attack, and below them those after it, with scores.

    Two columns per model. Of more than MOST_MODELS models, one seed of each is shown, or else the first of each method.
    """
    shown = [(run, e) for run, e in group.with_one_m().members if e.gallery]
    for key in (lambda run: (run.method, run.config.get("model")), lambda run: run.method):
        if len(shown) > MOST_MODELS:
            shown = list({key(run): (run, e) for run, e in reversed(shown)}.values())[::-1]
    members = [(run, e, read_gallery(e.gallery)) for run, e in shown if e.gallery]
    first = members[0][2] if members else None
    shared = [int(i) for i in first.id if all(_same(first, g, i) for _, _, g in members)] if first else []
    if first is None or not shared:
        return None
    chosen = _typical(shared, members[0][1], rows)
    figure = _figure(width=2.1 * len(members) + 0.6, height=2.25 * len(chosen) + 0.35)
    grid = figure.add_gridspec(len(chosen), len(members), wspace=0.06, hspace=0.14)
    for m, (run, e, gallery) in enumerate(members):
        for r, i in enumerate(chosen):
            cells = grid[r, m].subgridspec(2, 2, wspace=0.05, hspace=0.05)
            axes = [[figure.add_subplot(cells[row, column]) for column in (0, 1)] for row in (0, 1)]
            _example(axes, gallery, _place(gallery, i), e.record(i))
            if m == 0:
                name = textwrap.fill(_class(group, int(gallery.label[_place(gallery, i)])), 16)
                for row, text in zip(axes, (f"{name}\nbefore", "after"), strict=True):
                    row[0].set_ylabel(text, fontsize=8, rotation=0, ha="right", va="center", labelpad=6)
            if r == 0:
                left, right = (axis.get_position() for axis in axes[0])
                name = _literal(run.name.replace(", ", "\n"))  # the method; below it, what sets the run apart
                middle, above = (left.x0 + right.x1) / 2, left.y1 + 0.03 / len(chosen)
                figure.text(middle, above, name, ha="center", va="bottom", weight="bold")
    return figure


def boxes(group: Group, keys: Sequence[str] = ("topk", "kendall")) -> Any | None:
    """The paper's figure 2: the two scores over the examples.

    Runs of one method share its colour. None where no example has a score.
    """
    shown = [(run, e) for run, e in group.members if all(e.scores(key) for key in keys)]
    if not shown:
        return None
    style = styles([run for run, _ in group.members])
    names = [_literal(run.name) for run, _ in shown]
    figure = _figure(width=2.9 * len(keys) + 0.06 * max(map(len, names)), height=0.9 + 0.26 * len(shown))
    figure.set_layout_engine("constrained")
    axes = figure.subplots(1, len(keys), sharey=True, squeeze=False)[0]
    for axis, key in zip(axes, keys, strict=True):
        drawn = axis.boxplot(
            [e.scores(key) for _, e in shown],
            orientation="horizontal",
            patch_artist=True,
            widths=0.55,
            flierprops={"markersize": 2, "markeredgewidth": 0.4, "alpha": 0.5},
            medianprops={"color": "black"},
        )
        for patch, (run, _) in zip(drawn["boxes"], shown, strict=True):
            patch.set_facecolor(_colour(style[run.name]))
            patch.set_alpha(0.55)
        axis.set_xlabel(scores(group)[key])
    axes[0].set_yticks(range(1, len(shown) + 1), names, fontsize=8)
    axes[0].invert_yaxis()
    return figure


def lines(panels: Sequence[Panel], *, x_label: str) -> Any | None:
    """Panels of curves side by side, intervals as bands; None where there is no curve.

    A logarithmic panel leaves out curves without a positive value (the regulariser of a method without one).
    """
    seen = [(p, [s for s in p.series if not p.log or max(s.ys) > 0]) for p in panels]
    drawn = [(panel, series) for panel, series in seen if series]
    if not drawn:
        return None
    names = {s.name for _, series in drawn for s in series}
    width = 3.4 * len(drawn)
    columns = max(1, min(2 * len(drawn), int(width / (0.6 + 0.065 * max(map(len, names))))))  # of the legend
    figure = _figure(width=width, height=2.5 + 0.2 * -(-len(names) // columns))
    figure.set_layout_engine("constrained")
    entries: dict[str, Any] = {}
    for axis, (panel, series) in zip(figure.subplots(1, len(drawn), squeeze=False)[0], drawn, strict=True):
        for s in series:
            (entries[_literal(s.name)],) = axis.plot(
                s.xs,
                s.ys,
                color=_colour(s.style),
                linestyle=DASHES[s.style // COLOURS % len(DASHES)],
                label=_literal(s.name),
                marker="." if len(s.xs) < 20 else None,
                lw=1.4,
            )
            if s.low:
                axis.fill_between(s.xs, s.low, s.high, color=_colour(s.style), alpha=0.15, lw=0)
        axis.set_xlabel(x_label)
        axis.set_ylabel(panel.title)
        if all(float(x).is_integer() for s in series for x in s.xs):
            axis.xaxis.get_major_locator().set_params(integer=True)
        if panel.log:
            axis.set_yscale("log", nonpositive="mask")  # the default draws a fall to the bottom
    figure.legend([*entries.values()], [*entries], loc="outside lower center", ncols=columns, fontsize=7.5)
    return figure


def certified_maps(found: CertificateResults, gallery: Gallery) -> Any | None:
    """Images, vote maps and certified pixels of a few examples; None where maps are not of the images' size."""
    shape = tuple(found.records[0]["shape"])
    rows = [(b, int(r["id"])) for b, r in enumerate(found.records) if r["id"] in gallery.id][:MOST_MODELS]
    if not rows or shape != gallery.image.shape[2:]:
        return None
    matplotlib = need("matplotlib", extra="report")
    there, votes = found.bounds.at(found.shown_radius), (found.bounds.low + found.bounds.high) / 2
    shades = np.array([matplotlib.colors.to_rgb(colour) for colour in MARKS.values()])
    figure = _figure(width=1.25 * len(rows), height=4.2)
    edges = {"left": 0.06, "right": 1.0, "bottom": 0.09, "top": 1.0, "wspace": 0.08, "hspace": 0.08}
    axes = figure.subplots(3, len(rows), squeeze=False, gridspec_kw=edges)
    for (b, i), (image, map, marked) in zip(rows, axes.T, strict=True):
        _image(image, gallery.image[_place(gallery, i)])
        _map(map, votes[b].reshape(shape), 1.0)
        _bare(marked)
        marks = np.where(there.inside[b], 0, np.where(there.outside[b], 1, 2)).reshape(shape)
        marked.imshow(shades[marks], interpolation="nearest")
    titles = ("image", f"vote map, {found.summary['map']}", f"r = {found.shown_radius:g}")
    for axis, title in zip(axes[:, 0], titles, strict=True):
        axis.set_ylabel(title, fontsize=8.5)
    patches = [matplotlib.patches.Patch(color=colour, label=name) for name, colour in MARKS.items()]
    figure.legend(handles=patches, loc="lower center", ncols=3, fontsize=8.5, handlelength=1, handleheight=1)
    return figure


def page_style() -> Any:
    """The context in which the charts of a page are drawn."""
    return need("matplotlib", extra="report").rc_context({**STYLE, "svg.fonttype": "none"})


def inline_svg(figure: Any, *, name: str) -> str:
    """A figure as an element of the page, in the colours of its style sheet, light or dark."""
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    text = re.sub(r'<g id="[^"]*"', "<g", file.getvalue()[file.getvalue().index("<svg") :])  # ids repeat in a page
    for colour, css in {"#000000": "currentColor", **{c: f"var(--s{i})" for i, c in enumerate(PALETTE)}}.items():
        text = text.replace(colour, css)
    return text.replace("<svg", f'<svg class="chart" role="img" aria-label="{escape(name)}"', 1)


def _figures(runs: Sequence[RunResults], groups: Sequence[Group], rows: int) -> list[tuple[str, Any]]:
    """(file name without ending, figure); the name has the group or the dataset where there are several."""
    made: list[tuple[str, Any | None]] = []
    compared = [_compared(group) for group in groups]
    for group in compared:
        found = {
            "figure1": map_grid(group, rows=rows),
            "figure2": boxes(group),
            "eps": lines(score_panels(group, "eps"), x_label="ε"),
            "iterations": lines(score_panels(group, "iterations"), x_label="iteration"),
        }
        suffix = "" if len(groups) == 1 else f"-{slug(group.key)}"
        made += [(f"{name}{suffix}", figure) for name, figure in found.items()]
    every, shown = ({run.path for group in of for run, _ in group.members} for of in (groups, compared))
    datasets = dict.fromkeys(run.dataset for run in runs)
    for dataset in datasets:
        chosen = [run for run in runs if run.dataset == dataset and run.path not in every - shown]
        suffix = "" if len(datasets) == 1 else f"-{slug(dataset)}"
        made.append((f"training{suffix}", lines(training_panels(chosen), x_label="training step")))
    return [(name, figure) for name, figure in made if figure is not None]


def _compared(group: Group) -> Group:
    """Keep one m of each method where there are several methods; runs that vary m alone are all compared."""
    return group.with_one_m() if len({run.method for run, _ in group.members}) > 1 else group


def _typical(shared: Sequence[int], evaluation: EvaluationResults, rows: int) -> list[int]:
    """Examples of different classes with scores around the median: the typical case."""
    scored = {r["id"]: r for r in evaluation.records if r.get("topk") is not None}
    ranked = sorted((i for i in shared if i in scored), key=lambda i: scored[i]["topk"]) or list(shared)
    by_middle = sorted(ranked, key=lambda i: abs(ranked.index(i) - len(ranked) / 2))
    classes: dict[int, int] = {}
    for i in by_middle:
        classes.setdefault(scored.get(i, {}).get("label", i), i)
    chosen = [*classes.values(), *(i for i in by_middle if i not in classes.values())]
    return chosen[:rows]


def _example(axes: Sequence[Sequence[Any]], gallery: Gallery, place: int, record: Mapping[str, Any]) -> None:
    """Image and map before the attack, image and map after it."""
    step, top = gallery.reported(place), ceiling(gallery.before[place])
    _image(axes[0][0], gallery.image[place])
    if gallery.has_perturbed:
        _image(axes[1][0], gallery.perturbed[place][step])
    else:  # an older record of large images has the maps alone
        _bare(axes[1][0])
        axes[1][0].text(0.5, 0.5, "image\nnot stored", ha="center", va="center", fontsize=7.5, color="#5b6168")
    _map(axes[0][1], gallery.before[place], top)
    _map(axes[1][1], gallery.after[place][step], top)
    topk, kendall = record.get("topk"), record.get("kendall")
    if topk is None or kendall is None:
        topk, kendall = float(gallery.topk[place, step]), float(gallery.kendall[place, step])
    said = f"{COLUMN['topk'].title} {100 * topk:.0f}% · {COLUMN['kendall'].title} {kendall:.2f}"
    axes[1][1].set_xlabel(said, fontsize=7, loc="right")


def _image(axis: Any, image: Array) -> None:
    _bare(axis)
    shown = image[0] if image.shape[0] == 1 else np.moveaxis(image, 0, -1)
    axis.imshow(shown, cmap="gray", vmin=0, vmax=255, interpolation="nearest")


def _map(axis: Any, values: Array, top: float) -> None:
    _bare(axis)
    axis.imshow(brightness(values, top), cmap="magma", vmin=0, vmax=1, interpolation="nearest")


def _bare(axis: Any) -> None:
    axis.set(xticks=[], yticks=[])
    axis.spines[:].set_visible(False)


def _figure(*, width: float, height: float) -> Any:
    return need("matplotlib.figure", extra="report").Figure(figsize=(width, height))


def _colour(style: int) -> str:
    return PALETTE[style % COLOURS]


def _place(gallery: Gallery, i: int) -> int:
    return int(np.flatnonzero(gallery.id == i)[0])


def _same(one: Gallery, other: Gallery, i: int) -> bool:
    """Whether both have example i with the same image."""
    return i in other.id and np.array_equal(one.image[_place(one, i)], other.image[_place(other, i)])


def _class(group: Group, label: int) -> str:
    return _literal(group.classes[label] if label < len(group.classes) else str(label))


def _literal(text: str) -> str:
    """Cut a long name, and escape dollar signs, which matplotlib reads as mathematics."""
    return (text if len(text) <= LONGEST_NAME else f"{text[: LONGEST_NAME - 1]}…").replace("$", r"\$")


_TABLES = {"md": tables.markdown, "tex": tables.latex, "csv": tables.csv}
