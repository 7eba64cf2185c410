"""Sweeps: one run per point of a grid, or per trial of a search, compared on validation data.

The Optuna study is a journal file beside the runs, so the same command, started again or on more machines that share
the folder, does what is left. The directory of a run is named by its point: an interrupted run is continued, and no run
is trained twice.

    OUT/journal.log   OUT/weight=0.1,m=10/…   OUT/table-weight-m.md
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_origin

from robattr._extras import need
from robattr.engine.files import InUse, locked, write_atomically
from robattr.errors import CheckpointError, Diverged, InvalidInput
from robattr.training import settings
from robattr.training.config import KINDS, TrainConfig
from robattr.training.loop import train

Point = Mapping[str, Any]
Scores = dict[str, float]
Measure = Callable[[Path], Scores]
"""The scores of a finished run directory on validation data, among them `nat_acc`."""
Prepare = Callable[[TrainConfig, Path], TrainConfig]
"""The configuration of a point in its directory, after training the recipe that it starts from."""

HEADINGS = {"nat_acc": "NA", "adv_acc": "AA", "topk": "IN", "kendall": "CO"}  # of the paper's table


@dataclass(frozen=True)
class Span:
    """A range to search on a logarithmic scale, `0.001..1`; of integers, if the key is one: `10..100`."""

    low: float
    high: float
    whole: bool = False


@dataclass(frozen=True)
class Result:
    """One point of a sweep; `scores` is empty if the run diverged."""

    point: Point
    scores: Scores
    path: str


def parse_axis(word: str) -> tuple[str, Sequence[Any] | Span]:
    """`"m=10,20,50"` -> `("m", [10, 20, 50])`; `"weight=0.01..1"` -> `("weight", Span(0.01, 1))`."""
    key, _, text = word.partition("=")
    if not text:
        raise InvalidInput(f"--over expects key=value,value,… or key=low..high, got {word!r}")
    first, *rest = [settings.parse_word(f"{key}={part}") for part in text.replace("..", ",").split(",")]
    key = first[0]
    if get_origin(KINDS[key]) is tuple:
        raise InvalidInput(f"cannot sweep {key}, a list: start one run per value, with --set and --out")
    if key == "full":
        raise InvalidInput("cannot sweep full: it trains on the validation split, on which a sweep compares")
    values = [first[1], *(value for _, value in rest)]
    if ".." not in text:
        return key, list(dict.fromkeys(values))
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    if len(values) != 2 or not numbers or not 0 < values[0] < values[1]:
        raise InvalidInput(f"expected a range low..high of numbers with 0 < low < high, got {word!r}")
    return key, Span(float(values[0]), float(values[1]), whole=isinstance(values[0], int))


def parse_axes(words: Iterable[str]) -> dict[str, Sequence[Any] | Span]:
    """The axes of several words, each with another key."""
    axes: dict[str, Sequence[Any] | Span] = {}
    for word in words:
        key, axis = parse_axis(word)
        if key in axes:
            raise InvalidInput(f"--over {key} is given twice: give all values in one, --over {key}=V,V,…, or one range")
        axes[key] = axis
    return axes


def check_grid(run: TrainConfig, over: Mapping[str, Sequence[Any] | Span]) -> None:
    """Check every point of a grid, before any of them is trained."""
    for point in _grid(over):
        try:
            settings.change(run, point)
        except InvalidInput as error:
            raise InvalidInput(f"at {name_of(point)}: {error}") from error


def sweep(
    run: TrainConfig,
    over: Mapping[str, Sequence[Any] | Span],
    out: str | Path,
    *,
    measure: Measure,
    prepare: Prepare = lambda run, path: run,
    by: str = "",
    trials: int | None = None,
    device: str = "auto",
    data_dir: str | Path | None = None,
) -> tuple[list[Result], int | None]:
    """Run every point of the grid `over`, or `trials` points chosen by Optuna's TPE.

    Returns the results, and the signal that stopped the sweep, if any. `full` is switched off, because runs are
    compared on the validation split. `by` describes `measure`: scores are reused only under the same description.
    """
    optuna = need("optuna", extra="sweep")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    out = Path(out)
    run = replace(run, full=False)
    if trials is None:
        check_grid(run, over)
    out.mkdir(parents=True, exist_ok=True)
    study = _study(out, over, run, by=by)
    if trials is None:
        for point in _grid(over):
            study.enqueue_trial(point, skip_if_exists=True)
    space = {key: _distribution(axis) for key, axis in over.items()}
    _requeue_abandoned(study, out, keys=set(over))
    while _work_left(study, trials):
        trial = study.ask(space)
        path = out / name_of(trial.params)
        try:
            chosen = settings.change(run, trial.params)
            while (outcome := _train_alone(chosen, path, prepare, device=device, data_dir=data_dir)) is None:
                time.sleep(1.0)
            if not outcome.finished:
                return results(study), outcome.stopped_by
            scores = measure(path)
        except Diverged as error:
            _tell(study, trial, {"diverged": str(error)}, state=optuna.trial.TrialState.PRUNED)
        else:
            _tell(study, trial, {"scores": scores}, values=worth(scores))
        write_atomically(out / f"table-{'-'.join(over)}.md", table(results(study)).encode())
    return results(study), None


def worth(scores: Scores) -> float:
    """What a search maximises: accuracy plus, if measured, the Kendall correlation of attacked maps."""
    return scores["nat_acc"] + scores.get("kendall", 0.0)


def results(study: Any) -> list[Result]:
    """The finished points of a study, each once, sorted by value."""
    done = [trial for trial in study.get_trials(deepcopy=False) if trial.state.name in ("COMPLETE", "PRUNED")]
    found = {
        name_of(trial.params): Result(trial.params, trial.user_attrs.get("scores", {}), name_of(trial.params))
        for trial in done
    }
    return sorted(found.values(), key=lambda result: [_rank(value) for value in result.point.values()])


def table(found: Sequence[Result]) -> str:
    """The results as a Markdown table like the paper's over m; the best of each column in bold."""
    if not found:
        return "no run has finished yet\n"
    keys = list(found[0].point)
    columns = list(dict.fromkeys(column for result in found for column in result.scores))
    best = {c: max(result.scores[c] for result in found if c in result.scores) for c in columns}
    lines = [
        "| " + " | ".join([*keys, *(HEADINGS.get(c, c) for c in columns)]) + " |",
        "|" + "---|" * (len(keys) + len(columns)),
    ]
    for result in found:
        cells = [_cell(c, result.scores.get(c), best[c]) for c in columns]
        lines.append("| " + " | ".join([*(str(result.point[key]) for key in keys), *cells]) + " |")
    return "\n".join(lines) + "\n"


def name_of(point: Point) -> str:
    """The directory of a point: `weight=0.1,m=10`."""
    return ",".join(
        f"{key}={value:.6g}" if isinstance(value, float) else f"{key}={value}" for key, value in point.items()
    )


def _rank(value: Any) -> tuple[int, Any]:
    """A sort key for values of an axis: None first, then numbers, then strings."""
    return (0, 0) if value is None else (1 + isinstance(value, str), value)


def _cell(column: str, score: float | None, best: float) -> str:
    if score is None:
        return "diverged"
    text = f"{score:.4f}" if column == "kendall" else f"{score:.2%}"
    return f"**{text}**" if score == best else text


def _train_alone(run: TrainConfig, path: Path, prepare: Prepare, *, device: str, data_dir: str | Path | None) -> Any:
    """Train or continue; None if another worker has the run, or the run that it starts from, in use."""
    try:
        return train(prepare(run, path), path, device=device, data_dir=data_dir, resume=True)
    except InUse:
        return None


def _study(out: Path, over: Mapping[str, Sequence[Any] | Span], run: TrainConfig, *, by: str) -> Any:
    """The study of this search space around this run.

    Other spaces, settings or measures are other studies in the same journal, so their scores are never mixed.
    """
    optuna = need("optuna", extra="sweep")
    journal = need("optuna.storages.journal", extra="sweep")
    space = {key: [axis.low, axis.high, ".."] if isinstance(axis, Span) else list(axis) for key, axis in over.items()}
    file = out / "journal.log"
    _check_journal(file)
    around = {key: value for key, value in {**run.decisive(), "steps": run.steps}.items() if key not in over}
    return optuna.create_study(
        storage=optuna.storages.JournalStorage(journal.JournalFileBackend(str(file))),
        study_name=json.dumps([space, around, by]),
        sampler=optuna.samplers.TPESampler(seed=run.seed),
        direction="maximize",
        load_if_exists=True,
    )


def _check_journal(file: Path) -> None:
    """Reject a damaged journal; the last line may be incomplete, because another worker is writing it."""
    if not file.exists():
        return
    for number, line in enumerate(file.read_bytes().split(b"\n")[:-1], 1):
        try:
            json.loads(line)["op_code"]
        except (ValueError, TypeError, KeyError) as cause:
            raise CheckpointError(
                f"expected a journal entry in line {number} of {file}, got {line[:40]!r}: move the file away and start "
                "again; finished runs are measured again, but not trained again"
            ) from cause


def _distribution(axis: Sequence[Any] | Span) -> Any:
    distributions = need("optuna.distributions", extra="sweep")
    if isinstance(axis, Span):
        if axis.whole:
            return distributions.IntDistribution(int(axis.low), int(axis.high), log=True)
        return distributions.FloatDistribution(axis.low, axis.high, log=True)
    return distributions.CategoricalDistribution(list(axis))


def _grid(over: Mapping[str, Sequence[Any] | Span]) -> list[dict[str, Any]]:
    """Every point of the grid."""
    axes = [axis for axis in over.values() if not isinstance(axis, Span)]
    if len(axes) < len(over):
        raise InvalidInput("a range low..high needs the number of points to try: --trials N")
    return [dict(zip(over, values, strict=True)) for values in itertools.product(*axes)]


def _requeue_abandoned(study: Any, out: Path, *, keys: set[str]) -> None:
    """Queue the points of dead workers again: running in the study, but their directory is not locked.

    A trial without all `keys` is just being created by another worker.
    """
    optuna = need("optuna", extra="sweep")
    for trial in study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,)):
        if set(trial.params) != keys:
            continue
        path = out / name_of(trial.params)
        try:
            path.mkdir(parents=True, exist_ok=True)  # a value may be a path
            with locked(path):
                study.tell(trial.number, state=optuna.trial.TrialState.FAIL, skip_if_finished=True)
                study.enqueue_trial(trial.params)
        except InUse:
            continue


def _tell(study: Any, trial: Any, found: Mapping[str, Any], **told: Any) -> None:
    """Finish a trial, unless another worker took it for abandoned and queued it again.

    That can happen while its directory is not locked: before the training, or after it. The run is not repeated.
    """
    with suppress(need("optuna.exceptions", extra="sweep").UpdateFinishedTrialError):
        for key, value in found.items():
            trial.set_user_attr(key, value)
        study.tell(trial, **told, skip_if_finished=True)


def _work_left(study: Any, trials: int | None) -> bool:
    states = [trial.state.name for trial in study.get_trials(deepcopy=False)]
    return "WAITING" in states or (trials is not None and len(states) - states.count("FAIL") < trials)
