"""Load: a report of 1,000 runs, and the comparison of two evaluations of 10,000 examples.

Seconds are those of the processor, of the whole command in a new Python, the least of three: on a busy machine, with
shared caches, they too vary by a factor of two. Neither command loads torch.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import fmean

import numpy as np

RUNS, MOST_SECONDS, MOST_BYTES = 1000, 15.0, 5_000_000
EXAMPLES, COMPARE_SECONDS = 10_000, 2.0
ROBATTR = ("-m", "robattr")


def torture(place: Path) -> bool:
    """Print the times and sizes; whether they are within the limits."""
    from fake_runs import METHODS, write_run

    many = place / "many"
    made = [write_run(many / "of", method, gallery=True) for method in METHODS]
    for number in range(RUNS):
        method = made[number % len(made)]
        copy = many / f"run{number}"
        shutil.copytree(method, copy)
        config = json.loads((copy / "config.json").read_text())
        (copy / "config.json").write_text(json.dumps({**config, "seed": number}))
    spent, code, said = seconds(
        [*ROBATTR, "report", *(f"run{number}" for number in range(RUNS)), "-o", "all.html"], many
    )
    size = 0 if code else (many / "all.html").stat().st_size
    held = not code and spent <= MOST_SECONDS and size <= MOST_BYTES
    print(f"report of {RUNS} runs: {spent:.1f} s, {size / 1e6:.1f} MB{said}", flush=True)
    pair = place / "pair"
    for name in ("one", "two"):
        records(pair / name, seed=len(name) + (name == "two"))
    spent, code, said = seconds([*ROBATTR, "compare", "one", "two"], pair)
    print(f"compare of {EXAMPLES:,} records: {spent:.2f} s{said}", flush=True)
    return held and not code and spent <= COMPARE_SECONDS


def seconds(words: list[str], place: Path) -> tuple[float, int, str]:
    """The processor's seconds of `python WORDS` in `place`, its exit code, and what it said if that is not 0."""
    return min((_once(words, place) for _ in range(3)), key=lambda each: (each[1] != 0, each[0]))


def _once(words: list[str], place: Path) -> tuple[float, int, str]:
    with open(place / "said", "w+") as said:
        child = subprocess.Popen([sys.executable, *words], cwd=place, stdout=said, stderr=said)
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = code = os.waitstatus_to_exitcode(status)
        said.seek(0)
        return used.ru_utime + used.ru_stime, code, f" (exit {code}: {said.read().strip()[-300:]})" if code else ""


def records(at: Path, *, seed: int) -> None:
    """An evaluated run of EXAMPLES examples with invented scores, and a summary that they give."""
    from robattr.evaluation.scores import AGREEMENT, FAITHFULNESS
    from robattr.evaluation.summary import sealed

    rng = np.random.default_rng(seed)
    (at / "records").mkdir(parents=True)
    (at / "config.json").write_text(json.dumps({"dataset": "fashion-mini", "method": "natural", "recipe": "x"}))
    rows = []
    for i in range(EXAMPLES):
        correct = bool(rng.random() < 0.9)
        scores = {name: float(rng.random()) if correct else None for name in (*AGREEMENT, *FAITHFULNESS)}
        curve = {"topk": rng.random(20).tolist(), "kendall": rng.random(20).tolist()}
        rows.append(
            {"id": i, "label": i % 10, "predicted": i % 10, "correct": correct, "adv_correct": correct and bool(i % 3)}
            | {"kept": True if correct else None, "iterate": 3, "excluded": None, "centre": [1.5, 2.5]}
            | {"diagnostics": {"curves": curve, "completeness_gap": 0.01, "vanishing_loss": False}, **scores}
        )
    file = at / "records" / "paper-ig.json"
    columns = {
        name: {"value": fmean(values), "n": len(values)}
        for name in (*AGREEMENT, *FAITHFULNESS)
        for values in [[row[name] for row in rows if row["kept"]]]
    }
    made = {"protocol": "paper", "map": "ig", "examples": EXAMPLES, "columns": columns}
    file.with_suffix(".jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    file.with_suffix(".settings").write_text(json.dumps({"settings": {"eps": 0.1, "weights": str(seed)}}))
    file.write_text(json.dumps(sealed(made, rows, file.with_suffix(".jsonl"))))
