"""Sweeps: one run per point of a grid (or per trial of a search), chosen between by validation data alone.

The study lives in a journal file beside the runs, so the same command, started again or on more machines that share the
folder, takes up what is left. A run's directory is named by its point: a run that was cut short is continued, and one
that two workers want is trained once.

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
"""The run of a point, for its directory, with weights at hand where it starts from a recipe's."""

HEADINGS = {"nat_acc": "NA", "adv_acc": "AA", "topk": "IN", "kendall": "CO"}  # as the paper's table has them


@dataclass(frozen=True)
class Span:
    """A range of numbers to search, on a logarithmic scale: `0.001..1`; of a key that counts, whole ones: `10..100`."""

    low: float
    high: float
    whole: bool = False


@dataclass(frozen=True)
class Result:
    """One point of a sweep; `scores` is empty where the run diverged."""

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
        raise InvalidInput(f"{key} is a list: sweep over it with one --set and one --out per value")
    if key == "full":
        raise InvalidInput("a sweep compares on the validation split and never trains on it: full is no axis of one")
    values = [first[1], *(value for _, value in rest)]
    if ".." not in text:
        return key, list(dict.fromkeys(values))
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    if len(values) != 2 or not numbers or not 0 < values[0] < values[1]:
        raise InvalidInput(f"a range is low..high of numbers with 0 < low < high, got {word!r}")
    return key, Span(float(values[0]), float(values[1]), whole=isinstance(values[0], int))


def parse_axes(words: Iterable[str]) -> dict[str, Sequence[Any] | Span]:
    """The axes of several words, each of a key of its own."""
    axes: dict[str, Sequence[Any] | Span] = {}
    texts: dict[str, str] = {}
    for word in words:
        key, axis = parse_axis(word)
        text = word.partition("=")[2].strip()
        if key in axes:
            joined = f"{texts[key]},{text}"
            remedy = "give one range" if ".." in joined else f"give all its values in one, --over {key}={joined}"
            raise InvalidInput(f"--over {key} is given twice: {remedy}")
        axes[key], texts[key] = axis, text
    return axes


def check_grid(run: TrainConfig, over: Mapping[str, Sequence[Any] | Span]) -> None:
    """Refuse a grid one of whose points is not a run, before any of them is trained."""
    for point in _grid(over):
        try:
            settings.change(run, point)
        except InvalidInput as error:
            raise InvalidInput(f"the point {name_of(point)} of the grid: {error}") from error


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
    """Run every point of the grid `over`, or `trials` points that Optuna's TPE chooses; results, and what stopped it.

    The validation split chooses, so `full` (training on it) is switched off. `by` says in words what `measure` does:
    scores of one measure are never taken for those of another.
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
    """What a search maximises: accuracy plus, where it was measured, the Kendall correlation of attacked maps."""
    return scores["nat_acc"] + scores.get("kendall", 0.0)


def results(study: Any) -> list[Result]:
    """The finished points of a study, each once, in the order of their values."""
    done = [trial for trial in study.get_trials(deepcopy=False) if trial.state.name in ("COMPLETE", "PRUNED")]
    found = {
        name_of(trial.params): Result(trial.params, trial.user_attrs.get("scores", {}), name_of(trial.params))
        for trial in done
    }
    return sorted(found.values(), key=lambda result: [_rank(value) for value in result.point.values()])


def table(found: Sequence[Result]) -> str:
    """The results as the paper's table over m has them (Markdown); the best of each column in bold."""
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
    """Where a value of an axis belongs: none first, then numbers, then words."""
    return (0, 0) if value is None else (1 + isinstance(value, str), value)


def _cell(column: str, score: float | None, best: float) -> str:
    if score is None:
        return "diverged"
    text = f"{score:.4f}" if column == "kendall" else f"{score:.2%}"
    return f"**{text}**" if score == best else text


def _train_alone(run: TrainConfig, path: Path, prepare: Prepare, *, device: str, data_dir: str | Path | None) -> Any:
    """Train (or continue) unless another worker is at it, or at what it starts from: then None."""
    try:
        return train(prepare(run, path), path, device=device, data_dir=data_dir, resume=True)
    except InUse:
        return None


def _study(out: Path, over: Mapping[str, Sequence[Any] | Span], run: TrainConfig, *, by: str) -> Any:
    """The study of this search space around this run; another in the same folder is another study over the same runs.

    So results of other settings are never taken for these: their runs are continued where they can be, else refused.
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
    """Refuse a journal with a line that is none of Optuna's; another worker may be at the last one, without its end."""
    if not file.exists():
        return
    for number, line in enumerate(file.read_bytes().split(b"\n")[:-1], 1):
        try:
            json.loads(line)["op_code"]
        except (ValueError, TypeError, KeyError) as cause:
            raise CheckpointError(
                f"expected an entry of the sweep's journal in line {number} of {file}, got {line[:40]!r}: the file is "
                "damaged; move it away and start again, the runs beside it are measured again but not trained again"
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
        raise InvalidInput("a range low..high has no end of points: say how many to try with --trials N")
    return [dict(zip(over, values, strict=True)) for values in itertools.product(*axes)]


def _requeue_abandoned(study: Any, out: Path, *, keys: set[str]) -> None:
    """Queue again the points of workers that died: the study says they run, but nobody holds their directory.

    A trial that does not have all `keys` yet is being asked for at this moment.
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
    """End a trial; one that another worker took for abandoned, and queued again, is left to whoever asks for it next.

    That can happen between its start and the lock of its directory, or after the lock. The run itself is not repeated.
    """
    with suppress(need("optuna.exceptions", extra="sweep").UpdateFinishedTrialError):
        for key, value in found.items():
            trial.set_user_attr(key, value)
        study.tell(trial, **told, skip_if_finished=True)


def _work_left(study: Any, trials: int | None) -> bool:
    states = [trial.state.name for trial in study.get_trials(deepcopy=False)]
    return "WAITING" in states or (trials is not None and len(states) - states.count("FAIL") < trials)
