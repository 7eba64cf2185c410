"""The rows of the leaderboard: every method on the paper's networks, its settings searched on validation images.

    python -m results.methods DATASET [METHOD…] --minutes 10 --out FOLDER [--workers N] [--dry-run]

A row is found in four stages. Each begins where it was stopped, when the same command is given again:

    probe     a few steps measure the seconds of a step, compiled if the training is; half of the minutes, divided by it
              and by the number of candidates, is the number of steps of each candidate
    search    every candidate is trained with a whole schedule of so many steps, and measured on validation images: its
              accuracy on all of them, and its maps on the first 100 under the paper's attack of 20 iterations
    training  the chosen settings anew, with as many steps as the minutes that are left allow
    record    `strict` on the first test images, written to FOLDER/records with what was searched

So every method has the same minutes, not the same steps. What differs between methods is the objective (in the row
`madry-softplus`, the network: softplus units instead of ReLUs) and the values tried, `TRIED`. The rest is that of the
dataset's tuned Madry recipe with ε of the paper, its schedule stretched to the steps: batch, optimiser, attack steps,
ramp of ε, and the same ramp of λ. IG-NORM, IG-SUM-NORM and Sarkar et al. have as many Radau nodes as the trainings in
docs/results.md, and the first two their bf16; the other rows are trained in tf32.

The rule of the search, stated in docs/leaderboard_rules.md: of the candidates whose natural validation accuracy is at
most 2 points below the paper's IG-SUM-NORM (below the most accurate candidate, where none reaches that), the one with
the largest sum of top-k intersection and rank correlation.
"""

from __future__ import annotations

import argparse
import signal
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from shutil import rmtree
from statistics import median
from typing import Any

from robattr import recipes
from robattr._progress import say
from robattr.engine.files import read_object, write_json
from robattr.engine.processes import choose_device
from robattr.errors import Diverged, InvalidInput, RobattrError, nearest
from robattr.models.softplus import BETAS
from robattr.recipes import field
from robattr.reporting import read_runs, write_records
from robattr.reporting.published import published
from robattr.reporting.record import read_log
from robattr.reporting.training_log import summarise
from robattr.reproduce import Job, execute, run_parallel, tasks
from robattr.runs import measure_on_validation
from robattr.training import settings
from robattr.training.axes import name_of
from robattr.training.config import TrainConfig
from robattr.training.loop import train
from robattr.training.run_directory import RunDirectory
from robattr.training.sweep import Result, Scores, sweep

DATASETS = ("fashion-mnist", "gtsrb", "fashion-mini")  # the last one to try the program
FIELD = {method.__name__.replace("_", "-"): method for method in field.METHODS}
TRIED: dict[str, tuple[str, tuple[float, ...]]] = {  # the setting, and the factors of the recipe's value
    "natural": ("lr", (0.1, 0.3, 1.0, 3.0)),
    "madry": ("eps", (0.5, 0.75, 1.0, 1.25)),
    **dict.fromkeys(
        ("trades", "ig-norm", "ig-sum-norm", "art", "igr", "aat", "sarkar"), ("weight", (0.1, 0.3, 1.0, 3.0))
    ),
    # No source has λ for these networks: on trained ones the recipes' penalties are between 1e-5 and 1 times the loss.
    **dict.fromkeys(("ssr", "r2et"), ("weight", (0.1, 1.0, 10.0, 100.0))),
    **dict.fromkeys(("lga", "curvature"), ("weight", (1.0, 10.0, 100.0, 1000.0))),
    "madry-softplus": ("model", BETAS),  # β itself
}
NODES: dict[str, dict[str, Any]] = {
    "fashion-mnist": {"m": 10, "m_attack": 3, "rule": "radau"},
    "gtsrb": {"m": 5, "m_attack": 2, "rule": "radau"},
}
IDLE = {("gtsrb", "art")}  # its network standardises an image, which is then orthogonal to its gradient: no direction
SEARCHED = 0.5  # share of the minutes
IMAGES, ITERATIONS = 100, 20  # of the attack on validation images
MARGIN = 0.02  # of natural accuracy
PROBE = {"cuda": 50, "cpu": 2}  # steps that are timed, after as many


@dataclass(frozen=True)
class Row:
    """A method on a dataset, and the values of the setting `key` that are tried."""

    name: str
    run: TrainConfig
    key: str
    values: tuple[Any, ...]

    def on(self, kind: str) -> Row:
        """Compiled in every stage, or in none: the probe times what is trained."""
        long = replace(self.run, steps=10**6)
        return replace(self, run=replace(self.run, compile="always" if long.compiles(kind) else "never"))

    def fitted(self, steps: int, point: Mapping[str, Any]) -> TrainConfig:
        """The run with so many steps, at a point of the search: ramps, warm-up and average keep their shares of it."""
        run, share = settings.change(self.run, point), steps / self.run.steps
        start, end = (round(share * at) for at in run.eps_ramp)
        ramp = (start, max(end, start + 1))
        return replace(
            run, steps=steps, warmup=round(share * run.warmup), eps_ramp=ramp, weight_ramp=ramp,
            average=max(0.0, 1 - (1 - run.average) / share) if run.average else 0.0,
            validate_every=0, log_every=max(1, steps // 50), checkpoint_every=max(1, steps // 10),
        )  # fmt: skip


def row_of(dataset: str, name: str) -> Row:
    """The settings of a method that are the same in every trial, and the values of the one that is searched."""
    madry, second_order = recipes.get(f"{dataset}/madry"), name in ("ig-norm", "ig-sum-norm")
    run = recipes.get(f"{dataset}/madry-tuned") if dataset in NODES else madry
    run = replace(run, model="", full=False, eps=madry.eps, step_size=run.step_size * madry.eps / run.eps)
    if name in FIELD:
        run = FIELD[name](run)
    else:
        run = replace(run, method=name, weight=recipes.get(f"{dataset}/{name}").weight)  # type: ignore[arg-type]
    if dataset in NODES:
        run = replace(run, precision="bf16" if second_order else "tf32")  # as in docs/results.md
        run = replace(run, **NODES[dataset]) if second_order or name == "sarkar" else run
    key, factors = TRIED[name]
    if key == "model":
        values: list[Any] = [run.model.replace("softplus10", f"softplus{beta}") for beta in factors]
    else:
        values = [float(f"{factor * getattr(run, key):.6g}") for factor in factors]
    return Row(name, replace(run, recipe=f"{dataset}/{name}"), key, tuple(values))


def chosen(found: Sequence[Result], dataset: str) -> Result:
    """The result of the search: of those that are accurate enough, the one with the most robust maps."""
    finished = [result for result in found if result.scores]
    if not finished:
        raise Diverged("every candidate diverged: no row")
    paper = published(dataset, "ig-sum-norm")
    best = max(result.scores["nat_acc"].value for result in finished)
    least = (min(best, paper["nat_acc"]) if paper else best) - MARGIN
    accurate = [result for result in finished if result.scores["nat_acc"].value >= least]
    return max(accurate, key=lambda result: result.scores["topk"].value + result.scores["kendall"].value)


def search(row: Row, here: Path, *, minutes: float, jobs: int, device: str, data_dir: Path | None) -> dict[str, Any]:
    """What `search.json` of the row's run says; searched in the folder `here` where the file does not exist."""
    file = RunDirectory(here.parents[1] / row.name).search
    for known in (file, here / "probe.json"):
        if known.is_file() and (before := read_object(known)["asked"]) != minutes:
            raise InvalidInput(f"{known} is of --minutes {before:g}, got {minutes:g}: choose another --out")
    if file.is_file():
        return read_object(file)
    probed = probe(row, here, minutes=minutes, device=device, data_dir=data_dir)
    steps = max(1, int(60 * SEARCHED * minutes / len(row.values) / probed["step"]))
    measure = measure_on_validation(IMAGES, iterations=ITERATIONS, device=device, data_dir=data_dir)

    def timed(path: Path) -> Scores:
        began = time.perf_counter()
        scores = measure(path)
        write_json(path / "measured.json", {"seconds": time.perf_counter() - began})
        return scores

    base, over = row.fitted(steps, {}), {row.key: row.values}
    by = f"{IMAGES} images, {ITERATIONS} iterations"
    found, stopped_by = sweep(base, over, here, measure=timed, by=by, device=device, data_dir=data_dir)
    if stopped_by is not None:
        raise KeyboardInterrupt
    best = chosen(found, base.dataset)
    paths = [here / name_of(result.point) for result in found]
    measured = [read_object(f)["seconds"] for path in paths if (f := path / "measured.json").is_file()]
    seconds = probed["seconds"] + sum(map(_trained, paths)) + sum(measured)
    each, setup = _pace(here / name_of(best.point), steps, probed["step"])
    left = int((60 * minutes - seconds - setup) / each)
    if left < steps:
        say(f"{row.name}: the search took {seconds / 60:.1f} of {minutes:g} minutes; trained as long as a candidate")
    decided = {
        "asked": minutes,
        "minutes": round(seconds / 60, 2),
        "jobs": jobs,
        "chosen": dict(best.point),
        "tried": [{**r.point, **{c: round(e.value, 4) for c, e in r.scores.items()}} for r in found],
        "steps": steps,
        "final_steps": max(steps, left),
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, decided)
    for path in paths:  # their scores are all that is needed
        rmtree(path / "checkpoints", ignore_errors=True)
        RunDirectory(path).weights.unlink(missing_ok=True)
    return decided


def probe(row: Row, here: Path, *, minutes: float, device: str, data_dir: Path | None) -> dict[str, Any]:
    """The seconds of a step, and of the whole probe; measured once."""
    file, steps = here / "probe.json", PROBE[choose_device(device).type]
    if not file.is_file():
        rmtree(here / "probe", ignore_errors=True)  # resumed, it would time its warm-up
        run = replace(row.fitted(2 * steps, {row.key: row.values[0]}), log_every=steps, checkpoint_every=2 * steps)
        if not train(run, here / "probe", device=device, data_dir=data_dir).finished:
            raise KeyboardInterrupt
        write_json(
            file, {"asked": minutes, "step": 1 / _rates(here / "probe")[-1], "seconds": _trained(here / "probe")}
        )
    rmtree(here / "probe", ignore_errors=True)
    return read_object(file)


def _pace(path: Path, steps: int, probed: float) -> tuple[float, float]:
    """The seconds of a step of a training without its first lines, and of what came before: compilation, warm-up."""
    rates, seconds = _rates(path), _trained(path)
    each = 1 / median(rates[len(rates) // 5 :]) if len(rates) > 4 else max(seconds / steps, probed)
    return each, max(0.0, seconds - steps * each)


def _rates(path: Path) -> list[float]:
    """Steps per second, by the lines of the log."""
    return [line["rate"] for line in read_log(path / "metrics.jsonl") if "rate" in line]


def _trained(path: Path) -> float:
    """The seconds of the training in a run directory."""
    return summarise(read_log(path / "metrics.jsonl")).seconds or 0.0


def fill(
    row: Row, out: Path, *, minutes: float, jobs: int, examples: int, device: str, data_dir: Path | None
) -> int | None:
    """Do what is left of a row; returns the signal that stopped it."""
    folder, row = out / row.run.dataset, row.on(choose_device(device).type)
    try:
        decided = search(
            row, folder / "search" / row.name, minutes=minutes, jobs=jobs, device=device, data_dir=data_dir
        )
        job = Job(row.fitted(decided["final_steps"], decided["chosen"]), folder / row.name, "ig", examples, "strict")
        if stopped := execute(tasks([job]), device=device, data_dir=data_dir):
            return stopped.signal
        for path, new in write_records(read_runs([job.path]), out / "records", force=True):
            say(f"{'wrote' if new else 'unchanged'} {path}")
    except KeyboardInterrupt:
        return signal.SIGINT
    except RobattrError as error:  # the other rows go on
        say(f"no row for {row.name}: {error}")
    except Exception:  # also here: an error of the device, for instance
        say(f"no row for {row.name}: {traceback.format_exc()}")
    return None


def plan(rows: Sequence[Row], out: Path, minutes: float) -> str:
    """What would be done: the values that each method tries, and the steps, where they were measured."""
    lines = [f"{minutes:g} minutes for each row, {SEARCHED * minutes:g} of them for the search"]
    for row in rows:
        file = RunDirectory(out / row.run.dataset / row.name).search
        known = read_object(file) if file.is_file() else {}
        steps = f"{known['steps']:,} steps each, then {known['final_steps']:,}" if known else "steps as measured"
        lines.append(f"{row.run.recipe:28} {row.key} = {', '.join(map(str, row.values))}; {steps}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Fill the rows; the exit status is 1 where one has no record, 130 after an interrupt."""
    parser = argparse.ArgumentParser(prog="python -m results.methods", description=__doc__.split("\n")[0])
    parser.add_argument("dataset", choices=DATASETS)
    parser.add_argument("methods", nargs="*", metavar="METHOD", help=f"default: {', '.join(TRIED)}")
    parser.add_argument("--minutes", type=float, default=10.0, help="wall-clock time of a row, without its evaluation")
    parser.add_argument("--out", type=Path, default=Path("runs/methods"), help="the folder that keeps what is done")
    parser.add_argument("--workers", type=int, default=1, help="rows at a time")
    parser.add_argument("--examples", type=int, default=300, help="test examples")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--dry-run", action="store_true", help="print the plan, do nothing")
    asked = parser.parse_args(arguments)
    try:
        for name in asked.methods:
            if name not in TRIED:
                raise InvalidInput(f"unknown method {name!r}: {nearest(name, TRIED)}")
            if (asked.dataset, name) in IDLE:
                raise InvalidInput(f"{name} has no direction to climb on {asked.dataset}: leave it out")
        rows = [row_of(asked.dataset, name) for name in asked.methods or TRIED if (asked.dataset, name) not in IDLE]
        if asked.dry_run:
            print(plan(rows, asked.out, asked.minutes))
            return 0
        jobs = min(asked.workers, len(rows))
        do = partial(
            fill, out=asked.out, minutes=asked.minutes, jobs=jobs, examples=asked.examples, device=asked.device,
            data_dir=asked.data_dir,
        )  # fmt: skip
        stopped_by = run_parallel([[(row.name, partial(do, row)) for row in rows]], workers=jobs)
    except KeyboardInterrupt:
        stopped_by = signal.SIGINT
    except RobattrError as error:
        print(error)
        return 1
    if stopped_by is not None:
        say("stopped: the same command continues")
        return 128 + stopped_by
    if missing := [
        r.name for r in rows if not (asked.out / asked.dataset / r.name / "records/strict-ig.json").is_file()
    ]:
        print(f"no row for {', '.join(missing)}")
    return int(bool(missing))


if __name__ == "__main__":
    raise SystemExit(main())
