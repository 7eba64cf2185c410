"""A model card: what was trained on what, how, with which result, as Markdown with the Hub's metadata.

A function of the run directory, or of records and weights: a card cannot say what the records do not.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from robattr import data
from robattr._text import printable
from robattr.errors import CheckpointError
from robattr.evaluation.resume_checks import digest_of_tensors
from robattr.metrics.columns import CONTROLLED
from robattr.models.weights_file import read_tensors
from robattr.reporting.export import portable
from robattr.reporting.run_results import EvaluationResults, RunResults, read_run
from robattr.reporting.tables import grid, make_cell
from robattr.training.config import BOOKKEEPING, TrainConfig
from robattr.training.run_directory import RunDirectory

TAGS = ("robattr", "explainability", "integrated-gradients", "adversarial-robustness")
MEANING = " ".join(f"{column.title}: {column.meaning}." for column in CONTROLLED) + " Brackets: 95% intervals."
ALWAYS = ("recipe", "method", "seed", "steps")  # settings that a card has, also where they are the defaults
NOT_MEASURED = "Not measured yet: `robattr evaluate RUN`, then write the card again."


def model_card(run: RunResults | str | Path, *, license: str = "unknown", weights: Path | None = None) -> str:
    """The card of a run that `train` or `harden` wrote. `license` is the weights', by its identifier on the Hub.

    `weights`: their file, where the run was read from records.
    """
    run = run if isinstance(run, RunResults) else read_run(run)
    here = RunDirectory(run.path)
    weights = weights or here.weights
    if not weights.is_file():
        raise CheckpointError(f"{run.path} has no {weights.name}: only a finished training has a card")
    _check_weights(run, weights)
    title = _plain(f"{run.name}, {_dataset(run)}")
    parts = [
        "---", *_metadata(run, title, license), "---", "",
        f"# {title}", "",
        "A classifier trained with robattr (robust attribution regularization). The measurements say how far small "
        "changes of the input change its explanations.", "",
        "## Data", "", *_data(run), "",
        "## Recipe", "", *_recipe(run), "",
        "## Measurements", "", *_measurements(run), "",
        "## Files", "", *_files(weights, here), "",
        "## Licence", "", f"Weights: {license}. Data: {_data_licence(run)}.", "",
    ]  # fmt: skip
    return "\n".join(parts)


def _metadata(run: RunResults, title: str, license: str) -> Iterator[str]:
    """The front matter; JSON is YAML."""
    results = [
        {
            "task": {"type": "image-classification", "name": "Robustness of attributions"},
            "dataset": {"type": _measured_on(run, e), "name": _measured_on(run, e)},
            "metrics": [
                {"type": column.key, "name": f"{column.title} ({_kind(e)})", "value": value}
                for column in CONTROLLED
                if (value := make_cell(e, column).value) is not None
            ],
        }
        for e in run.evaluations
    ]
    fields: dict[str, Any] = {"license": license, "library_name": "robattr", "tags": list(TAGS)}
    if results:
        fields["model-index"] = [{"name": title, "results": results}]
    for key, value in fields.items():
        yield f"{key}: {json.dumps(value, ensure_ascii=False)}"


def _dataset(run: RunResults) -> str:
    return _folder(run.dataset)


def _measured_on(run: RunResults, e: EvaluationResults) -> str:
    return _folder(str(e.summary.get("dataset") or run.dataset))


def _folder(dataset: str) -> str:
    """The name of a dataset; of a folder without its path."""
    return _plain(str(portable(dataset)).rpartition("/")[2])


def _plain(value: object) -> str:
    """Text from a file, without control characters and Markdown's code marks."""
    return printable(str(value)).replace("`", "'")


def _data(run: RunResults) -> Iterator[str]:
    yield f"`{_dataset(run)}`."
    if run.dataset in data.names():
        info = data.info(run.dataset)
        train, validation, test = info.sizes
        yield f"{len(info.classes)} classes; {train} training, {validation} validation and {test} test examples."
        yield f"{info.citation}."


def _data_licence(run: RunResults) -> str:
    return data.info(run.dataset).licence if run.dataset in data.names() else "that of your own data"


def _recipe(run: RunResults) -> Iterator[str]:
    """The settings that differ from the defaults, and the versions."""
    default = TrainConfig().as_dict()
    for key, value in portable(run.config).items():
        known = key in default and key not in ("dataset", *BOOKKEEPING)
        if key in ALWAYS or (known and value != default[key]):
            yield f"- {key}: `{_plain(value)}`"
    versions = run.environment.get("versions", {})
    yield f"- versions: {', '.join(f'{name} {version}' for name, version in versions.items()) or 'unknown'}"
    if commit := run.environment.get("git"):
        yield f"- commit of robattr: `{commit}`"


def _measurements(run: RunResults) -> Iterator[str]:
    if not run.evaluations:
        yield NOT_MEASURED
        return
    rows = [
        [
            _kind(e) + ("" if _measured_on(run, e) == _dataset(run) else f", on {_measured_on(run, e)}"),
            e.radius,
            str(e.examples),
            *(str(make_cell(e, c)) for c in CONTROLLED),
        ]
        for e in run.evaluations
    ]
    yield grid(("Protocol", "ε", "Examples", *(column.title for column in CONTROLLED)), rows)
    yield ""
    yield MEANING
    for e in run.evaluations:
        warnings = filter(None, (e.outdated, *(e.summary.get("alarms") or ())))
        yield from (f"Warning ({_kind(e)}): {_plain(warning)}." for warning in warnings)
    yield f"Records: {', '.join(f'`{_plain(e.source.name)}`' for e in run.evaluations)}."


def _kind(e: EvaluationResults) -> str:
    return f"{e.protocol}, {e.summary['map']} maps"


def _files(weights: Path, here: RunDirectory) -> Iterator[str]:
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    yield f"- `{weights.name}`: SHA-256 `{digest}`"
    if here.preprocessing.is_file():
        kept = json.loads(here.preprocessing.read_text("utf-8"))
        yield f"- the inputs are normalised by mean {kept['mean']} and std {kept['std']} before the network"


def _check_weights(run: RunResults, weights: Path) -> None:
    """Refuse measurements of other weights than the file's."""
    tensors = read_tensors(weights)
    if any(t.is_floating_point() and t.element_size() != 4 for t in tensors.values()):
        return  # the network is measured in float32, so the digests differ
    digest = digest_of_tensors(tensors)
    for e in run.evaluations:
        if e.weights is not None and e.weights != digest:
            raise CheckpointError(
                f"{e.source} was measured on other weights than {weights}: `robattr evaluate {run.path} --fresh`"
            )
