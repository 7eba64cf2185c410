"""Sections that both parts of docs/results.md have: the strict protocol, the end of training, the figures."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from results.claims import ATTRIBUTION, without_sweep
from robattr.evaluation.protocol import STRICT_VERSION
from robattr.evaluation.scores import PROBED
from robattr.metrics.columns import COLUMN
from robattr.reporting.figures import write_figures
from robattr.reporting.published import DATASETS
from robattr.reporting.record import APPROACHES
from robattr.reporting.run_results import EvaluationResults, RunResults
from robattr.reporting.tables import escape_markdown, folded, grid, make_cell

Member = tuple[RunResults, EvaluationResults]

ATTACKED = ("adv_acc", *ATTRIBUTION, "noise_topk", "noise_kendall")  # columns beside the noise control
STRICT = """\
The worst case of every attack, on fewer images. Noise is the control, the worst of ten random sign perturbations of
size ε: an attack must do better. Failures are images on which every step changed the prediction; they have no score."""
EARLIER = f"""\
`strict` without a number is its first version; earlier versions are weaker attacks than strict v{STRICT_VERSION}, which
`robattr evaluate` runs."""
END = """\
The paper reports that IG-NORM on MNIST ends with ℓ at about 1 and ‖IG‖₁ at 10 to 20. Its numbers may be sums over a
batch, which leaves the ratio unchanged. Below: means per image over the last log lines, ‖IG‖₁ without λ or β, at the x'
that training found."""
FIGURES = {
    "figure1": "Maps before and after the attack",
    "figure2": "Scores over the images",
    "eps": "Scores as ε grows",
    "iterations": "Scores as the attack goes on",
}
DRAWN = f"""\
As ε grows: the first {PROBED} attacked images. As the attack goes on: each score's lowest so far; the tables have the
scores of one iterate, that of the lowest rank correlation, so their top-k may be higher."""
LEFT_OUT = {("mnist", "eps")}  # its curves began at the image itself, where black pixels do not move


def members(runs: Iterable[RunResults], protocol: str, map_name: str) -> list[Member]:
    """The evaluations by any version of a protocol with one kind of map."""
    wanted = (protocol, map_name)
    every = ((run, e) for run in runs for e in run.evaluations)
    return [(run, e) for run, e in every if (e.summary.get("protocol"), e.summary.get("map")) == wanted]


def strict_table(runs: Sequence[RunResults]) -> str:
    """The rows under the strict protocol, with the noise control; "" where there are none."""
    found = [member for name in ("ig", "sg") for member in members(runs, "strict", name)]
    if not found:
        return ""
    rows = []
    for run, e in found:
        scored = [r for r in e.records if r.get("kept") is not None]
        failed = sum(not r["kept"] for r in scored)
        cells = (run.dataset, run.name, e.protocol, str(e.summary.get("map")), f"{len(e.records):,}")
        shown = [str(make_cell(e, COLUMN[key])) for key in ATTACKED]
        rows.append([*map(escape_markdown, cells), *shown, f"{failed} of {len(scored):,}"])
    headings = (
        "Dataset",
        "Approach",
        "Protocol",
        "Map",
        "Images",
        *(COLUMN[key].title for key in ATTACKED),
        "Failures",
    )
    earlier = EARLIER if any(e.outdated for _, e in found) else ""
    return join(STRICT, earlier, grid(headings, rows), warnings(found))


def warnings(found: Iterable[Member]) -> str:
    """A list of what the evaluations say against their own validity; "" where they say nothing."""
    said = []
    for run, e in found:
        place = f"{run.dataset}, {e.protocol}, {e.summary.get('map')} maps, {run.name}"
        said += [f"- {escape_markdown(f'{place}: {alarm}')}" for alarm in e.summary.get("alarms") or ()]
    return "\n".join(["Warnings of the evaluations:", "", *said]) if said else ""


def doubts(found: Iterable[Member]) -> str:
    """One sentence with what is to be doubted in evaluations by `strict`, and in which; "" without a doubt."""
    said: dict[str, dict[str, list[str]]] = {}
    for run, e in found:
        for doubt in filter(None, (*run.flags(e), e.outdated)):
            said.setdefault(doubt, {}).setdefault(run.dataset, []).append(APPROACHES.get(run.method, run.name))
    rows = {doubt: "; ".join(f"{d}: {', '.join(names)}" for d, names in of.items()) for doubt, of in said.items()}
    listed = "; ".join(escape_markdown(f"{doubt} ({where})") for doubt, where in rows.items())
    return f"‡ Doubts about `strict`: {listed}." if listed else ""


def end_of_training(runs: Sequence[RunResults]) -> str:
    """ℓ and ‖IG‖₁ at the end of training, for the runs with a regulariser of IG; folded."""
    rows = []
    for run in runs:
        end = run.training
        if end.loss and end.ig is not None:
            validated = "–" if end.val_accuracy is None else f"{100 * end.val_accuracy:.2f}%"
            weight = f"{float(run.config.get('weight', 1)):g}"
            numbers = (f"{end.loss:.3g}", f"{end.ig:.3g}", f"{end.ig / end.loss:.3g}", validated, str(end.lines))
            rows.append([run.dataset, escape_markdown(run.name), weight, *numbers])
    headings = ("Dataset", "Approach", "λ or β", "ℓ", "‖IG‖₁", "‖IG‖₁ / ℓ", "Validation accuracy", "Log lines")
    return folded("ℓ and ‖IG‖₁ at the end of training", join(END, grid(headings, rows))) if rows else ""


def figures(part: str, folder: Path) -> str:
    """The figures that `draw` has written to `folder`/figures, folded by dataset."""
    parts = []
    for dataset in DATASETS:
        names = {f"figures/{part}-{name}-{dataset}.png": text for name, text in FIGURES.items()}
        found = [f"![{text}, {dataset}]({file})" for file, text in names.items() if (folder / file).is_file()]
        parts += [folded(f"Figures of {dataset}", join(*found))] if found else []
    return join(DRAWN, *parts) if parts else ""


def draw(part: str, runs: Sequence[RunResults], folder: Path) -> None:
    """Write the figures of a part to `folder`/figures, from the evaluations by `paper` with IG maps."""
    chosen = [replace(run, evaluations=(e,)) for run, e in members(without_sweep(runs), "paper", "ig")]
    for dataset in DATASETS:
        if of := [run for run in chosen if run.dataset == dataset]:
            with TemporaryDirectory() as drawn:
                for file in write_figures(of, drawn, formats=("png",)):
                    if file.stem in FIGURES and (dataset, file.stem) not in LEFT_OUT:
                        shutil.copyfile(file, folder / "figures" / f"{part}-{file.stem}-{dataset}.png")


def join(*parts: str) -> str:
    """The parts that are not empty, as paragraphs."""
    return "\n\n".join(part.strip() for part in parts if part)
