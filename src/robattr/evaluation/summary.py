"""Summary of the records: the paper's columns with confidence intervals, further scores, diagnostics and curves."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import isclose
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robattr._form import check_form, parse_json
from robattr.errors import CheckpointError, InvalidInput
from robattr.evaluation import records as files
from robattr.evaluation.protocol import Protocol
from robattr.evaluation.records import Rows
from robattr.evaluation.scores import AGREEMENT, COMPARED, CONTROLS, FAITHFULNESS, curve_points
from robattr.metrics import intervals

ACCURACIES = {"nat_acc": "correct", "adv_acc": "adv_correct"}
WITHOUT_GRADIENTS = ("random", "score")  # attacks of `strict`


NUMBER, COUNT = (float, None), (int, None)
COLUMN = {"value?": NUMBER, "low?": NUMBER, "high?": NUMBER, "n?": COUNT}
SETTINGS = {"eps?": NUMBER, "steps?": COUNT, "k?": int, "eval_k?": int, "repeats?": COUNT, "sweep?": list}
FORM = {
    "protocol?": str, "map?": str, "dataset?": (str, None), "examples": int, "correct?": int, "excluded?": int,
    "settings?": SETTINGS, "columns?": {str: COLUMN}, "never_kept?": NUMBER, "diagnostics?": dict,
    "curves?": {str: {str: [NUMBER]}}, "same_class_cosine?": (COLUMN, None), "alarms?": ([str], None),
    "classes?": ([str], None), "ids?": [int], "command?": (str, None), "versions?": {str: (str, None)},
    "seconds?": NUMBER, "earlier?": COUNT, "seed?": COUNT,
}  # fmt: skip
"""The form of a summary; older ones lack some of the keys."""


def read(path: Path) -> dict[str, Any]:
    """Read a summary and check its form."""
    try:
        summary = parse_json(path.read_text(encoding="utf-8"))
        check_form(summary, FORM)
    except ValueError as cause:
        raise CheckpointError(f"{path} is damaged ({cause}): delete it, and evaluate again") from cause
    return dict(summary)


def read_checked(path: Path) -> tuple[dict[str, Any], Rows]:
    """A summary and all records beside it, with which it must agree."""
    summary, lines = read(path), path.with_suffix(".jsonl")
    records = files.read(lines) if lines.is_file() else []
    check(summary, records_of(summary, records), source=path)
    return summary, records


def columns(records: Rows, *, k: int) -> dict[str, dict[str, float | None]]:
    """Nat Acc and Adv Acc over all examples, each score over the examples that have it, with 95% intervals.

    With k = 1 the top-k intersection of an example is 0 or 1, and its mean a share.

    {"nat_acc": {"value", "low", "high", "n"}, "adv_acc": …, "topk": …, "kendall": …, …}
    """
    shares = {name: intervals.proportion(r[key] for r in records) for name, key in ACCURACIES.items()}
    scored = [r for r in records if r["kept"] is not None]
    whole = ("topk", "noise_topk") if k == 1 else ()
    means = {
        name: (intervals.proportion if name in whole else intervals.mean)(r.get(name) for r in scored)
        for name in (*AGREEMENT, *CONTROLS, *FAITHFULNESS)
    }
    return {name: e.plain() for name, e in {**shares, **means}.items()}


def summarise(records: Rows, protocol: Protocol) -> dict[str, Any]:
    """The part of a summary that is a function of the records."""
    scored = [r for r in records if r["kept"] is not None]
    about = [r["diagnostics"] for r in scored]
    points = curve_points(protocol.steps)
    curves = {name: _curve(d["curves"][name] for d in about) for name in ("topk", "kendall")}
    return {
        "protocol": protocol.name,
        "dataset": protocol.dataset,
        "examples": len(records),
        "correct": sum(bool(r["correct"]) for r in records),
        "excluded": sum(r["excluded"] is not None for r in records),
        "settings": protocol.settings(),
        "seed": protocol.seed,
        "columns": columns(records, k=protocol.eval_k),
        "never_kept": _share(not r["kept"] for r in scored),
        "diagnostics": {
            "completeness_gap": _median(d["completeness_gap"] for d in about),
            "vanishing_loss": _share(r["diagnostics"]["vanishing_loss"] for r in records if r["correct"]),
            "vanishing_map": _share(d["vanishing_map"] == 1 for d in about),  # in every restart
            "label_flips": _share(d["flips"] for d in about),
            "still_falling": _still_falling(points, curves["kendall"]),
            **(_of_strict(scored) if protocol.strict else {}),
        },
        "curves": {"score_vs_iterations": {"iterations": points, **curves}},
    }


def _of_strict(scored: Rows) -> dict[str, Any]:
    """Convergence, cost and the attacks without gradients, of the strict protocol."""
    if not scored:
        return {}
    return {
        "still_falling": _share(r["falling"] for r in scored),
        "converged": _share(r["converged"] for r in scored),
        "passes": _share(r["passes"] for r in scored),
        "noise_advantage": advantage(scored, "random"),
        "search_advantage": advantage(scored, "score"),
    }


def advantage(records: Rows, name: str) -> float | None:
    """How much lower an attack is than all attacks by gradients, on average: the larger over the scores, or None."""
    rows = [r["attacks"] for r in records if name in (r.get("attacks") or {})]
    if not rows:
        return None
    return max(
        fmean(max(0.0, lowest(row, at, but=WITHOUT_GRADIENTS) - _value(row[name], at)) for row in rows)
        for at in range(len(COMPARED))
    )


def lowest(row: Mapping[str, Any], at: int, *, but: Collection[str] = ()) -> float:
    """The worst case of an example without some attacks; 1 where none of the others kept the label."""
    return min((_value(pair, at) for name, pair in row.items() if name not in but), default=1.0)


def _value(pair: Sequence[float | None], at: int) -> float:
    value = pair[at]
    return 1.0 if value is None else value


def digest(content: Any) -> str:
    """A hash of JSON values, whatever their layout in a file."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def sealed(summary: Mapping[str, Any], records: Rows, file: Path | None = None) -> dict[str, Any]:
    """The summary with the digest of its records, that of their file, and one of itself."""
    made = {**summary, "records": digest(list(records)), "file": file and files.file_digest(file)}
    return {**made, "digest": digest(made)}


def check(summary: Mapping[str, Any], records: Rows, *, source: Path, rounding: float = 0.0) -> None:
    """Reject a summary that was not made of these records: what is printed is what the records give.

    The digests are compared where the summary has them, that of the file first, which is quick; the values and counts
    of its columns always. `rounding` is the error of a score in the records; columns that no record has are left out
    with it.
    """
    lines = source.with_suffix(".jsonl")
    unchanged = summary.get("file") and summary["file"] == files.file_digest(lines)
    odd = edited(summary, None if rounding or unchanged else records)
    odd = odd or _disagreement(summary, records, rounding=rounding)
    if odd:
        raise CheckpointError(
            f"{source} does not agree with its records ({odd}): delete it, and robattr evaluate makes it again from "
            "them; if they were edited, use --fresh"
        )


def edited(summary: Mapping[str, Any], records: Rows | None) -> str:
    """Why the digests contradict the summary or its records; empty if they do not, or if it has none."""
    made = {key: value for key, value in summary.items() if key != "digest"}
    if "digest" in summary and summary["digest"] != digest(made):
        return "it was edited"
    if records is not None and "records" in summary and summary["records"] != digest(list(records)):
        return "the records are not those it was made of"
    return ""


def records_of(summary: Mapping[str, Any], records: Rows) -> Rows:
    """The records that a summary was made of; their file may hold more, of an earlier and longer evaluation."""
    ids = None if summary.get("ids") is None else set(summary["ids"])
    kept = records if ids is None else [r for r in records if r["id"] in ids]
    return kept[: summary.get("examples")]


def _disagreement(summary: Mapping[str, Any], records: Rows, *, rounding: float) -> str:
    """The first value of a summary that the records do not give: `topk is 0.99, the records give 0.72`."""
    scored = [r for r in records if r.get("kept") is not None]
    known = {"examples", "never_kept"}.union(*records)
    given: dict[str, float | None] = {
        "examples": len(records),
        "correct": sum(bool(r.get("correct")) for r in records),
        "excluded": sum(r.get("excluded") is not None for r in records),
        "never_kept": _share(not r["kept"] for r in scored),
    }
    pairs = [(key, summary.get(key), value, 0.0) for key, value in given.items() if key in known and key in summary]
    shown = summary.get("columns") or {}
    keys = [ACCURACIES.get(name, name) for name in shown]
    attacked = np.array([r.get("kept") is not None for r in records], dtype=np.bool_)
    for (name, column), key, values in zip(shown.items(), keys, _table(records, keys), strict=True):
        if rounding and key not in known:
            continue
        values = values if name in ACCURACIES else values[attacked]
        values = values[~np.isnan(values)]
        value = float(values.mean()) if len(values) else None
        pairs += [(name, column.get("value"), value, rounding), (f"n of {name}", column.get("n"), len(values), 0.0)]
        ends = [column.get("low"), column.get("value"), column.get("high")]
        if None not in ends and ends != sorted(ends):
            return f"{name} is {ends[1]}, outside its interval"
    return next((f"{key} is {has}, the records give {of}" for key, has, of, e in pairs if not _same(has, of, e)), "")


def _same(a: float | None, b: float | None, error: float) -> bool:
    return a is b if a is None or b is None else isclose(a, b, rel_tol=1e-9, abs_tol=1e-9 + error)


def compare(first: Rows, second: Rows) -> dict[str, intervals.Comparison]:
    """Second minus first, paired by example, for every column of both: difference, interval and p-value."""
    names = ("nat_acc", "adv_acc", *AGREEMENT, *FAITHFULNESS)
    keys = [ACCURACIES.get(name, name) for name in names]
    place = [{r["id"]: at for at, r in enumerate(rows)} for rows in (first, second)]
    shared = sorted(place[0].keys() & place[1].keys())
    if not shared:
        raise InvalidInput("expected two evaluations of the same examples, got no id in common: evaluate both alike")
    at = [[where[i] for i in shared] for where in place]
    found = {}
    for name, one, two in zip(names, _table(first, keys), _table(second, keys), strict=True):
        difference = two[at[1]] - one[at[0]]
        if len(kept := difference[~np.isnan(difference)]):
            known = int((~np.isnan(one)).sum() + (~np.isnan(two)).sum())
            found[name] = intervals.compared(kept, unpaired=known - 2 * len(kept))
    return found


def _table(rows: Rows, keys: Sequence[str]) -> list[NDArray[np.float64]]:
    """The numbers of all rows for each key, NaN for None."""
    return [np.array([row.get(key) for row in rows], dtype=np.float64) for key in keys]


def _curve(curves: Iterable[Sequence[float]]) -> list[float]:
    return [sum(at) / len(at) for at in zip(*curves, strict=True)]


def _still_falling(points: Sequence[int], curve: Sequence[float]) -> float:
    """The decrease of the mean score over the last tenth of the iterations."""
    late = [value for t, value in zip(points, curve, strict=False) if t >= 0.9 * points[-1]]
    return late[0] - late[-1] if late else 0.0


def _share(hits: Iterable[float]) -> float:
    values = [float(h) for h in hits]
    return sum(values) / len(values) if values else 0.0


def _median(values: Iterable[float | None]) -> float | None:
    known = sorted(v for v in values if v is not None)
    return known[len(known) // 2] if known else None
