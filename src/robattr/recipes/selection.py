"""How settings are chosen: by validation examples, never by test examples."""

from __future__ import annotations

from pathlib import Path

from robattr import models
from robattr.attacks import integrated_gradients
from robattr.data import Dataset
from robattr.engine.processes import World, choose_device
from robattr.evaluation import Protocol, paper, scaled
from robattr.evaluation.evaluate_batch import evaluate_batch
from robattr.training import settings
from robattr.training.config import TrainConfig
from robattr.training.run_directory import RunDirectory, read_config
from robattr.training.setup import build_model, load_dataset
from robattr.training.step import validate
from robattr.training.sweep import Measure, Scores

BLOCK = 50  # examples attacked together


def measure_on_validation(examples: int = 100, *, device: str = "auto", data_dir: str | Path | None = None) -> Measure:
    """A measure of run directories: accuracy on the validation split, and (examples > 0) the columns of the paper.

    NA accuracy; AA accuracy under PGD; IN, CO top-k intersection and Kendall correlation of the IG maps of correctly
    classified examples under the attribution attack of the paper, on the first `examples` of the split.
    """

    def of(path: Path) -> Scores:
        here = RunDirectory(path)
        run = settings.change(TrainConfig(), read_config(here))
        data = load_dataset(run, data_dir)
        world = World(0, 1, choose_device(device))
        model = models.load_weights(build_model(run, data), here.weights).to(world.device).eval()
        scores = {"nat_acc": validate(model, data, world=world)}
        if not examples:
            return scores
        protocol = protocol_of(run, data)
        x, y, ids = data.examples("validation", examples)
        records = [
            record
            for first in range(0, len(x), BLOCK)
            for record in evaluate_batch(
                model,
                x[first : first + BLOCK].to(world.device),
                y[first : first + BLOCK].to(world.device),
                ids=ids[first : first + BLOCK].tolist(),
                protocol=protocol,
                map=integrated_gradients(protocol.N),
            )
        ]
        scores["adv_acc"] = sum(bool(record["adv_correct"]) for record in records) / len(records)
        for column in ("topk", "kendall"):
            known = [record[column] for record in records if record["correct"] and record[column] is not None]
            scores[column] = sum(known) / len(known) if known else 0.0
        return scores

    return of


def protocol_of(run: TrainConfig, data: Dataset) -> Protocol:
    """The paper's evaluation of the dataset; for a user's own data, the same way scaled to its size and to ε."""
    try:
        return paper(run.dataset)
    except ValueError:
        _, height, width = data.shape
        return scaled(run.dataset, pixels=height * width, bounds=data.bounds, eps=run.eps)
