"""The report: one self-contained HTML page.

The template engine escapes all text, the explorer's data is JSON with `<`, `>` and `&` written as escapes, and a
content security policy admits the page's own script by its hash alone: a class called `<script>` does nothing.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from robattr._extras import need
from robattr._version import __version__
from robattr.engine.files import write_atomically
from robattr.errors import InvalidInput
from robattr.evaluation.scores import PROBED
from robattr.metrics.columns import COLUMN, CONTROLLED
from robattr.reporting import audit_sections
from robattr.reporting.audit_sections import Section
from robattr.reporting.curves import Panel, score_panels, scores, training_panels
from robattr.reporting.explorer import explorer
from robattr.reporting.export import portable
from robattr.reporting.faithfulness import faithfulness_table
from robattr.reporting.figures import boxes, inline_svg, lines, page_style
from robattr.reporting.findings import DIFFERENCES, alarms, differences, examples_differ, finding, groups_differ
from robattr.reporting.groups import MOST_SHOWN, Group, few, group_evaluations
from robattr.reporting.published import SOURCE
from robattr.reporting.run_results import RunResults
from robattr.reporting.tables import BOLD, table
from robattr.reporting.verdict import strictest_first

EVALUATED = (
    "protocol", "map", "examples", "seed", "device", "seconds", "command", "settings", "versions", "diagnostics",
)  # fmt: skip

TITLES = {key: COLUMN[key].title for key in ("topk", "kendall")}  # of the explorer's scores


def page(
    runs: Sequence[RunResults],
    *,
    title: str = "Attribution robustness",
    opening: Sequence[Section] = (),
    closing: Sequence[Section] = (),
) -> str:
    """Render the runs as one HTML document, with sections before and after the measurements.

    Without given sections, audits among the runs add their own: the verdict, certificates, the classes.
    """
    template = _template()
    runs = [strictest_first(run) if run.method == audit_sections.METHOD else run for run in runs]
    found = audit_sections.audits(runs)
    led = len(runs) == 1 and bool(found)  # the verdict says what the headline would
    if not opening and not closing:
        opening, closing = (
            [replace(s, title=f"{s.title}: {run.name}") if len(runs) > 1 else s for run in found for s in make(run)]
            for make in (audit_sections.opening, audit_sections.closing)
        )
    groups = group_evaluations(runs)
    shown = [group.shown() for group in groups]
    by_dataset: dict[str, list[RunResults]] = {}
    for run in runs:
        by_dataset.setdefault(run.dataset, []).append(run)
    script = _resource("explorer.js")
    with page_style():
        html: str = template.render(
            title=title,
            version=__version__,
            source=SOURCE,
            css=_resource("page.css"),
            script=script,
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
            data=embedded({"colours": _ramp(), "titles": TITLES, "groups": explorer(shown)}),
            groups=[(group, finding(group), table([group], CONTROLLED)) for group in groups],
            explained=lambda group: faithfulness_table([group]),
            alarms=alarms,
            differences=_differences,
            examples_differ=examples_differ,
            groups_differ=groups_differ(groups),
            attack=_attack,
            box_plots=lambda group: _box_plots(group.shown()),
            score_charts=lambda group, x, label: _charts(score_panels(group.shown(), x), x_label=label),
            banded=lambda group: any(s.low for panel in score_panels(group, "eps") for s in panel.series),
            training={
                name: _charts(training_panels([of[at] for at in few(of)]), x_label="training step")
                for name, of in by_dataset.items()
            },
            most=MOST_SHOWN,
            bold=BOLD,
            few_shown=f"Charts and the explorer show {MOST_SHOWN} runs: the first of each variant, then the next.",
            led=led,
            probed=PROBED,
            opening=opening,
            closing=closing,
            runs=runs,
            evaluated=lambda e: {key: e.summary[key] for key in EVALUATED if e.summary.get(key) is not None},
            differing=_differing(runs),
            commands=_commands(runs),
        )
    return html


def write_page(
    runs: Sequence[RunResults],
    path: str | Path,
    *,
    title: str = "Attribution robustness",
    opening: Sequence[Section] = (),
    closing: Sequence[Section] = (),
) -> Path:
    """Write `page` to a file; create its folder where it is missing."""
    target = Path(path)
    if target.is_dir():
        raise InvalidInput(f"expected a file for the page, got the folder {target}: use {target / 'report.html'}")
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target, page(runs, title=title, opening=opening, closing=closing).encode())
    return target


def embedded(value: Any) -> str:
    """JSON for the inside of a `<script>` element, which it can neither end nor nest."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _differences(group: Group) -> Section | None:
    """The differences between the models, example by example."""
    said = (
        "Each model minus another on the examples that both have: the same images, so that these intervals are "
        "narrower than those of the table. A difference whose interval contains 0 is not settled. Intervals are over "
        "the examples, for these trained models: another training of a method may give another difference."
    )
    columns = ("", *(COLUMN[key].title for key in DIFFERENCES), "Examples scored")
    rows = tuple(tuple(cell.replace(" [", "\n[").replace("], ", "]\n") for cell in row) for row in differences(group))
    return Section(f"Differences: {group.title}", (said,), columns=columns, rows=rows) if rows else None


def _box_plots(group: Group) -> list[str]:
    drawn = [(key, label, boxes(group, [key])) for key, label in scores(group).items()]
    return [inline_svg(figure, name=f"{label}: {_quartiles(group, key)}") for key, label, figure in drawn if figure]


def _quartiles(group: Group, key: str) -> str:
    """A box plot in words."""
    found = [(run.name, np.quantile(e.scores(key), (0.25, 0.5, 0.75))) for run, e in group.members if e.scores(key)]
    return "; ".join(f"{name} median {mid:.2f}, quartiles {low:.2f} and {high:.2f}" for name, (low, mid, high) in found)


def _attack(group: Group) -> str:
    """`k = 100 · ε = 0.1 (inputs from 0 to 1) · 15 iterations · 150 examples`: what the group shares."""
    summaries = [e.summary for _, e in group.members]
    radii = {e.radius for _, e in group.members}
    said = [f"k = {group.k:,}", *(f"ε = {radius}" for radius in radii if len(radii) == 1)]
    for key, form in (("steps", "{} iterations"), ("repeats", "{} repeats")):
        values = {s.get("settings", {}).get(key) for s in summaries}
        said += [form.format(value) for value in values if len(values) == 1 and value is not None]
    counts = {s.get("examples") for s in summaries}
    said += [f"{count:,} examples" for count in counts if len(counts) == 1 and count is not None]
    return " · ".join(said)


def _charts(panels: Sequence[Panel], *, x_label: str) -> list[str]:
    """One chart per panel, so that they fit a phone."""
    drawn = [(panel, lines([panel], x_label=x_label)) for panel in panels]
    return [inline_svg(figure, name=_in_words(panel, x_label)) for panel, figure in drawn if figure]


def _in_words(panel: Panel, x_label: str) -> str:
    """The ends of each curve."""
    curves = (f"{s.name} {s.ys[0]:.3g} at {s.xs[0]:g}, {s.ys[-1]:.3g} at {s.xs[-1]:g}" for s in panel.series)
    return f"{panel.title} against {x_label}: {'; '.join(curves)}"


def _commands(runs: Sequence[RunResults]) -> list[str]:
    """The commands that made the runs, their evaluations and this page, each once and in that order."""
    trained = [run.environment.get("command") for run in runs]
    evaluated = [e.summary.get("command") for run in runs for e in run.evaluations]
    sources = []  # directories or records
    for run in runs:
        records = [e.source for e in run.evaluations if e.source.parent != run.path / "records"]
        sources += records or [run.path]
    rendered = f"robattr report {' '.join(shlex.quote(_shown(source)) for source in sources)} -o report.html"
    return list(dict.fromkeys(portable(str(command)) for command in [*trained, *evaluated, rendered] if command))


def _shown(path: Path) -> str:
    """A path without the folders above the working directory, which are private."""
    return path.name if path.is_absolute() else path.as_posix()


def _differing(runs: Sequence[RunResults]) -> Section | None:
    """The settings in which the runs differ, a row for each; of many runs, a row for each run."""
    keys = dict.fromkeys(key for run in runs for key in run.config)
    every = {key: [_plain(portable(run.config.get(key, "–"))) for run in runs] for key in keys}
    many = len(runs) > MOST_SHOWN
    columns = [("Run" if many else "Setting", *(run.name for run in runs))]
    columns += [(key, *values) for key, values in every.items() if len(set(values)) > 1]
    headings, *rows = zip(*columns, strict=True) if many else columns
    return Section("Settings that differ", (), columns=headings, rows=tuple(rows)) if len(columns) > 1 else None


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_plain(inner)}" for key, inner in value.items())
    if isinstance(value, list | tuple):
        return " ".join(_plain(inner) for inner in value)
    return str(value)


def _ramp() -> str:
    """The colour scale of the maps, 256 RGB triples: magma, perceptually uniform and black at zero."""
    matplotlib = need("matplotlib", extra="report")
    rgb = matplotlib.colormaps["magma"](np.linspace(0, 1, 256))[:, :3]
    return base64.b64encode(np.rint(255 * rgb).astype(np.uint8).tobytes()).decode("ascii")


@cache
def _template() -> Any:
    environment = need("jinja2", extra="report").Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"plain": lambda value: _plain(portable(value)), "shown": _shown}
    return environment.from_string(_resource("page.html.j2"))


def _resource(name: str) -> str:
    return (files("robattr.reporting") / "page" / name).read_text(encoding="utf-8")
