"""Part one of docs/results.md: the paper's networks. Its claims, and its tables with our numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import get_args

from results import ablation, claims
from results.claims import ATTRIBUTION, TOLERATED, Measurement
from results.sections import Member, doubts, end_of_training, figures, join, members, strict_table, warnings
from results.values import show, show_estimate, title
from robattr import recipes
from robattr.metrics.columns import COLUMN, PAPERS
from robattr.reporting.published import DATASETS, INTEGRATED_GRADIENTS, SIMPLE_GRADIENT, Published, published
from robattr.reporting.record import APPROACHES
from robattr.reporting.run_results import EvaluationResults, RunResults
from robattr.reporting.tables import escape_markdown, folded, grid, make_cell
from robattr.training.config import BOOKKEEPING

INTRODUCTION = f"""\
The paper's networks, trained by its recipes, some with fewer nodes and in reduced precision (*How they were trained*):
a CNN on MNIST and Fashion-MNIST, ResNets on GTSRB and Flower. † marks a row with a column more than
{100 * TOLERATED:g} points, or {TOLERATED:g} of rank correlation, from the paper's, and leads to
[what was tried](tried.md)."""
JUDGED = f"""\
Each comparison is paired: the mean difference over the images that both models classify correctly (for accuracies, all
images), with its 95% interval. Of several seeds, the pair with the lowest difference counts. A difference is reproduced
if, in each column in which the paper's table has it, its interval is above 0 and it is at least half the paper's (in
part: not all of this); an accuracy, if by its whole interval it loses at most {100 * TOLERATED:g} points more than in
the paper (in part: by the mean); m, if the best and the worst differ by no more than in the paper; ‖IG‖₁, if it is at
least ten times ℓ (in part: greater than ℓ)."""
TITLES = tuple(column.title for column in PAPERS)


def section(runs: Sequence[RunResults], folder: Path) -> str:
    """The part; links and figures are relative to `folder`."""
    strict, added, drawn = strict_table(runs), ablation.by_dataset(runs), figures("paper", folder)
    return join(
        "## The paper's networks",
        INTRODUCTION,
        _claims(runs),
        _table("Integrated gradients (the paper's table 1)", runs, "ig", INTEGRATED_GRADIENTS),
        folded("The strict protocol, with the noise control", strict) if strict else "",
        folded("What each attack of the strict protocol adds", added) if added else "",
        end_of_training(runs),
        _table("Simple gradient (the paper's table 3)", runs, "sg", SIMPLE_GRADIENT),
        _table_over_m(runs),
        join("### Figures", drawn) if drawn else "",
    )


def _claims(runs: Sequence[RunResults]) -> str:
    """A verdict for each claim under both protocols; the comparisons are folded."""
    verdicts, comparisons, outcomes, under_paper = [], [], Counter[str](), list[Measurement]()
    for number, claim in enumerate(claims.CLAIMS, start=1):
        made = {protocol: list(claim.measure(runs, protocol)) for protocol in ("paper", "strict")}
        cells = [str(claims.judge(of)) for of in made.values()]
        if claim.of_training:
            cells[1] = "does not depend on the attack"
            made.pop("strict")
        verdicts.append((str(number), claim.text, *cells))
        outcomes[claims.judge(made["paper"]).outcome] += 1
        under_paper += made["paper"]
        for protocol, of in made.items():
            comparisons += [(str(number), protocol, *_comparison(m)) for m in of if m.found]
    headings = ("Claim", "Protocol", "Dataset", "Comparison", "Outcome", "Difference", "Paper", "Images")
    folds = folded(f"The {len(comparisons)} comparisons", grid(headings, comparisons)) if comparisons else ""
    counts = ", ".join(f"{outcomes[outcome]} {outcome}" for outcome in get_args(claims.Outcome) if outcomes[outcome])
    said = f"Of {len(verdicts)} claims, under `paper`: {counts}."
    found = [m for m in under_paper if m.found]
    if 0 < len(found) < len(under_paper):
        datasets = ", ".join(dict.fromkeys(m.dataset for m in found))
        said += f" So far {len(found)} of their {len(under_paper)} comparisons are made, on {datasets}."
    table = grid(("", "Claim", "`paper`", "`strict`"), verdicts)
    return join("### The paper's claims", said, table, doubts(members(runs, "strict", "ig")), JUDGED, folds)


def _comparison(m: Measurement) -> tuple[str, ...]:
    differences = ", ".join(f"{title(key)} {show_estimate(key, e)}" for key, e in m.found.items())
    paper = ", ".join(show(key, value) for key, value in m.paper.items()) or "–"
    count = min(e.n for e in m.found.values())
    return m.dataset, m.compared, m.outcome, differences, paper, f"{count:,}" if count else "–"


def _table(heading: str, runs: Sequence[RunResults], map_name: str, paper: Mapping[tuple[str, str], Published]) -> str:
    """A table of the paper beside ours, the first seed of each row; further seeds are folded."""
    first: dict[tuple[str, str], Member] = {}
    further = []
    for run, e in members(claims.without_sweep(runs), "paper", map_name):
        if (run.dataset, run.method) in first:
            further.append((run, e))
        else:
            first[run.dataset, run.method] = run, e
    shown = list(first.values())
    strict = bool(members(runs, "strict", map_name))
    titles = [*TITLES, *(f"{COLUMN[key].title}, `strict`" for key in ATTRIBUTION if strict)]
    rows, seeds = ([_row(run, e, strict=strict) for run, e in of] for of in (shown, further))
    return join(
        f"### {heading}",
        grid(("Dataset", "Approach", *titles), [(*names, *cells) for names, _, cells in rows]) if rows else "",
        _below(shown) if shown else "",
        doubts(members([run for run, _ in shown], "strict", map_name)),
        _missing(paper.keys() - first.keys()),
        folded("Further seeds", grid(("Dataset", "Approach", "Seed", *titles), [(*n, s, *c) for n, s, c in seeds]))
        if seeds
        else "",
        folded("How they were trained", _settings(shown + further)) if shown and map_name == "ig" else "",
    )


def _row(run: RunResults, e: EvaluationResults, *, strict: bool) -> tuple[tuple[str, str], str, list[str]]:
    """Dataset and approach, the seed, and the cells; with `strict` also the attribution columns under that protocol."""
    name = escape_markdown(f"{APPROACHES.get(run.method, run.name)}{run.flagged(e)}") + _mark(run, e)
    cells = _cells(run, e)
    if strict:
        found = members([run], "strict", str(e.summary.get("map")))
        newest = max(found, key=lambda member: member[1].protocol)[1] if found else None
        mark = " ‡" if newest and doubts([(run, newest)]) else ""
        cells += [f"{make_cell(newest, COLUMN[key])}{mark}" if newest else "not yet" for key in ATTRIBUTION]
    return (run.dataset, name), str(run.config.get("seed")), cells


def _cells(run: RunResults, e: EvaluationResults, m: int | None = None) -> list[str]:
    """Our values with intervals, and below them the paper's."""
    row = published(run.dataset, run.method, map_name=str(e.summary.get("map")), m=m)
    paper = [f"<br>paper {column.show(row[column.key])}" if row else "" for column in PAPERS]
    return [f"{make_cell(e, column)}{below}" for column, below in zip(PAPERS, paper, strict=True)]


def _mark(run: RunResults, e: EvaluationResults, m: int | None = None) -> str:
    return f" [†](tried.md#{run.dataset})" if claims.far(run, e, m=m) else ""


def _table_over_m(runs: Sequence[RunResults]) -> str:
    """The paper's table 2 beside ours."""
    heading = "### IG-NORM on MNIST over m (the paper's table 2)"
    found = members(claims.sweep_over_m(runs), "paper", "ig")
    if not found:
        return join(heading, "Not yet trained.")
    every = recipes.get("mnist/ig-norm").steps
    steps = found[0][0].config.get("steps", every)
    rows = [[f"m = {run.m}{_mark(run, e, run.m)}", *_cells(run, e, run.m)] for run, e in found]
    note = f"m: points of the integral in training, right ends; {steps:,} of the recipe's {every:,} steps."
    return join(heading, grid(("", *TITLES), rows), note, _below(found))


def _below(found: Sequence[Member]) -> str:
    """What the rows of a table were measured on, and the warnings of their evaluations."""
    counts: dict[str, dict[str, None]] = {}
    for run, e in found:
        counts.setdefault(run.dataset, {})[f"{e.examples:,}"] = None
    shown = (f"{dataset} {', '.join(of)}" for dataset, of in counts.items())
    said = f"Test images: {'; '.join(shown)}."
    if most := max(float(e.summary.get("never_kept") or 0) for _, e in found):
        said += f" On at most {most:.2%} of a row's images every attack step changed the prediction: they score 1."
    return join(said, warnings(found))


def _missing(rows: Iterable[tuple[str, str]]) -> str:
    """One sentence with the rows of the paper that have no record."""
    every = set(rows)
    absent = {dataset: [APPROACHES[m] for m in APPROACHES if (dataset, m) in every] for dataset in DATASETS}
    said = [f"{dataset} {', '.join(names)}" for dataset, names in absent.items() if names]
    return f"Not yet trained, or not yet evaluated: {'; '.join(said).rstrip('.')}." if said else ""


def _settings(found: Sequence[Member]) -> str:
    """The settings of each run that are not its recipe's."""
    rows = []
    for run, _ in found:
        recipe = recipes.get(str(run.config["recipe"])).as_dict() if run.config.get("recipe") else {}
        changed = [
            f"{key} = {run.config[key]} ({value})"
            for key, value in recipe.items()
            if key not in (*BOOKKEEPING, "seed") and key in run.config and run.config[key] != value
        ]
        minutes = "–" if run.training.seconds is None else f"{run.training.seconds / 60:.1f}"
        name, steps = APPROACHES.get(run.method, run.name), run.training.steps
        cells = (run.dataset, name, run.config.get("seed"), steps, minutes, ", ".join(changed) or "none")
        rows.append([escape_markdown(str(cell)) for cell in cells])
    headings = ("Dataset", "Approach", "Seed", "Steps", "Minutes", "Settings that differ from the recipe's (its value)")
    return grid(headings, rows)
