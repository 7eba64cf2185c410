"""What each table and figure of the paper is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from robattr import recipes
from robattr.data import info
from robattr.errors import InvalidInput, nearest
from robattr.evaluation.protocol import named, paper
from robattr.reporting.published import DATASETS
from robattr.reproduce.job import Job
from robattr.training.config import TrainConfig

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
    if kind not in ("paper", "tuned"):
        raise InvalidInput(f"expected recipes paper or tuned, got {kind!r}")
    target = TARGETS[name]
    made: list[Job] = []
    for dataset in datasets or target.datasets:
        test = info(dataset).sizes[2]
        named(protocol, paper(dataset))  # an unknown name is refused before anything is trained
        place = out / dataset
        for method in target.methods:
            suffix = "-tuned" if kind == "tuned" and dataset != "fashion-mini" else ""
            run = replace(recipes.get(f"{dataset}/{method}{suffix}"), seed=seed)
            if first := recipes.before(run):
                start = Job(first, place / _folder(first), target.map, 0, protocol)
                run = replace(run, warm_start=start.path.as_posix())
                made += [] if any(job.path == start.path for job in made) else [start]
            for m in target.points or (None,):
                varied = run if m is None else replace(run, m=m)
                path = place / _folder(varied, several=m is not None)
                made.append(Job(varied, path, target.map, min(examples or test, test), protocol))
    return made


def _folder(run: TrainConfig, *, several: bool = False) -> str:
    return run.method + (f"-m{run.m}" if several else "") + (f"-seed{run.seed}" if run.seed else "")
