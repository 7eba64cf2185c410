"""Records: one evaluation of one run in a small JSON file to commit. Tables and pages are rendered from them.

    results/<dataset>-<variant>-seed<seed>-<protocol>-<map>.json
    results/<dataset>-<variant>-seed<seed>-<protocol>-<map>-gallery.npz

A record has the whole summary, the scores of the examples as columns of four digits, and a thinned training log:

    variant      sets this model apart from others of its dataset and seed: `ig-norm-m20`
    config, environment
    weights      digest of the evaluated weights
    digest       of all the rest; the oldest records have none
    training     the end of the training, a `TrainingSummary`
    search       how its settings were found, where the run says so: a `search.json`
    curve        the thinned training log, {"logged": columns, "validated": columns}
    summary      the summary of the evaluation
    examples     per-example scores, {"id": […], "topk": […], …}
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from robattr._form import all_fit, parse_json, parse_json_lines
from robattr.data.known import name_of
from robattr.engine.files import check_content
from robattr.errors import CheckpointError
from robattr.evaluation.summary import FORM as SUMMARY
from robattr.evaluation.summary import check as check_summary
from robattr.evaluation.summary import digest
from robattr.reporting.training_log import TrainingSummary
from robattr.training.method_names import INTEGRATING, Method

SCHEMA = 1
DIGITS = 4  # of the scores of examples
NUMBER, COUNT, TEXT = (float, None), (int, None), (str, None)
CONFIG = {
    **{f"{key}?": TEXT for key in ("dataset", "method", "recipe", "name", "model", "custom")},
    "seed?": COUNT, "m?": COUNT, "steps?": COUNT, "weight?": NUMBER, "eps?": NUMBER, "notes?": [str], "skipped?": [str],
}  # fmt: skip
ENVIRONMENT = {"command?": TEXT, "versions?": {str: TEXT}, "resumed?": [dict], "device?": TEXT}
SEARCH = {"minutes": float, "jobs?": int, "chosen?": {str: (float, str, bool, None)}, "tried?": [dict]}
"""Minutes of wall-clock time, jobs that shared the device, the settings chosen, what was tried with its scores."""
LOG_LINE = {str: NUMBER}
ALL_FIT = all_fit(LOG_LINE)
FORM = {
    "schema": int, "variant": str, "weights": TEXT, "config": CONFIG, "environment": ENVIRONMENT,
    "training": {"steps?": COUNT, "lines?": int, str: NUMBER}, "curve": {str: {str: [NUMBER]}}, "summary": SUMMARY,
    "search?": SEARCH,
    "examples": {
        "id": [int], "label?": [COUNT], "predicted?": [COUNT], "attacks?": [({str: [NUMBER]}, None)],
        str: [(float, bool, None)],
    },
}  # fmt: skip
REQUIRED = FORM.keys() - {"search?"}
APPROACHES = {  # names of the methods, in the order of tables
    "natural": "NATURAL", "madry": "Madry et al.", "ig-norm": "IG-NORM", "ig-sum-norm": "IG-SUM-NORM",
    "input-gradient": "Input gradient", "loss-output": "Loss output", "sinha": "Sinha et al.",
    "distributional-ig": "Distributional IG", "trades": "TRADES", "igr": "IGR", "aat": "AAT", "adv-aat": "AdvAAT",
    "art": "ART", "sarkar": "Sarkar et al.", "ssr": "SSR", "lga": "LGA", "r2et": "R2ET", "curvature": "Curvature",
    "interval-bound": "Interval bound",
}  # fmt: skip

Record = Mapping[str, Any]
Columns = Mapping[str, list[Any]]


def run_name(record: Record) -> str:
    """The name of the run, equal for all evaluations of one model."""
    config = record["config"]
    dataset, other = evaluated_dataset(config, record["summary"])
    origin = f"-from-{slug(config.get('dataset'))}" if other else ""
    return f"{slug(dataset)}-{record['variant']}{origin}-seed{config.get('seed', 0)}"


def file_name(record: Record) -> str:
    """The name of the file."""
    summary = record["summary"]
    return f"{run_name(record)}-{slug(protocol_of(summary))}-{slug(summary.get('map', '?'))}.json"


def protocol_of(summary: Mapping[str, Any]) -> str:
    """The protocol of a summary with its version: `strict v2`; the first version has none, `strict`."""
    version = (summary.get("settings") or {}).get("version", 1)
    return str(summary.get("protocol", "?")) + (f" v{version}" if version > 1 else "")


def text(record: Record) -> str:
    """The text of the file: one line for each key, lists on one line."""
    return "".join(_json(record)) + "\n"


def read_record(path: Path) -> Record:
    """Read a record and check its structure."""
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as cause:
        raise CheckpointError(
            f"expected a record, got {path}, which could not be read as JSON ({cause}): give a run directory, or "
            "a record that `robattr record` wrote"
        ) from cause
    if not isinstance(content, dict) or "schema" not in content:
        raise CheckpointError(f"expected a record, got {path}, {_foreign(content)}")
    if content["schema"] != SCHEMA:
        raise CheckpointError(f"{path} is a record of another version (expected schema {SCHEMA}): record the run again")
    if odd := REQUIRED ^ (content.keys() - {"digest", "search"}):
        raise CheckpointError(f"{path} is damaged ({', '.join(sorted(odd))} missing or unknown): record the run again")
    check_content(content, FORM, path)
    tables = [content["examples"], *content["curve"].values()]
    unknown = content["training"].keys() - TrainingSummary.__dataclass_fields__.keys()
    if unknown or any(len({len(column) for column in table.values()}) > 1 for table in tables):
        raise CheckpointError(f"{path} is damaged (its columns or objects are cut short): record the run again")
    if content["variant"] != slug(content["variant"]):
        raise CheckpointError(f"{path} is damaged (variant {content['variant']!r} is not a name): record the run again")
    if "digest" in content and content["digest"] != digest(unsealed(content)):
        raise CheckpointError(f"{path} was edited (its content does not match its digest): record the run again")
    check_summary(content["summary"], list(rows(content["examples"])), source=path, rounding=0.5 * 10**-DIGITS)
    return content


def _foreign(content: Any) -> str:
    """What a JSON file is that is not a record, and what to do."""
    if not isinstance(content, dict) or not content.keys() & {"protocol", "per_example"}:
        return "which is not one: `robattr record` writes records"
    if "protocol" in content:
        return "the summary of an evaluation: give its run, RUN of RUN/records"
    return (
        "a summary of certificates: the same `robattr certify` prints it again, `robattr audit --certify` writes a "
        "page with certificates"
    )


def sealed(record: Record) -> Record:
    """The record with the digest of its content."""
    return {**unsealed(record), "digest": digest(unsealed(record))}


def unsealed(record: Record) -> dict[str, Any]:
    """The record without its digest."""
    return {key: value for key, value in record.items() if key != "digest"}


def evaluated_dataset(config: Mapping[str, Any], summary: Mapping[str, Any]) -> tuple[str, bool]:
    """The dataset of an evaluation, and whether the model was trained on another one.

    Evaluations call an image folder by its last name, or `folder mnist` where that is a dataset's name.
    """
    trained = str(config.get("dataset", "unknown"))
    evaluated = str(summary.get("dataset") or trained)
    folder = name_of(Path(trained))
    if folder == evaluated != Path(trained).name:  # `folder mnist`: a record has no path that would tell it from mnist
        return folder, False
    same = evaluated in (trained, folder)
    return (trained if same else evaluated), not same


def rows(columns: Columns) -> Iterator[dict[str, Any]]:
    """{"id": [1, 2], …} as {"id": 1, …}, {"id": 2, …}."""
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))


def slug(text: object) -> str:
    """Text as part of a file name: `mnist/ig-norm (wide)` → `mnist-ig-norm-wide`."""
    return re.sub(r"[^\w.@]+", "-", str(text)).strip("-")


def method_of(config: Mapping[str, Any], default: str) -> str:
    """The method of a run; for a user-defined objective the recipe without its dataset."""
    method, recipe = str(config.get("method") or default), str(config.get("recipe") or "").partition("/")[2]
    return recipe if recipe and method == "custom" else method


def approach(config: Mapping[str, Any], default: str) -> str:
    """The method's name in tables, and the network where it is not the dataset's own."""
    method = method_of(config, default)
    network = f", {config['model']}" if config.get("model") else ""
    return str(config.get("name") or f"{APPROACHES.get(method, method)}{network}")


def integrates(method: Any) -> bool:
    """Whether a method's objective depends on m; a user-defined one is assumed to."""
    return method in INTEGRATING or method not in get_args(Method)


def variant(config: Mapping[str, Any]) -> str:
    """The recipe without its dataset, and m for methods that integrate: `ig-norm-m20`."""
    method = str(config.get("name") or method_of(config, "model"))
    recipe = str(config.get("recipe") or "").partition("/")[2]
    name = slug(recipe if method in recipe else method)
    known = config.get("method") in get_args(Method) and not config.get("name")
    return f"{name}-m{config['m']}" if known and config.get("m") and integrates(config["method"]) else name


def read_log(path: Path) -> tuple[Mapping[str, Any], ...]:
    """Read a training log; () where it does not exist. A last line that is not JSON is still being written."""
    if not path.is_file():
        return ()
    lines = [(number, line) for number, line in enumerate(path.read_bytes().splitlines(), start=1) if line.strip()]
    rows = parse_json_lines([line for _, line in lines])
    if rows is not None and ALL_FIT(rows):
        return tuple(rows)
    remedy = "the file is damaged: delete that line, or restore the file"
    read: list[Mapping[str, Any]] = []
    for number, line in lines:
        try:
            row = parse_json(line.decode("utf-8"))
        except ValueError as cause:
            if number == lines[-1][0]:
                break
            raise CheckpointError(f"{path}, line {number} is not JSON ({cause}); {remedy}") from cause
        if not isinstance(row, dict):
            raise CheckpointError(f"{path}, line {number}: expected a JSON object, got {type(row).__name__}; {remedy}")
        check_content(row, LOG_LINE, path)
        read.append(row)
    return tuple(read)


def _json(value: Any, indent: str = "") -> Iterator[str]:
    if not isinstance(value, Mapping) or not value:
        yield json.dumps(value, ensure_ascii=False, allow_nan=False)
        return
    deeper = indent + " "
    for number, (key, inner) in enumerate(value.items()):
        yield f"{',' if number else '{'}\n{deeper}{json.dumps(key, ensure_ascii=False)}: "
        yield from _json(inner, deeper)
    yield f"\n{indent}}}"
