"""Certificates of smoothed explanations: `python -m results.certificates` makes their records in results/certificates.

`python -m results.certificates mnist-ig-sum-norm-tuned-ig` makes one. `results/render.py` shows them in
docs/results.md. A case that is stopped continues, and one that is finished is not made again. The `fashion-mini`
networks are trained first (a few minutes each). Certificates at r are attacked within r, and within 3r, where they
claim nothing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure

from robattr import data, recipes, runs, training
from robattr.auditing.as_dataset import draw
from robattr.auditing.record import parse_maps
from robattr.certificates import Challenge, Examples, Smoothing, attack_certificates, certify
from robattr.certificates.challenge import CERTIFICATES
from robattr.engine.files import write_atomically
from robattr.evaluation import OutputDir
from robattr.models import zoo
from robattr.reporting.certified import COLUMNS, cells
from robattr.reporting.tables import folded, grid

TEXT = """\
What no attack within an ℓ₂ radius r can change, proved for smoothed explanations ([Certificates](certificates.md)).
*Answer certified*: share of images whose smoothed answer provably stays the label. The other columns are means over
these: pixels proved to stay inside or outside the top K, top pixels proved to stay, lower bounds of top-K overlap and
cosine. σ and r are shares of the pixel range (r = 0.1: one pixel by 25.5 of 255, or all 784 by 0.9); K is 10% of the
pixels. *Noisy* is the accuracy on n noisy copies. Brackets are 95% intervals over images.

`fashion-mini` models are small networks, `natural-additive` is nearly a sum over pixels; other names without `-tuned`
have the paper's network and recipe."""
ATTACKS = """\
Attacks: PGD through the average, on the smoothed answer, on IFIA's loss and on the cosine. Within the certified
radius nothing may break; within three times the radius nothing is claimed. The last two columns are means over the
attacked images, *bound / lowest estimate that an attack reached*; where both radii are equal, the truth lies between
them."""
HEADINGS = ("Model", "Map", "Images", "n", "r", "Accuracy", "Noisy", *(column.title for column in COLUMNS))
ATTACK_HEADINGS = (
    "Model", "Certified at r", "Attacked within", *(f"Broken: {name}" for name in CERTIFICATES), "Overlap", "Cosine",
)  # fmt: skip

RECORDS = Path(__file__).parent / "certificates"
FIGURE = Path(__file__).parent.parent / "docs" / "figures" / "certificates.png"
WORK = Path("runs") / "certificates"
SMOOTHING = Smoothing(sigma=0.25, alpha=0.001, top=0.1)  # σ and the radii are shares of the range of the data
POINTS = 10  # of ig
RADII = (0.05, 0.1, 0.25)
ATTACKED = 0.1
HOW = Challenge()


@dataclass(frozen=True)
class Case:
    """A model, the test images on which it is certified, and within how many times the radius it is attacked.

    weights   a run directory; without one a model that is not of the zoo is trained by its recipe
    """

    model: str
    map: str = "ig"
    examples: int = 100
    samples: int = 500
    attacked: tuple[int, ...] = (1, 3)
    weights: str = ""

    @property
    def name(self) -> str:
        return f"{self.model.replace('/', '-')}-{self.map}"

    @property
    def dataset(self) -> str:
        return self.model.split("/")[0]


CASES = (
    Case("fashion-mini/natural"),
    Case("fashion-mini/ig-sum-norm"),
    Case("mnist/natural", attacked=(1,)),
    Case("mnist/madry", attacked=(1,), weights="results/in_progress/mnist-madry"),
    Case("mnist/ig-sum-norm-tuned"),
    Case("fashion-mnist/natural", weights="results/in_progress/fashion-mnist-natural"),
    Case("fashion-mnist/madry", attacked=(1,), weights="results/in_progress/fashion-mnist-madry"),
    Case("fashion-mnist/ig-norm", weights="results/in_progress/fashion-mnist-ig-norm"),
    Case("fashion-mnist/ig-sum-norm", attacked=(1,)),
    Case("fashion-mnist/madry-tuned"),
    Case("fashion-mnist/ig-sum-norm-tuned"),
    Case("fashion-mnist/natural-additive"),
    Case("gtsrb/natural", attacked=(), weights="results/in_progress/gtsrb-natural"),
    Case("gtsrb/madry", attacked=(1,)),
    Case("gtsrb/ig-norm", attacked=(1,)),
    Case("gtsrb/ig-sum-norm", attacked=(1,)),
    Case("gtsrb/madry-tuned", attacked=(1,)),
    Case("gtsrb/ig-norm-tuned", attacked=(1,)),
    Case("gtsrb/ig-sum-norm-tuned", attacked=(1,)),
    Case("flower/ig-sum-norm-tuned", attacked=(1,)),
)


def make(case: Case) -> dict[str, Any]:
    """The record of a case: the summary of its certificates, and of the attacks on them."""
    weights: str | Path = case.weights or case.model
    if weights not in zoo.entries() and not case.weights:
        weights = WORK / case.name / "run"
        training.train(recipes.get(case.model), weights)
    model, images = runs.load_model(weights, device="auto").eval(), data.load(case.dataset)
    (map,) = parse_maps(case.map, points=POINTS, bounds=images.bounds)
    unit = images.bounds[1] - images.bounds[0]
    smoothing = replace(SMOOTHING, sigma=SMOOTHING.sigma * unit, samples=case.samples)
    examples = Examples(model, map, *draw(images, case.examples), smoothing, images.bounds)
    place = OutputDir(WORK / case.name)
    about = {"run": case.model, "dataset": case.dataset, "command": "python -m results.certificates"}

    def progress(done: int, total: int) -> None:
        print(f"\r{case.name}  {done:,} of {total:,} noisy copies", end="", file=sys.stderr, flush=True)

    found = certify(examples, [r * unit for r in RADII], out=place, metadata=about, progress=progress)
    claim = ATTACKED * unit
    attacks = [
        attack_certificates(examples, found, claim, HOW.within(times * claim), out=place, progress=progress)
        for times in case.attacked
    ]
    return {**found.summary, "attacks": attacks}


def section(records: Sequence[Mapping[str, Any]]) -> str:
    """The section of docs/results.md."""
    if not records:
        return ""
    s = records[0]["settings"]
    machines = dict.fromkeys(f"{made['device']}, torch {made['versions']['torch']}" for made in records)
    settings = (
        f"σ = {SMOOTHING.sigma:g} of the range, {1 - s['alpha']:.4g} confidence for each image; random test images; ig "
        f"maps of {POINTS} points; on {' and '.join(machines)}."
    )
    if absent := sorted(set(zoo.entries()) - {made["run"] for made in records}):
        settings += f" Of the zoo, not certified yet: {', '.join(f'`{name}`' for name in absent)}."
    certified = [_certified(made, row) for made in records for row in made["radii"]]
    attacked = [_attacked(made, found) for made in records for found in made["attacks"]]
    bounds = folded("Certificates of every model", f"{settings}\n\n{grid(HEADINGS, certified)}")
    attacks = ATTACKS
    if spared := [f"`{made['run']}`" for made in records if not made["attacks"]]:
        attacks += f" Not attacked yet: {', '.join(spared)}."
    picture = f"![Bounds beside what attacks reached](figures/{FIGURE.name})"
    return "\n\n".join(["## Certificates", TEXT, bounds, attacks, grid(ATTACK_HEADINGS, attacked), picture])


def read(folder: Path = RECORDS) -> list[dict[str, Any]]:
    """The records, in the order of the cases."""
    files = [folder / f"{case.name}.json" for case in CASES]
    return [json.loads(file.read_text(encoding="utf-8")) for file in files if file.is_file()]


def _certified(made: Mapping[str, Any], row: Mapping[str, Any]) -> list[str]:
    accuracy = [f"{made['columns'][key]['value']:.1%}" for key in ("nat_acc", "noisy_acc")]
    size = (made["map"], f"{made['examples']}", f"{made['settings']['samples']}", _in_ranges(made, row["radius"]))
    return [f"`{made['run']}`", *size, *accuracy, *cells(row)]


def _attacked(made: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """The certificates at the claimed radius of all attacked images, beside what the attacks reached."""
    k, broken = made["k"], found["broken"]
    bound = {key: fmean(_bounds(made, found, key)) for key in ("overlap", "cosine")}
    return [
        f"`{made['run']}`",
        *(_in_ranges(made, found["settings"][key]) for key in ("claim", "radius")),
        *(f"{broken[name]} of {found['examples']}" for name in CERTIFICATES),
        f"{bound['overlap'] / k:.1%} / {found['worst']['overlap'] / k:.1%}",
        f"{bound['cosine']:.3f} / {found['worst']['cosine']:.3f}",
    ]


def _bounds(made: Mapping[str, Any], found: Mapping[str, Any], key: str) -> list[float]:
    """The certificates of each image at the radius that was attacked."""
    at = [row["radius"] for row in made["radii"]].index(found["settings"]["claim"])
    return [each[at] for each in made["per_example"][key]]


def _in_ranges(made: Mapping[str, Any], radius: float) -> str:
    low, high = made["bounds"]
    return f"{radius / (high - low):g}"


def draw_attacks(records: Sequence[Mapping[str, Any]]) -> None:
    """Each attacked image as a point: its bound, and the lowest estimate that an attack within the radius reached."""
    figure = Figure(figsize=(7.6, 3.9), layout="constrained")
    datasets = list(dict.fromkeys(made["dataset"] for made in records))
    for axis, key in zip(figure.subplots(1, 2), ("overlap", "cosine"), strict=True):
        for made in records:
            color = f"C{datasets.index(made['dataset'])}"
            for found in (each for each in made["attacks"] if each["settings"]["radius"] == each["settings"]["claim"]):
                unit = made["k"] if key == "overlap" else 1
                x, y = ([v / unit for v in each] for each in (_bounds(made, found, key), found["per_example"][key]))
                axis.scatter(x, y, s=9, color=color, alpha=0.5, linewidths=0, label=made["dataset"])
        low = min(axis.get_xlim()[0], axis.get_ylim()[0])
        axis.plot([low, 1], [low, 1], color="0.4", linewidth=1)
        axis.fill_between([low, 1], [low, low], [low, 1], color="0.92", linewidth=0)
        axis.text(0.97, 0.04, "here a bound would be broken", transform=axis.transAxes, ha="right", color="0.4")
        axis.set(
            xlabel=f"certified {key}",
            ylabel=f"lowest {key} that an attack reached",
            xlim=(low, 1),
            ylim=(low, 1.02 - 0.02 * low),
        )
        axis.spines[["top", "right"]].set_visible(False)
    first = dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
    figure.legend(first.values(), first.keys(), loc="outside upper center", ncols=5, frameon=False, markerscale=2)
    figure.savefig(FIGURE, dpi=150)


def main() -> None:
    RECORDS.mkdir(exist_ok=True)
    for case in (case for case in CASES if case.name in (sys.argv[1:] or {each.name for each in CASES})):
        target = RECORDS / f"{case.name}.json"
        if not target.is_file():
            write_atomically(target, f"{json.dumps(make(case))}\n".encode())
            print(f"wrote {target}")
    draw_attacks(read())


if __name__ == "__main__":
    main()
