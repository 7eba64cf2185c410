"""Render docs/results.md and its figures from the records here: `make results`, or `python -m results.render`.

Part one has the paper's networks, part two the tuned ones; certificates and the provenance of every record follow. The
page is never edited by hand, and every number is from a record. What was tried on the way is docs/tried.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from results import certificates, intervals, paper_networks, tuned_networks
from results.claims import is_papers
from results.provenance import provenance
from results.sections import draw, join
from robattr.engine.files import write_atomically
from robattr.reporting.published import DATASETS
from robattr.reporting.run_results import RunResults, read_runs

RESULTS = Path(__file__).parent
PAGE = RESULTS.parent / "docs" / "results.md"
PREFACE = """\
For each correctly classified test image an attack (IFIA) searches, within ε, for the image whose attribution map
differs most while the prediction stays. *TopK Inter.* is the share of the k most important pixels that remain, *Rank
Corr.* Kendall's rank correlation of the two maps. *Nat Acc.* and *Adv Acc.* are accuracies on clean images and under
PGD. `paper` is the reference's evaluation, `strict` the worst case over many more attacks. Brackets are 95% intervals
over images. [Evaluation](evaluation.md) says more, [What was tried](tried.md) how the settings were found."""


def page(runs: Sequence[RunResults], *, bounds: str = "", folder: Path = PAGE.parent) -> str:
    """The page as Markdown, with the sections of `bounds`; links and figures are relative to `folder`."""
    runs = sorted(runs, key=lambda run: [*DATASETS, run.dataset].index(run.dataset))
    parts = (
        "# Results",
        "Rendered by `make results` from the records; not edited by hand.",
        PREFACE,
        paper_networks.section([run for run in runs if is_papers(run)], folder),
        tuned_networks.section(runs, folder),
        bounds,
        provenance(runs, folder),
    )
    return join(*parts) + "\n"


def rendered() -> str:
    """The page of the committed records."""
    bounds = join(certificates.section(certificates.read()), intervals.section(intervals.read()))
    return page(read_runs([RESULTS]), bounds=bounds)


def main() -> None:
    runs = read_runs([RESULTS])
    for part in ("paper", "tuned"):
        draw(part, [run for run in runs if is_papers(run) == (part == "paper")], PAGE.parent)
    write_atomically(PAGE, rendered().encode())
    print(f"wrote {PAGE.relative_to(RESULTS.parent)}")


if __name__ == "__main__":
    main()
