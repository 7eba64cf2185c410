"""A record: one evaluated run in one small JSON file, made to be committed; tables and pages are rendered from it.

    results/<dataset>-<variant>-seed<seed>-<protocol>-<map>.json
    results/<dataset>-<variant>-seed<seed>-<protocol>-<map>-gallery.npz

The summary is whole; the scores of the examples are columns, rounded to four digits; the training log is thinned.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from robattr.data.image_folder import name_of
from robattr.errors import CheckpointError
from robattr.reporting.files import read_object

SCHEMA = 1

Columns = Mapping[str, list[Any]]


@dataclass(frozen=True)
class Record:
    """What the file holds.

    variant      what sets this model apart from others of its dataset and seed: `ig-norm-m20`
    weights      digest of the weights that were evaluated
    training     the end of the training (see `Training`); `curve` is its log, thinned
    summary      of the evaluation
    examples     per-example scores, {"id": […], "topk": […], …}
    """

    variant: str
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    weights: str | None
    training: Mapping[str, Any]
    curve: Mapping[str, Columns]
    summary: Mapping[str, Any]
    examples: Columns

    @property
    def run(self) -> str:
        """The run it is of: records that agree on this are evaluations of one model."""
        dataset, foreign = measured_on(self.config, self.summary)
        origin = f"-from-{slug(self.config.get('dataset'))}" if foreign else ""
        return f"{slug(dataset)}-{self.variant}{origin}-seed{self.config.get('seed', 0)}"

    @property
    def stem(self) -> str:
        """The name of its file."""
        return f"{self.run}-{slug(self.summary.get('protocol', '?'))}-{slug(self.summary.get('map', '?'))}"

    @property
    def text(self) -> str:
        """The file, the same bytes for the same content: a line for each key, lists on one line."""
        return "".join(_lines({"schema": SCHEMA, **asdict(self)})) + "\n"


def read_record(path: Path) -> Record:
    """Read a record; what is damaged or of another kind is named in the error."""
    content = read_object(path)
    if "schema" not in content:
        raise CheckpointError(f"{path} is not a record: expected a JSON object that `robattr record` wrote")
    if content.pop("schema") != SCHEMA:
        raise CheckpointError(f"{path} is a record of another version (expected schema {SCHEMA}): record the run again")
    wanted = {field.name for field in fields(Record)}
    if odd := wanted ^ content.keys():
        raise CheckpointError(f"{path} is damaged ({', '.join(sorted(odd))} missing or unknown): record the run again")
    objects = [key for key in wanted - {"variant", "weights"} if not isinstance(content[key], dict)]
    tables = [] if objects else [content["examples"], *content["curve"].values()]
    if objects or any(len({len(column) for column in table.values()}) > 1 for table in tables):
        raise CheckpointError(f"{path} is damaged (its columns or objects are cut short): record the run again")
    return Record(**content)


def measured_on(config: Mapping[str, Any], summary: Mapping[str, Any]) -> tuple[str, bool]:
    """The dataset an evaluation is of, and whether the model was trained on another (folders go by their last name)."""
    trained = str(config.get("dataset", "unknown"))
    measured = str(summary.get("dataset") or trained)
    folder = name_of(Path(trained))
    if folder == measured != Path(trained).name:  # called like one of ours: a record keeps no path that tells it apart
        return folder, False
    same = measured in (trained, folder)
    return (trained if same else measured), not same


def rows(columns: Columns) -> Iterator[dict[str, Any]]:
    """{"id": [1, 2], …} as {"id": 1, …}, {"id": 2, …}."""
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))


def slug(text: object) -> str:
    """Text as part of a file's name: `mnist/ig-norm (tuned)` → `mnist-ig-norm-tuned`."""
    return re.sub(r"[^\w.@]+", "-", str(text)).strip("-")


def variant(config: Mapping[str, Any]) -> str:
    """What the configuration calls the model: its recipe, less the dataset, and the m of its integral if it has one."""
    method = str(config.get("name") or config.get("method") or "model")
    recipe = str(config.get("recipe") or "").partition("/")[2]
    name = slug(recipe if method in recipe else method)
    integral = method in ("ig-norm", "ig-sum-norm", "distributional-ig")
    return f"{name}-m{config['m']}" if integral and config.get("m") else name


def _lines(value: Any, indent: str = "") -> Iterator[str]:
    if not isinstance(value, Mapping) or not value:
        yield json.dumps(value, ensure_ascii=False, allow_nan=False)
        return
    deeper = indent + " "
    for number, (key, inner) in enumerate(value.items()):
        yield f"{',' if number else '{'}\n{deeper}{json.dumps(key, ensure_ascii=False)}: "
        yield from _lines(inner, deeper)
    yield f"\n{indent}}}"
