"""Render docs/results.md from the records in this folder: `make results`, or `python -m results.render`.

The page has the acceptance criteria, the paper's tables with our numbers, the figures of docs/figures, the remarks in
notes.md, and the provenance of every record. It is never edited by hand.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from results import certificates, intervals
from results.acceptance import criteria
from results.provenance import provenance
from robattr.engine.files import write_atomically
from robattr.metrics.columns import COLUMN
from robattr.reporting.figures import figure_name
from robattr.reporting.findings import alarms
from robattr.reporting.groups import Group, group_evaluations
from robattr.reporting.published import DATASETS
from robattr.reporting.run_results import EvaluationResults, RunResults, read_runs
from robattr.reporting.tables import escape_markdown, folded, grid, make_cell, markdown, table

RESULTS = Path(__file__).parent
PAGE = RESULTS.parent / "docs" / "results.md"

ATTACKED = ("adv_acc", "topk", "kendall", "noise_topk", "noise_kendall")  # columns beside the noise control

PREFACE = """\
For each correctly classified test image an attack (IFIA) searches, within ε, for the image whose attribution map
differs most while the prediction stays. *TopK Inter.* is the share of the k most important pixels that remain, *Rank
Corr.* Kendall's rank correlation of the two maps. *Nat Acc.* and *Adv Acc.* are accuracies on clean images and under
PGD. *Never kept* is the share of images on which every attack step changed the prediction: `paper` scores them 1,
which flatters a model. `paper` is the reference's evaluation, `strict` the worst case over many more attacks.
Brackets are 95% intervals over images; seeds have rows of their own. More in [Evaluation](evaluation.md)."""
INEFFECTIVE = """\
The paper reports that IG-NORM on MNIST ends with ℓ at about 1 and ‖IG‖₁ at 10 to 20, and calls the optimisation
ineffective. Its numbers may be sums over a batch (the paper does not say), which leaves the ratio unchanged. Below:
means per image over the last log lines, ‖IG‖₁ without λ or β, at the x' that training found."""
STRONGER = """\
The same models under other protocols. Noise is the control, the worst of ten random sign perturbations of size ε: an
attack must do better. Failures are images on which every step changed the prediction: `paper` scores them 1, `strict`
leaves them out."""
ACCEPTANCE = """\
`paper` protocol, IG maps. The lowest seed of ours must exceed the highest of the other."""
FIGURES = {
    "figure1": "Maps before and after the attack",
    "figure2": "Scores over the examples",
    "eps": "Scores as ε grows",
    "iterations": "Scores as the attack goes on",
}


def page(runs: Sequence[RunResults], *, notes: str = "", bounds: str = "", folder: Path = PAGE.parent) -> str:
    """The page as Markdown, with the sections of `bounds`; links and figures are relative to `folder`."""
    runs = sorted(runs, key=lambda run: _rank(run.dataset))
    groups = sorted(group_evaluations(runs), key=lambda g: (_rank(g.dataset), g.dataset))
    sections = (
        "# Results",
        "Rendered by `make results` from the records; not edited by hand.",
        PREFACE,
        _acceptance(groups),
        _table("Integrated gradients (the paper's table 1)", [g.with_one_m() for g in _of(groups, "paper", "ig")]),
        _figures(_of(groups, "paper", "ig"), folder),
        _table("Simple gradient (the paper's table 3)", _of(groups, "paper", "sg")),
        _over_m(groups),
        _stronger(runs, groups),
        _ineffective(runs),
        bounds,
        f"## What was tried\n\n{notes.strip()}" if notes.strip() else "",
        provenance(runs, folder),
    )
    return "\n\n".join(section.strip() for section in sections if section) + "\n"


def _acceptance(groups: Sequence[Group]) -> str:
    parts = ["## Acceptance criteria", ACCEPTANCE]
    for dataset in DATASETS:
        if dataset not in {group.dataset for group in groups}:
            parts += [f"### {dataset}", "Not measured yet."]
            continue
        rows = [(c.text, f"**{c.answer}**", escape_markdown(c.detail)) for c in criteria(dataset, groups)]
        parts += [f"### {dataset}", grid(("criterion", "met", "by how much"), rows)]
    return "\n\n".join(parts)


def _table(title: str, groups: Sequence[Group]) -> str:
    if not groups:
        return f"## {title}\n\nNot measured yet."
    counts = "; ".join(f"{g.dataset} {', '.join(f'{count:,}' for count in g.counts)}" for g in groups)
    parts = [f"## {title}", markdown(table(groups)).strip(), f"Test examples: {counts}.", _warnings(groups)]
    return "\n\n".join(parts).strip()


def _warnings(groups: Iterable[Group]) -> str:
    said = [f"- {escape_markdown(f'{g.title}, {name}: {text}')}" for g in groups for name, text in alarms(g)]
    return "\n".join(["Warnings of the evaluations:", "", *said]) if said else ""


def _figures(groups: Sequence[Group], folder: Path) -> str:
    """The figures that `robattr figures` has written to `folder`/figures."""
    parts = []
    for group in groups:
        found = []
        for name, title in FIGURES.items():
            file = Path("figures") / f"{figure_name(name, group, groups)}.png"
            if (folder / file).is_file():
                found.append(f"![{title}, {group.dataset}]({file.as_posix()})")
        if found:
            parts += [
                f"### {group.dataset}",
                found[0],
                folded(f"More figures of {group.dataset}", "\n\n".join(found[1:])),
            ]
    return "\n\n".join(["## Figures", *parts]) if parts else ""


def _over_m(groups: Sequence[Group]) -> str:
    title = "IG-NORM on MNIST over m (the paper's table 2)"
    chosen = [
        replace(g, members=tuple((run, e) for run, e in g.members if run.method == "ig-norm"))
        for g in _of(groups, "paper", "ig")
        if any(g.varies_m(run) for run, _ in g.members if run.method == "ig-norm")
    ]
    note = "m is the number of points of the integral in training; the paper's are right ends."
    return f"{_table(title, chosen)}\n\n{note}" if chosen else _table(title, ())


def _stronger(runs: Sequence[RunResults], groups: Sequence[Group]) -> str:
    """Every model that was measured by more than the paper's protocol, with the noise control."""
    title = "## Stronger attacks"
    rows = []
    for run in runs:
        for name in dict.fromkeys(e.summary.get("map") for e in run.evaluations):
            of_map = [e for e in run.evaluations if e.summary.get("map") == name]
            if any(e.summary.get("protocol") != "paper" for e in of_map):
                rows += [_attacked(run, e) for e in sorted(of_map, key=lambda e: e.summary.get("protocol") != "paper")]
    if not rows:
        return f"{title}\n\nNot measured yet."
    titles = (COLUMN[key].title for key in ATTACKED)
    headings = ("Dataset", "Approach", "Protocol", "Map", "Examples", *titles, "Failures")
    warnings = _warnings(group for group in groups if group.protocol != "paper")
    return "\n\n".join([title, STRONGER, grid(headings, rows), warnings]).strip()


def _attacked(run: RunResults, evaluation: EvaluationResults) -> list[str]:
    scored = [r for r in evaluation.records if r.get("kept") is not None]
    failed = sum(not r["kept"] for r in scored)
    names = (run.dataset, run.name, evaluation.protocol, str(evaluation.summary.get("map")))
    cells = [str(make_cell(evaluation, COLUMN[key])) for key in ATTACKED]
    return [*map(escape_markdown, names), f"{len(evaluation.records):,}", *cells, f"{failed} of {len(scored):,}"]


def _ineffective(runs: Sequence[RunResults]) -> str:
    """ℓ and ‖IG‖₁ at the end of training, for the runs with a regulariser of IG."""
    title = "## How effective was the optimisation?"
    rows = []
    for run in runs:
        end = run.training
        if not end.loss or end.ig is None:
            continue
        validated = "–" if end.val_accuracy is None else f"{100 * end.val_accuracy:.2f}%"
        weight = f"{float(run.config.get('weight', 1)):g}"
        numbers = (weight, f"{end.loss:.3g}", f"{end.ig:.3g}", f"{end.ig / end.loss:.3g}", validated, str(end.lines))
        rows.append([run.dataset, escape_markdown(run.name), *numbers])
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


def rendered() -> str:
    """The page of the committed records."""
    notes = (RESULTS / "notes.md").read_text(encoding="utf-8")
    sections = certificates.section(certificates.read()), intervals.section(intervals.read())
    return page(read_runs([RESULTS]), notes=notes, bounds="\n\n".join(filter(None, sections)))


def main() -> None:
    write_atomically(PAGE, rendered().encode())
    print(f"wrote {PAGE.relative_to(RESULTS.parent)}")


if __name__ == "__main__":
    main()
