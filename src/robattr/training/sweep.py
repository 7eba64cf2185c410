"""Sweeps: one run per point of a grid, or per trial of a search, compared on validation data.

The directory of a run is named by its point and contains its scores. So the same command, started again or on more
machines that share the folder, does what is left: no run is trained twice, and none is lost.

    OUT/weight=0.1,m=10/…   OUT/weight=0.1,m=10/sweep.json   OUT/table-weight-m.md
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import nan
from pathlib import Path
from typing import Any

from robattr import data as datasets
from robattr._extras import need
from robattr._form import check_form, parse_json
from robattr._progress import say
from robattr._text import duration
from robattr.engine.files import InUse, locked, write_atomically, write_json
from robattr.errors import CheckpointError, Diverged
from robattr.metrics.columns import COLUMN
from robattr.metrics.intervals import Estimate
from robattr.training import settings
from robattr.training.axes import Axis, Point, Span, check_grid, grid, name_of
from robattr.training.config import Objective, TrainConfig
from robattr.training.loop import train
from robattr.training.run_directory import RunDirectory, discard
from robattr.training.setup import load_dataset

Scores = dict[str, Estimate]
Measure = Callable[[Path], Scores]
"""The scores of a finished run directory on validation data, among them `nat_acc`, with their intervals."""
Prepare = Callable[[TrainConfig, Path], TrainConfig]
"""The configuration of a point in its directory, after training the recipe that it starts from."""

TRIES = 50  # proposals of a search before it has no new point


@dataclass(frozen=True)
class Result:
    """One point of a sweep; `scores` is empty if the run diverged."""

    point: Point
    scores: Scores


def sweep(
    run: TrainConfig,
    over: Mapping[str, Axis],
    out: str | Path,
    *,
    measure: Measure,
    prepare: Prepare = lambda run, path: run,
    by: str = "",
    trials: int | None = None,
    objective: Objective | None = None,
    device: str = "auto",
    data_dir: str | Path | None = None,
    fresh: bool = False,
) -> tuple[list[Result], int | None]:
    """Run every point of the grid `over`, or `trials` points chosen by Optuna's TPE.

    Returns the results, and the signal that stopped the sweep, if any. `full` is switched off, because runs are
    compared on the validation split. `by` describes `measure`: scores are reused only under the same description.
    `objective` replaces the method, as in `train`. With `fresh`, the points of these axes are discarded first.
    """
    out = Path(out)
    RunDirectory(out).check_free("sweep")
    run = replace(run if objective is None else run.with_objective(objective), full=False)
    if trials is None:
        check_grid(run, over)
    around = {key: value for key, value in {**run.decisive(), "steps": run.steps}.items() if key not in over}
    own = {} if run.dataset in datasets.names() else {"data": load_dataset(run, data_dir).digest}
    label = json.dumps([{**around, **own}, by])  # scores of other settings, data or measures are not reused

    if fresh:
        for path, _ in _begun(out, over):
            discard(path)

    def finish(point: Point) -> int | None:
        """Train or continue the run of a point and store its scores; returns the signal that stopped it."""
        path, chosen = out / name_of(point), settings.change(run, point)
        path.mkdir(parents=True, exist_ok=True)
        with locked(path):
            _store(path, point, label, None)
        try:
            outcome = train(prepare(chosen, path), path, device=device, data_dir=data_dir)
        except Diverged:
            _store(path, point, label, {})
            return None
        if outcome.finished:
            with locked(path):
                _store(path, point, label, measure(path))
        return outcome.stopped_by

    found = False  # whether earlier results were reported
    began, finished = time.monotonic(), 0
    while True:
        known = _stored(out, over, label)
        done = [Result(point, scores) for point, scores in known if scores is not None]
        if done:
            write_atomically(out / f"table-{'-'.join(over)}.md", table(done).encode())
        points = grid(over) if trials is None else [point for point, _ in known]
        if trials is not None and len(points) < trials:
            points += _suggest(over, known, seed=run.seed)
        left = [point for point in points if point not in [result.point for result in done]]
        if done and not found:
            say(f"{out}: {len(done)} of {len(done) + len(left)} points were done before (--fresh begins anew)")
        found = True
        if not left:
            return done, None
        for point in left:
            try:
                stopped_by = finish(point)
            except InUse:  # another worker has the run, or the run that it starts from
                continue
            if stopped_by is not None:
                return done, stopped_by
            finished += 1
            total = len(done) + len(left) if trials is None else trials
            if more := total - len(done) - 1:
                seconds = more * (time.monotonic() - began) / finished
                say(f"{out}: {len(done) + 1} of {total} points, about {duration(seconds)} left")
            break
        else:
            time.sleep(1.0)


def worth(scores: Scores) -> float:
    """What a search maximises: accuracy plus, if measured, the Kendall correlation of attacked maps."""
    return scores["nat_acc"].value + (scores["kendall"].value if "kendall" in scores else 0.0)


def table(found: Sequence[Result]) -> str:
    """The results as a Markdown table with intervals. Bold is a score whose interval lies above all others."""
    if not found:
        return "no run has finished yet\n"
    first, *rows = ("| " + " | ".join(row) + " |" for row in cells(found))
    return "\n".join([first, "|" + "---|" * (first.count("|") - 1), *rows, "", *explained(found)]) + "\n"


def cells(found: Sequence[Result]) -> list[list[str]]:
    """The headings and the rows of the table."""
    keys, columns = list(found[0].point), _columns(found)
    rows = [[*(str(r.point[key]) for key in keys), *(_cell(c, r, found) for c in columns)] for r in found]
    return [[*keys, *(COLUMN[c].title for c in columns)], *rows]


def _columns(found: Sequence[Result]) -> list[str]:
    return list(dict.fromkeys(column for result in found for column in result.scores))


def _cell(column: str, result: Result, found: Sequence[Result]) -> str:
    score = result.scores.get(column)
    if score is None:
        return "diverged"
    text = f"{COLUMN[column].show(score.value)} {COLUMN[column].show_interval(score.low, score.high)}".rstrip()
    return f"**{text}**" if _stands_out(column, result, found) else text


def _stands_out(column: str, result: Result, found: Sequence[Result]) -> bool:
    """Whether the interval of a score lies above those of all other points."""
    others = [other.scores[column].high for other in found if other is not result and column in other.scores]
    return bool(others) and all(result.scores[column].low > high for high in others)


def explained(found: Sequence[Result]) -> list[str]:
    """The sentences below the table: the number of examples, what bold means, and whether a point stands out."""
    columns = _columns(found)
    counts: dict[str, list[str]] = {}
    for column in columns:
        of = [result.scores[column].n for result in found if column in result.scores]
        number = " to ".join(f"{n:,}" for n in dict.fromkeys((min(of), max(of))))
        counts.setdefault(number, []).append(COLUMN[column].title)
    images = "; ".join(f"{', '.join(titles)} on {n}" for n, titles in counts.items())
    said = [f"Validation images: {images}. Intervals are 95%."] if columns else []
    if len(found) > 1 and columns:
        best = any(_stands_out(c, result, found) for c in columns for result in found if c in result.scores)
        said.append(
            "Bold: the interval lies above all others."
            if best
            else "No point stands out: the intervals of the best ones overlap."
        )
    return said


def _rank(value: Any) -> tuple[int, Any]:
    """A sort key for values of an axis: None first, then numbers, then strings."""
    return (0, 0) if value is None else (1 + isinstance(value, str), value)


def _store(path: Path, point: Point, label: str, scores: Scores | None) -> None:
    file = path / "sweep.json"
    stored = _read(file) if file.exists() else {"point": point, "scores": {}}
    if stored["point"] != point:
        raise CheckpointError(
            f"expected the point {point} in {file}, got {stored['point']}: delete the file; the run is measured again, "
            "but not trained again"
        )
    plain = {of: by and {c: e.plain() for c, e in by.items()} for of, by in {**stored["scores"], label: scores}.items()}
    write_json(file, {**stored, "scores": plain})


def _stored(out: Path, over: Mapping[str, Axis], label: str) -> list[tuple[Point, Scores | None]]:
    """The points of these axes that were begun under this label, sorted by value; scores are None until measured."""
    found = [(at["point"], at["scores"][label]) for _, at in _begun(out, over) if label in at["scores"]]
    return sorted(found, key=lambda each: [_rank(value) for value in each[0].values()])


def _begun(out: Path, over: Mapping[str, Axis]) -> list[tuple[Path, dict[str, Any]]]:
    """The directories of points of these axes, with their content of `sweep.json`."""
    return [
        (file.parent, stored)
        for file in out.rglob("sweep.json")
        if list((stored := _read(file))["point"]) == list(over)
        and file.parent == out / name_of(stored["point"])  # not of another sweep below this folder
        and all(stored["point"][key] in axis for key, axis in over.items())
    ]


def _read(file: Path) -> dict[str, Any]:
    try:
        stored = parse_json(file.read_text(encoding="utf-8"))
        score = {"value": float, "low": (float, None), "high": (float, None), "n": int, "excluded": int}
        check_form(stored, {"point": {str: (float, str, bool, None)}, "scores": {str: (None, {str: score})}})
        scores = {of: by and {c: _estimate(e) for c, e in by.items()} for of, by in stored["scores"].items()}
        return {"point": stored["point"], "scores": scores}
    except ValueError as cause:
        raise CheckpointError(
            f"expected the point and the scores of a run in {file}, got other content: delete the file; the run is "
            "measured again, but not trained again"
        ) from cause


def _estimate(plain: Mapping[str, Any]) -> Estimate:
    low, high = (nan if plain[end] is None else plain[end] for end in ("low", "high"))
    return Estimate(plain["value"], low, high, plain["n"], plain["excluded"])


def _suggest(
    over: Mapping[str, Axis], known: Sequence[tuple[Point, Scores | None]], *, seed: int
) -> list[dict[str, Any]]:
    """A new point, chosen by TPE from the scores so far; none if the search finds no new one."""
    optuna = need("optuna", extra="sweep")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    space = {key: _distribution(axis) for key, axis in over.items()}
    state = optuna.trial.TrialState
    for number in range(len(known), len(known) + TRIES):
        study = optuna.create_study(
            sampler=optuna.samplers.TPESampler(seed=(seed + number) % 2**32), direction="maximize"
        )
        for point, scores in known:
            told = {"state": state.COMPLETE, "value": worth(scores)} if scores else {"state": state.PRUNED}
            if scores is not None:
                study.add_trial(optuna.create_trial(params=dict(point), distributions=space, **told))
        chosen: dict[str, Any] = study.ask(space).params
        if name_of(chosen) not in [name_of(point) for point, _ in known]:
            return [chosen]
    return []


def _distribution(axis: Axis) -> Any:
    distributions = need("optuna.distributions", extra="sweep")
    if not isinstance(axis, Span):
        return distributions.CategoricalDistribution(list(axis))
    if axis.whole:
        return distributions.IntDistribution(int(axis.low), int(axis.high), log=True)
    return distributions.FloatDistribution(axis.low, axis.high, log=True)
