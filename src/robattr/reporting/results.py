"""The results page: Markdown to be committed, rendered from records alone. Nobody edits it; remarks are `notes`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from robattr.reporting.acceptance import bar
from robattr.reporting.audit_sections import audits, closing, opening
from robattr.reporting.export import portable
from robattr.reporting.figures import figure_name
from robattr.reporting.findings import alarms
from robattr.reporting.provenance import provenance
from robattr.reporting.published import DATASETS
from robattr.reporting.runs import Evaluation, Group, RunResults, measured
from robattr.reporting.sections import Section
from robattr.reporting.tables import COLUMN, Cell, Column, escape_markdown, grid, markdown, show, table, value_of
from robattr.reporting.verdict import by_weight

PREFACE = """\
What holds of a model's explanations when an attacker changes the image a little and leaves the prediction alone? For
each correctly classified test image an attack (IFIA) looks, within ε, for the image whose attribution map differs most
from the map before; *TopK Inter.* is the share of the most important pixels that stay, *Rank Corr.* is Kendall's rank
correlation of the two maps. *Nat Acc.* and *Adv Acc.* are accuracies on clean images and under PGD. *Never kept* is the
share of examples on which no step of the attack kept the prediction: the paper's protocol scores those 1, which
flatters a model, so the share stands beside every score. Brackets are 95% intervals over examples; seeds have rows of
their own, and nothing is averaged over them. `paper` is the reference's evaluation, `strict` the worst case over many
more attacks."""
INEFFECTIVE = """\
The paper observes, of IG-NORM on MNIST, that when training stops ℓ stays at about 1 while ‖IG‖₁ stays at 10 to 20, and
calls the optimisation ineffective. The reference's logs print sums over a batch, so its two numbers may be such sums
(the paper does not say); their ratio does not depend on that. Below, per example: means over the last lines of the
training log, ‖IG‖₁ without λ or β and at the worst x' that training found."""
STRONGER = """\
The same models under other protocols. Noise is the control: the worst of ten random sign perturbations of size ε, which
an attack must beat. Failures are correctly classified examples on which no step kept the prediction: `paper` scores
them 1, `strict` leaves them out."""
BAR = """\
Under the `paper` protocol with IG maps. Of several seeds, the lowest of ours must clear the highest of the other."""


def results(runs: Sequence[RunResults], *, command: str, notes: str = "", beside: Path = Path()) -> str:
    """The page, for the folder `beside` (links lead from there), made by `command`. Of audits alone it is theirs."""
    if len(audits(runs)) == len(runs):
        return _audited(runs, command=command, notes=notes, beside=beside)
    groups = sorted(measured(runs), key=lambda g: (_rank(g.dataset), g.dataset))
    sections = (
        "# Results",
        f"Rendered by `{portable(command)}` from the records; not edited by hand.",
        f"{PREFACE}{_more(beside)}",
        _bars(groups),
        _table("Integrated gradients (the paper's table 1)", [g.of_one_m() for g in _of(groups, "paper", "ig")]),
        _figures(groups, beside),
        _table("Simple gradient (the paper's table 3)", _of(groups, "paper", "sg")),
        _over_m(groups),
        _stronger(runs, groups),
        _ineffective(runs),
        f"## What was tried\n\n{notes.strip()}" if notes.strip() else "",
        provenance(sorted(runs, key=lambda run: _rank(run.dataset)), beside),
    )
    return "\n\n".join(section.strip() for section in sections if section) + "\n"


def _audited(runs: Sequence[RunResults], *, command: str, notes: str, beside: Path) -> str:
    """The page of audited models: the verdict, the numbers, and what stands behind them."""
    runs = [by_weight(run) for run in runs]
    names = [run.name if len(runs) > 1 else "" for run in runs]
    sections = (
        "# Audit",
        f"Rendered by `{portable(command)}` from the records; not edited by hand.",
        *(_section(s) for run, name in zip(runs, names, strict=True) for s in opening(run, of=name)),
        _table("Scores", measured(runs)),
        *(_section(s) for run, name in zip(runs, names, strict=True) for s in closing(run, of=name)),
        notes,
        provenance(runs, beside),
    )
    return "\n\n".join(section.strip() for section in sections if section.strip()) + "\n"


def _section(section: Section) -> str:
    parts = [f"## {escape_markdown(section.title)}", *map(escape_markdown, section.sentences)]
    if section.points:
        parts.append("\n".join(f"- {escape_markdown(point)}" for point in section.points))
    if section.rows:
        parts.append(grid(section.columns, [[escape_markdown(cell) for cell in row] for row in section.rows]))
    return "\n\n".join(parts) if len(parts) > 1 else ""


def write_results(runs: Sequence[RunResults], path: str | Path, *, command: str, notes: str = "") -> Path:
    """Write `results` to a file, its folder made where missing."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(results(runs, command=command, notes=notes, beside=target.parent), encoding="utf-8")
    return target


def _more(beside: Path) -> str:
    return " More in [Evaluation](evaluation.md)." if (beside / "evaluation.md").is_file() else ""


def _bars(groups: Sequence[Group]) -> str:
    """Every demand on every dataset of the paper, also where nothing has been measured yet."""
    parts = ["## The bar", BAR]
    for dataset in DATASETS:
        if dataset not in {group.dataset for group in groups}:
            parts += [f"### {dataset}", "Not measured yet."]
            continue
        rows = [(d.text, f"**{d.answer}**", escape_markdown(d.detail)) for d in bar(dataset, groups)]
        parts += [f"### {dataset}", grid(("demand", "met", "by how much"), rows)]
    return "\n\n".join(parts)


def _table(title: str, groups: Sequence[Group]) -> str:
    if not groups:
        return f"## {title}\n\nNot measured yet."
    return "\n\n".join([f"## {title}", markdown(table(groups)).strip(), _counted(groups), _warnings(groups)]).strip()


def _counted(groups: Iterable[Group]) -> str:
    said = [f"{escape_markdown(g.dataset)} {', '.join(f'{count:,}' for count in g.counts)}" for g in groups]
    return f"Test examples: {'; '.join(said)}."


def _warnings(groups: Iterable[Group]) -> str:
    """What the evaluations hold against themselves."""
    said = [f"- {escape_markdown(f'{g.title}, {name}: {text}')}" for g in groups for name, text in alarms(g)]
    return "\n".join(["Warnings of the evaluations about themselves:", "", *said]) if said else ""


def _figures(groups: Sequence[Group], beside: Path) -> str:
    """The figures that `robattr figures` has written beside the page."""
    titles = {
        "figure1": "Maps before and after the attack",
        "figure2": "Scores over the examples",
        "eps": "Scores as ε grows",
        "iterations": "Scores as the attack goes on",
    }
    found = []
    chosen = _of(groups, "paper", "ig")
    for group in chosen:
        for name, title in titles.items():
            file = Path("figures") / f"{figure_name(name, group, chosen)}.png"
            if (beside / file).is_file():
                of = f"{title}, {escape_markdown(group.dataset)}"
                found.append(f"### {of}\n\n![{of}]({quote(file.as_posix())})")
    return "\n\n".join(["## Figures", *found]) if found else ""


def _over_m(groups: Sequence[Group]) -> str:
    title = "IG-NORM on MNIST over m (the paper's table 2)"
    several = [g for g in _of(groups, "paper", "ig") if len(g.points) > 1]
    if not several:
        return f"## {title}\n\nNot measured yet."
    chosen = [g.of(run for run, _ in g.members if run.method == "ig-norm") for g in several]
    return (
        f"{_table(title, chosen)}\n\nm is the number of points of the integral in training; the paper's are right ends."
    )


def _stronger(runs: Sequence[RunResults], groups: Sequence[Group]) -> str:
    """Every model that was measured by more than the paper's protocol, with the control that an attack must beat."""
    title = "## Stronger attacks"
    rows = []
    for run in sorted(runs, key=lambda run: _rank(run.dataset)):
        maps = dict.fromkeys(str(e.summary.get("map")) for e in run.evaluations)
        for name in maps:
            of_map = [e for e in run.evaluations if str(e.summary.get("map")) == name]
            if any(e.summary.get("protocol") != "paper" for e in of_map):
                rows += [_attacked(run, e) for e in sorted(of_map, key=lambda e: e.summary.get("protocol") != "paper")]
    if not rows:
        return f"{title}\n\nNot measured yet."
    headings = ("Dataset", "Approach", "Protocol", "Map", "Examples", "Adv Acc.", "TopK Inter.", "Rank Corr.",
                "Noise TopK", "Noise Rank", "Failures")  # fmt: skip
    warnings = _warnings(group for group in groups if group.protocol != "paper")
    return "\n\n".join([title, STRONGER, grid(headings, rows), warnings]).strip()


def _attacked(run: RunResults, evaluation: Evaluation) -> list[str]:
    summary = evaluation.summary
    scored = [r for r in evaluation.records if r.get("kept") is not None]
    failed = sum(not r["kept"] for r in scored)
    names = (run.dataset, run.name, str(summary.get("protocol")), str(summary.get("map")))
    columns = [COLUMN["adv_acc"], *(COLUMN[key] for key in ("topk", "kendall"))]
    control = [replace(COLUMN[key], key=f"noise_{key}") for key in ("topk", "kendall")]
    cells = [_cell(evaluation, column) for column in (*columns, *control)]
    return [*map(escape_markdown, names), f"{len(evaluation.records):,}", *cells, f"{failed} of {len(scored):,}"]


def _cell(evaluation: Evaluation, column: Column) -> str:
    found = evaluation.summary.get("columns", {}).get(column.key) or {}
    value = value_of(evaluation, column.key)
    return show(Cell(value, found.get("low"), found.get("high"), paper=None, best=False), column)


def _ineffective(runs: Sequence[RunResults]) -> str:
    """ℓ and ‖IG‖₁ at the end of training, for the runs that have a regulariser of IG."""
    title = "## How effective was the optimisation?"
    rows = []
    for run in sorted(runs, key=lambda run: _rank(run.dataset)):
        end = run.training
        if run.method not in ("ig-norm", "ig-sum-norm") or end.loss is None or end.ig is None:
            continue
        ratio = f"{end.ig / end.loss:.3g}" if end.loss else "–"
        validated = "–" if end.val_accuracy is None else f"{100 * end.val_accuracy:.2f}%"
        names = map(escape_markdown, (run.dataset, run.name))
        weight = f"{float(run.config.get('weight', 1)):g}"
        rows.append([*names, weight, f"{end.loss:.3g}", f"{end.ig:.3g}", ratio, validated, str(end.lines)])
    if not rows:
        return f"{title}\n\n{INEFFECTIVE}\n\nNot measured yet."
    paper = ["mnist", "IG-NORM, the paper", "1", "~1", "10–20", "10–20", "–", "–"]
    headings = ("Dataset", "Approach", "λ or β", "ℓ", "‖IG‖₁", "‖IG‖₁ / ℓ", "Validation accuracy", "Log lines")
    return "\n\n".join([title, INEFFECTIVE, grid(headings, [paper, *rows])])


def _of(groups: Iterable[Group], protocol: str, map_name: str) -> list[Group]:
    return [group for group in groups if (group.protocol, group.map_name) == (protocol, map_name)]


def _rank(dataset: str) -> int:
    """The paper's datasets in its order, then the others."""
    return DATASETS.index(dataset) if dataset in DATASETS else len(DATASETS)
