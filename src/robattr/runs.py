"""Open a run: dataset, network, weights and settings, put together for use.

A reference is a run directory, a weights file (.safetensors) or a name of the zoo. Every command, sweep and
reproduction opens its models here.

A file never runs code: a function that a file names is imported only after the user has confirmed it (`trusted`).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from robattr import models, recipes
from robattr._form import check_form, parse_json
from robattr._progress import Progress
from robattr.attacks import integrated_gradients
from robattr.data import Dataset
from robattr.engine.processes import World, choose_device
from robattr.errors import CheckpointError, InvalidInput
from robattr.evaluation import for_dataset
from robattr.evaluation.job import Job
from robattr.metrics import intervals
from robattr.models import zoo
from robattr.models.weights_file import SPEC, locate
from robattr.training import settings
from robattr.training.config import TrainConfig
from robattr.training.run_directory import RunDirectory, read_config
from robattr.training.setup import build_model, load_dataset
from robattr.training.step import validate
from robattr.training.sweep import Measure, Scores

AUDITS = ("audit", "before")  # `method` of the run directories that robattr audit and harden write


@dataclass(frozen=True)
class Run:
    """A trained model in eval mode on the CPU, its dataset, and the settings that trained it (None: unknown)."""

    name: str
    model: nn.Module
    data: Dataset
    config: TrainConfig | None

    def about(self, *, split: str, command: str) -> dict[str, Any]:
        """What the summary of an evaluation says about its model and data."""
        return {"run": self.name, "split": split, "classes": list(self.data.classes), "command": command}


def trusted(name: str, *, of: Path, trust: bool, remedy: str) -> str:
    """`name`, the "package.module:function" in the file `of`, if the user trusts that file.

    Importing it runs code, which may have come with the file. Every name that a file gives passes here.
    """
    if not trust:
        raise InvalidInput(
            f"{of} names code, {name!r}, and robattr does not run what a file names: {remedy}, or confirm it with "
            "--trust-code (in Python trust=True)"
        )
    return name


def open_run(
    reference: str | Path, *, dataset: str | None = None, data_dir: str | Path | None = None, trust: bool = False
) -> Run:
    """The model that `reference` names, with the dataset it was trained on, or with `dataset` (a name or a folder).

    The network is the one that the weights file describes. A user's own (`model = "package.module:function"` in the
    config of a run directory) is built by that function, which is imported only with `trust`.
    """
    directory = RunDirectory(Path(reference).expanduser())
    if directory.config.is_file():
        config: TrainConfig | None = _trained(directory)
        weights = directory.weights
    else:
        weights = _locate(reference)
        config = _stored_config(weights)
    if config and directory.config.is_file() and ":" in config.model:
        trusted(config.model, of=directory.config, trust=trust, remedy=_remedy(config.model, directory))
    data = _data(config, dataset, data_dir, trained_shape(weights), of=reference)
    if config and directory.config.is_file() and (":" in config.model or SPEC not in models.read_metadata(weights)):
        model = models.load_weights(build_model(config, data), weights)
    else:
        model = models.read_model(weights)
    return Run(str(reference), model.eval(), data, config)


def _remedy(model: str, directory: RunDirectory) -> str:
    return f"name it yourself (robattr audit {model} --weights {directory.weights})"


def _data(
    config: TrainConfig | None,
    dataset: str | None,
    data_dir: str | Path | None,
    shape: tuple[int, ...] | None,
    *,
    of: str | Path,
) -> Dataset:
    if config and dataset in (None, config.dataset):
        return load_dataset(config, data_dir, shape)
    if dataset is None:
        raise InvalidInput(f"{of} does not name the dataset it was trained on: add --data")
    return load_dataset(TrainConfig(dataset=dataset), data_dir, shape)


def load_model(reference: str | Path, *, device: torch.device | str = "cpu", trust: bool = False) -> nn.Module:
    """The network that `reference` names, in float32 on `device`, in train mode as torch builds modules.

    `reference` is a safetensors file written by `models.save_model`, a run directory with `model.safetensors`, or a
    name of the zoo such as "gtsrb/ig-sum-norm-tuned". torch's random generator keeps its state. A function that the
    config of a run directory names is imported only with `trust`.
    """
    directory = RunDirectory(Path(reference).expanduser())
    weights = directory.weights
    if directory.config.is_file() and ":" in (name := str(read_config(directory).get("model", ""))):
        trusted(name, of=directory.config, trust=trust, remedy=_remedy(name, directory))
        with torch.random.fork_rng(devices=[]):
            model = models.load_weights(models.from_factory(name), weights)
    else:
        weights = _locate(reference)
        model = models.read_model(weights)
    # Not by nn.Module.__setattr__, like a spec: `audit` resizes a folder's images to it.
    object.__setattr__(model, "trained_shape", trained_shape(weights))
    return model.to(choose_device(str(device)))


def trained_shape(weights: Path) -> tuple[int, ...] | None:
    """(C, H, W) of the square images that the weights were trained on; None where the file does not say."""
    with suppress(KeyError, ValueError):
        found = parse_json(models.read_metadata(weights)["shape"])
        check_form(found, [int])
        if len(found) == 3 and found[1] == found[2]:
            return tuple(found)
    return None


def _locate(reference: str | Path) -> Path:
    """Find the weights file; reject the name of a recipe without published weights."""
    name, known = str(reference), zoo.entries()
    if name in recipes.names() and name not in known and not Path(name).exists():
        available = [f"{name}-tuned"] if f"{name}-tuned" in known else sorted(known)
        raise CheckpointError(
            f"expected trained weights, got the recipe {name!r}: available: {', '.join(available)}; "
            f"robattr train {name} trains it"
        )
    return locate(reference)


def _trained(directory: RunDirectory) -> TrainConfig:
    """The configuration of a finished training run; rejects other run directories and says what to use instead."""
    found, path = read_config(directory), directory.path
    if found.get("method") in AUDITS:
        raise InvalidInput(f"{path} is an audit and has no weights of the audited model: use robattr audit")
    directory.check_bare(
        f"use robattr audit with --weights {directory.weights} and the --mean and --std in {directory.preprocessing}"
    )
    if found.get("recipe") == "harden":
        raise InvalidInput(
            f"{path} was hardened from a model that it does not contain: use robattr audit FACTORY "
            f"--weights {directory.weights}"
        )
    config = _parsed(found)
    if not directory.weights.is_file():
        raise InvalidInput(f"{path} has no weights yet: finish it with robattr train --out {path}")
    return config


def _stored_config(weights: Path) -> TrainConfig | None:
    """The configuration in a weights file that training wrote; None in other files."""
    with suppress(KeyError, ValueError, AttributeError):
        return _parsed(parse_json(models.read_metadata(weights)["config"]))
    return None


def _parsed(stored: Mapping[str, Any]) -> TrainConfig:
    """A stored configuration; the tuned recipes were called `…-fast` at first."""
    config = settings.change(TrainConfig(), stored)
    name = f"{config.recipe.removesuffix('-fast')}-tuned"
    return replace(config, recipe=name) if config.recipe.endswith("-fast") and name in recipes.names() else config


def measure_on_validation(
    examples: int = 100,
    *,
    iterations: int | None = None,
    device: str = "auto",
    data_dir: str | Path | None = None,
    trust: bool = False,
) -> Measure:
    """A measure of run directories for `training.sweep`, on the validation split.

    Accuracy; with examples > 0 also accuracy under PGD, and top-k intersection and Kendall correlation of the IG maps
    of correctly classified examples under the paper's attribution attack, on the first `examples`; with intervals. Its
    ε is the protocol's, the same for all runs, whatever they were trained with.
    `iterations` of that attack replace the protocol's.
    """

    def scores_of(path: Path) -> Scores:
        run = open_run(path, data_dir=data_dir, trust=trust)
        world = World(0, 1, choose_device(device))
        model = run.model.to(world.device)
        n = len(run.data.validation)
        hits = round(n * validate(model, run.data, world=world))
        scores = {"nat_acc": intervals.proportion([1.0] * hits + [0.0] * (n - hits))}
        if not examples:
            return scores
        protocol = for_dataset(run.data)
        protocol = protocol if iterations is None else protocol.with_steps(iterations)
        x, y, ids = run.data.examples("validation", examples)
        map = integrated_gradients(protocol.N)
        with Progress(path.name, "validation examples") as progress:
            job = Job(model, map, x, y, ids.tolist(), protocol, compiled=False, watch=lambda _, *at: progress(*at))
            progress(0, len(x))
            progress.expect(job.seconds(job.passes * len(x)), f"{len(x):,} validation examples")
            records = job.measured()
        scores["adv_acc"] = intervals.proportion(record["adv_correct"] for record in records)
        for column in ("topk", "kendall"):
            known = [record[column] for record in records if record["correct"] and record[column] is not None]
            scores[column] = intervals.mean(known or [0.0])
        return scores

    return scores_of
