"""What each table and figure of the paper is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from robattr import recipes
from robattr.data import card
from robattr.errors import InvalidInput, nearest
from robattr.evaluate.protocol import named, paper
from robattr.report.published import DATASETS
from robattr.reproduce.job import Job

EVERY = recipes.METHODS


@dataclass(frozen=True)
class Target:
    """The methods compared, the map attacked, the datasets; `points` varies m of the training integral."""

    title: str
    methods: tuple[str, ...]
    map: str = "ig"
    datasets: tuple[str, ...] = DATASETS
    points: tuple[int, ...] = ()


TARGETS = {
    "table1": Target("Attribution robustness of four training methods", EVERY),
    "table2": Target("IG-NORM with different m", ("ig-norm",), datasets=("mnist",), points=tuple(range(10, 101, 10))),
    "table3": Target("Robustness of simple-gradient maps", ("natural", "madry", "ig-sum-norm"), map="sg"),
    "figure1": Target("Attribution maps before and after the attack", ("natural", "ig-norm", "ig-sum-norm")),
    "figure2": Target("How attribution robustness spreads over examples", EVERY),
}


def jobs(
    name: str,
    out: Path,
    *,
    datasets: Sequence[str] = (),
    kind: str = "paper",
    examples: int | None = None,
    seed: int = 0,
    protocol: str = "paper",
) -> list[Job]:
    """The runs that `name` needs, in order. Runs lie in OUT/DATASET/METHOD, so that tables and figures share them."""
    if name not in TARGETS:
        raise InvalidInput(f"unknown target {name!r}; {nearest(name, TARGETS)}")
    if kind not in ("paper", "fast"):
        raise InvalidInput(f"expected recipes paper or fast, got {kind!r}")
    target = TARGETS[name]
    made = []
    for dataset in datasets or target.datasets:
        test = card(dataset).sizes[2]
        named(protocol, paper(dataset))  # an unknown name is refused before anything is trained
        for method in target.methods:
            # The embedded set's recipes are as fast as they can be already.
            quick = kind == "fast" and dataset != "fashion-mini"
            run = replace(recipes.get(f"{dataset}/{method}{'-fast' if quick else ''}"), seed=seed)
            for m in target.points or (None,):
                varied = run if m is None else replace(run, m=m)
                folder = method + ("" if m is None else f"-m{m}") + (f"-seed{seed}" if seed else "")
                job = Job(varied, out / dataset / folder, target.map, min(examples or test, test), protocol)
                made.append(job)
    return made
