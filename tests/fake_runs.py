"""Runs with invented numbers, for tests of what renders them; the images are drawings that one can look at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from scipy import ndimage

from robattr.reporting.record import APPROACHES
from robattr.reporting.run_results import EvaluationResults, RunResults
from robattr.reporting.training_log import TrainingSummary

CLASSES = ("T-shirt", "Trouser", "Ankle boot")
METHODS = {"natural": 0.42, "madry": 0.61, "ig-norm": 0.70, "ig-sum-norm": 0.80}
ENDS = {"low": -0.03, "high": 0.03}  # of the intervals of a curve


def garment(label: int, rng: np.random.Generator) -> np.ndarray:
    """A 28×28 uint8 drawing of one of CLASSES, with a little texture."""
    y, x = np.mgrid[0:28, 0:28]
    if label == 0:
        shape = ((np.abs(x - 13.5) < 6) & (y > 4) & (y < 25)) | ((y > 4) & (y < 11) & (np.abs(x - 13.5) < 12))
        shape &= ~((np.abs(x - 13.5) < 3) & (y < 7))
    elif label == 1:
        shape = (np.abs(x - 13.5) < 6) & (y > 2) & (y < 26) & ~((np.abs(x - 13.5) < 1.5) & (y > 9))
    else:
        shape = ((x > 12) & (x < 21) & (y > 5) & (y < 23)) | ((y > 15) & (y < 23) & (x > 3) & (x < 21))
    tone = 150 + 60 * np.sin(y / (2 + rng.random() * 3)) + 18 * rng.standard_normal((28, 28))
    return np.where(shape, np.clip(tone, 60, 255), 0).astype(np.uint8)


def write_run(
    root: Path,
    method: str,
    *,
    dataset: str = "fashion-mini",
    classes: tuple[str, ...] = CLASSES,
    examples: int = 8,
    steps: int = 6,
    map_name: str = "ig",
    colour: bool = False,
    gallery: bool = True,
) -> Path:
    """A finished, evaluated run directory; the higher the method's number in METHODS, the better its maps hold."""
    rng = np.random.default_rng(sum(map(ord, method)))
    hold = METHODS.get(method, 0.5)
    run = root / method
    records = run / "records"
    records.mkdir(parents=True)
    config = {"recipe": f"{dataset}/{method}", "dataset": dataset, "method": method, "steps": 300, "seed": 0, "m": 10}
    _json(run / "config.json", {**config, "weight": hold})
    versions = {"robattr": "0", "torch": "2.13.0"}
    command = f"robattr train {dataset}/{method}"
    _json(run / "environment.json", {"command": command, "versions": versions, "device": "cpu"})
    _lines(run / "metrics.jsonl", _training(rng, hold))
    kept = _examples(rng, hold, classes)
    _lines(records / f"paper-{map_name}.jsonl", kept)
    _json(records / f"paper-{map_name}.json", _summary(kept, hold, dataset, map_name, classes))
    if gallery:
        np.savez_compressed(
            records / f"paper-{map_name}-gallery.npz", **_gallery(rng, hold, classes, examples, steps, colour=colour)
        )
    return run


def fake_results(
    method: str,
    topk: float,
    kendall: float,
    *,
    dataset: str = "mnist",
    nat: float = 0.985,
    adv: float = 0.9,
    half: float = 0.01,
    protocol: str = "paper",
    map_name: str = "ig",
    examples: int = 1000,
    first: int = 0,
    variant: str = "",
    **config: Any,
) -> RunResults:
    """A run with one evaluation whose columns are these, each ± half, without files."""
    values = {"nat_acc": nat, "adv_acc": adv, "topk": topk, "kendall": kendall, "noise_topk": 0.9, "noise_kendall": 0.8}
    columns = {key: {"value": v, "low": v - half, "high": v + half} for key, v in values.items()}
    summary = {"protocol": protocol, "map": map_name, "columns": columns, "never_kept": 0.25, "settings": {"k": 100}}
    records = tuple(
        {"id": i, "kept": i % 4 > 0, "topk": topk, "kendall": kendall} for i in range(first, first + examples)
    )
    path = Path(f"results/{dataset}-{method}")
    evaluation = EvaluationResults(summary, records, None, path.with_suffix(".json"))
    config = {"dataset": dataset, "method": method, "seed": 0, **config}
    return RunResults(APPROACHES[method], variant or method, path, config, {}, (), TrainingSummary(), (evaluation,))


def _training(rng: np.random.Generator, hold: float) -> list[dict[str, Any]]:
    rows = []
    for step in range(0, 301, 10):
        decay = np.exp(-step / 80)
        rows.append(
            {"step": step, "loss": 0.4 + 1.9 * decay + 0.03 * rng.random(), "penalty": 4 * (1 - hold) + 3 * decay}
        )
        if step % 50 == 0:
            rows.append({"step": step, "val_accuracy": 0.85 - 0.6 * decay})
    return rows


def _examples(rng: np.random.Generator, hold: float, classes: tuple[str, ...]) -> list[dict[str, Any]]:
    rows = []
    for i in range(120):
        correct = i < 24 or bool(rng.random() < 0.9)  # the gallery's examples are correctly classified
        topk = float(np.clip(hold + 0.12 * rng.standard_normal(), 0, 1))
        control = {"noise_topk": (1 + topk) / 2, "noise_kendall": (1 + topk) / 2 - 0.2, "ceiling": 0.84}
        scores = control | {"topk": topk, "kendall": topk - 0.2, "iterate": int(rng.integers(1, 51))}
        label = i % len(classes)
        rows.append({"id": i, "label": label, "correct": correct, "adv_correct": bool(rng.random() < 0.8 * hold)}
                    | {"kept": i % 32 > 0 or hold >= 0.5 if correct else None}
                    | (scores if correct else dict.fromkeys(scores)))  # fmt: skip
    return rows


def _summary(
    rows: list[dict[str, Any]], hold: float, dataset: str, map_name: str, classes: tuple[str, ...]
) -> dict[str, Any]:
    scored = [row for row in rows if row["kept"] is not None]
    mean = float(np.mean([row["topk"] for row in scored]))

    def column(of: list[dict[str, Any]], key: str, half: float) -> dict[str, float]:
        value = float(np.mean([row[key] for row in of]))
        return {"value": value, "low": value - half, "high": value + half, "n": len(of)}

    eps = [0.025, 0.05, 0.1, 0.2]
    topk = [1 - (1 - mean) * e / 0.1 * 0.6 for e in eps]
    return {
        "protocol": "paper", "map": map_name, "dataset": dataset, "examples": len(rows), "seed": 0,
        "settings": {"eps": 0.1, "steps": 50, "k": 100, "eval_k": 100}, "classes": list(classes),
        "columns": {
            "nat_acc": column(rows, "correct", 0.02), "adv_acc": column(rows, "adv_correct", 0.03),
            "topk": column(scored, "topk", 0.02), "kendall": column(scored, "kendall", 0.015),
            **{key: column(scored, key, 0.01) for key in ("noise_topk", "noise_kendall", "ceiling")},
        },
        "never_kept": float(np.mean([not row["kept"] for row in scored])),
        "curves": {"score_vs_eps": _with_intervals(eps, {"topk": topk, "kendall": [t - 0.2 for t in topk]})},
        "versions": {"torch": "2.13.0"}, "device": "cpu", "seconds": 12.0,
        "command": f"robattr evaluate runs/{dataset}",
    }  # fmt: skip


def _with_intervals(eps: list[float], curves: dict[str, list[float]]) -> dict[str, list[float]]:
    ends = {f"{key}_{end}": [y + half for y in ys] for key, ys in curves.items() for end, half in ENDS.items()}
    return {"eps": eps, **curves, **ends}


def _gallery(
    rng: np.random.Generator, hold: float, classes: tuple[str, ...], count: int, steps: int, *, colour: bool
) -> dict[str, np.ndarray]:
    drawing = np.random.default_rng(7)  # the same images for every model
    label = np.arange(count) % len(classes)
    grey = np.stack([garment(int(c) % 3, drawing) for c in label])
    image = np.repeat(grey[:, None], 3 if colour else 1, axis=1)
    size = np.linspace(1, 25, steps)
    signs = np.sign(ndimage.gaussian_filter(rng.standard_normal((count, 1, *image.shape[1:])), (0, 0, 0, 1, 1)))
    shift = signs * size[None, :, None, None, None]
    perturbed = np.clip(image[:, None] + shift, 0, 255).astype(np.uint8)
    edges = np.stack([ndimage.gaussian_gradient_magnitude(g.astype(float), 1.0) for g in grey])
    before = edges * (0.6 + 0.8 * rng.random(edges.shape))
    other = ndimage.gaussian_filter(rng.random(edges.shape), (0, 1.5, 1.5)) ** 6
    other *= before.mean() / other.mean()
    share = np.linspace(0.1, 1, steps)[None, :, None, None] * (1 - hold)
    after = (1 - share) * before[:, None] + share * 2 * other[:, None]
    topk = np.clip(1 - np.linspace(0.1, 1, steps)[None] * (1 - hold) * (0.8 + 0.4 * rng.random((count, 1))), 0, 1)
    return {
        "id": np.arange(count), "label": label, "image": image, "perturbed": perturbed,
        "before": before.astype(np.float16), "after": after.astype(np.float16),
        "topk": topk, "kendall": topk - 0.2, "iterations": np.linspace(5, 50, steps).astype(int),
        "kept": np.ones((count, steps), dtype=bool),
    }  # fmt: skip


def _json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def _lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def rescore(run: Path, topk: float | None = None, *, examples: int | None = None) -> None:
    """Give the records of a run this mean of topk, or summarise the first ones alone; the summary follows."""
    file = run / "records" / "paper-ig.json"
    rows = [json.loads(line) for line in file.with_suffix(".jsonl").read_text(encoding="utf-8").splitlines()]
    if topk is not None:
        rows = [{**row, "topk": row["topk"] and topk} for row in rows]
        _lines(file.with_suffix(".jsonl"), rows)
    was = json.loads(file.read_text(encoding="utf-8"))
    made = _summary(rows[:examples], 0.5, was["dataset"], was["map"], tuple(was["classes"]))
    change(file, **{key: made[key] for key in ("examples", "columns", "never_kept")})


def change(path: Path, **keys: Any) -> None:
    """Replace keys of a JSON object in a file."""
    _json(path, {**json.loads(path.read_text(encoding="utf-8")), **keys})
