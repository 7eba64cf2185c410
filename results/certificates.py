"""Certificates of smoothed explanations: `python -m results.certificates` makes their records in results/certificates.

`results/render.py` shows them in docs/results.md. Each case is 100 test images; a case that is stopped continues, and
one that is finished is not made again. The small networks are trained first (a few minutes each); certificates at r
are then attacked within r, and within 3r, where they claim nothing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from robattr import data, recipes, runs, training
from robattr.attacks import integrated_gradients
from robattr.auditing.as_dataset import draw
from robattr.certificates import Challenge, Examples, Smoothing, attack_certificates, certify
from robattr.certificates.challenge import CERTIFICATES
from robattr.engine.files import write_atomically
from robattr.evaluation import OutputDir
from robattr.reporting.certified import COLUMNS
from robattr.reporting.tables import grid

TEXT = """\
What no attack within an ℓ₂ radius r can move, proved for smoothed explanations ([Certificates](certificates.md)):
*Answer certified* is the share of images whose smoothed answer is proved to stay the label; the other columns are
means over these: pixels proved to stay among the top K or outside, top pixels proved to stay, and lower bounds of the
top-K overlap and of the cosine. r = 0.1 is one pixel by 25.5 grey levels of 255, or all 784 by 0.9. Brackets: 95%
intervals over images. *Noisy* is the accuracy on noisy copies. `fashion-mini` models are small networks trained by
their recipes; the others are those of the zoo."""
ATTACKS = """\
Attacks on the certificates of the small networks: PGD through the average on the smoothed answer, on IFIA's loss and
on the cosine. Within the certified radius nothing may break. Attacked within three times the radius, where nothing is
claimed, a certificate may or may not hold: between the bound and what the attacks reach lies what is not known. The
last two columns are means over all attacked images, *bound / lowest estimate that an attack reached*."""
HEADINGS = ("Model", "r", "Accuracy", "Noisy", *(column.title for column in COLUMNS))
ATTACK_HEADINGS = (
    "Model", "Certified at r", "Attacked within", *(f"Broken: {name}" for name in CERTIFICATES), "Overlap", "Cosine",
)  # fmt: skip

RECORDS = Path(__file__).parent / "certificates"
WORK = Path("runs") / "certificates"
POINTS, EXAMPLES = 5, 100
SMOOTHING = Smoothing(sigma=0.25, samples=500, alpha=0.001, top=0.1)
RADII = (0.05, 0.1, 0.25)
ATTACKED = 0.1
HOW = Challenge(steps=10, draws=16)


@dataclass(frozen=True)
class Case:
    """A model and its dataset; `trained` names the recipe of one that is trained here, and attacked."""

    model: str
    dataset: str
    trained: bool = False

    @property
    def name(self) -> str:
        return self.model.replace("/", "-")


CASES = (
    Case("fashion-mini/natural", "fashion-mini", trained=True),
    Case("fashion-mini/ig-sum-norm", "fashion-mini", trained=True),
    Case("mnist/ig-sum-norm-tuned", "mnist"),
    Case("fashion-mnist/madry-tuned", "fashion-mnist"),
    Case("fashion-mnist/ig-sum-norm-tuned", "fashion-mnist"),
)


def make(case: Case) -> dict[str, Any]:
    """The record of a case: the summary of its certificates, and of the attacks on them."""
    folder = WORK / case.name
    if case.trained:
        training.train(recipes.get(case.model), folder / "run")
    model = runs.load_model(folder / "run" if case.trained else case.model).eval()
    x, y, ids = draw(data.load(case.dataset), EXAMPLES)
    examples = Examples(model, integrated_gradients(POINTS), x, y, ids, SMOOTHING)
    place = OutputDir(folder)
    about = {"run": case.model, "dataset": case.dataset, "command": "python -m results.certificates"}

    def progress(done: int, total: int) -> None:
        print(f"\r{case.name}  {done:,} of {total:,} noisy copies", end="", file=sys.stderr, flush=True)

    found = certify(examples, RADII, out=place, metadata=about, progress=progress)
    attacks = [
        attack_certificates(examples, found, ATTACKED, HOW.within(times * ATTACKED), out=place, progress=progress)
        for times in ((1, 3) if case.trained else ())
    ]
    return {**found.summary, "attacks": attacks}


def section(records: Sequence[Mapping[str, Any]]) -> str:
    """The section of docs/results.md."""
    if not records:
        return ""
    s, first = records[0]["settings"], records[0]
    settings = (
        f"{first['map']} maps of {s['points']} points, σ = {s['sigma']:g}, {s['samples']:,} noisy copies, "
        f"{1 - s['alpha']:.4g} confidence for each image, K = {first['k']}; {first['examples']} random test images; "
        f"on {first['device']}, torch {first['versions']['torch']}."
    )
    certified = [_certified(made, row) for made in records for row in made["radii"]]
    attacked = [_attacked(made, found) for made in records for found in made["attacks"]]
    parts = ["## Certificates", TEXT, settings, grid(HEADINGS, certified), ATTACKS, grid(ATTACK_HEADINGS, attacked)]
    return "\n\n".join(parts)


def read(folder: Path = RECORDS) -> list[dict[str, Any]]:
    """The records, in the order of the cases."""
    files = [folder / f"{case.name}-ig.json" for case in CASES]
    return [json.loads(file.read_text(encoding="utf-8")) for file in files if file.is_file()]


def _certified(made: Mapping[str, Any], row: Mapping[str, Any]) -> list[str]:
    accuracy = [f"{made['columns'][key]['value']:.1%}" for key in ("nat_acc", "noisy_acc")]
    cells = [f"{c.show(row[c.key]['value'])} {c.show_interval(row[c.key]['low'], row[c.key]['high'])}" for c in COLUMNS]
    return [f"`{made['run']}`", f"{row['radius']:g}", *accuracy, *(cell.strip() for cell in cells)]


def _attacked(made: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """The certificates at the claimed radius of all attacked images, beside what the attacks reached."""
    claim, k, broken = found["settings"]["claim"], made["k"], found["broken"]
    at = [row["radius"] for row in made["radii"]].index(claim)
    bound = {key: fmean(each[at] for each in made["per_example"][key]) for key in ("overlap", "cosine")}
    return [
        f"`{made['run']}`",
        f"{claim:g}",
        f"{found['settings']['radius']:g}",
        *(f"{broken[name]} of {found['examples']}" for name in CERTIFICATES),
        f"{bound['overlap'] / k:.1%} / {found['worst']['overlap'] / k:.1%}",
        f"{bound['cosine']:.3f} / {found['worst']['cosine']:.3f}",
    ]


def main() -> None:
    RECORDS.mkdir(exist_ok=True)
    for case in CASES:
        target = RECORDS / f"{case.name}-ig.json"
        if not target.is_file():
            write_atomically(target, f"{json.dumps(make(case))}\n".encode())
            print(f"wrote {target}")


if __name__ == "__main__":
    main()
