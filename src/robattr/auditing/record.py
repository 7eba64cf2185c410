"""An audit on disk: a run directory like any other, so that it can be interrupted, continued and rendered."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from torch import Tensor

from robattr.attacks.maps import saliency
from robattr.auditing.as_dataset import chosen, digest
from robattr.auditing.settings import Settings
from robattr.auditing.wrapped_model import WrappedModel, check_examples
from robattr.data import Dataset
from robattr.engine.files import locked, write_atomically
from robattr.engine.processes import World
from robattr.errors import CheckpointError, InvalidInput
from robattr.evaluation.run import OutputDir, digest_of_weights, evaluate
from robattr.reporting.runs import RunResults, read_run
from robattr.training.run_directory import RunDirectory, environment, read_config

# An audit is continued where these agree: a refused one must leave no name or command behind on another's records.
DECISIVE = ("dataset", "bounds", "preprocessing", "examples", "training", "attack", "weights")

Watch: TypeAlias = Callable[[str, int, int], None]
"""watch(title, done, total): told how far each evaluation is."""


def silent(title: str, done: int, total: int) -> None:
    """Watches nothing."""


def record(
    model: WrappedModel,
    data: Dataset,
    settings: Settings,
    folder: Path,
    *,
    config: Mapping[str, Any],
    world: World,
    fresh: bool = False,
    command: str | None = None,
    watch: Watch = silent,
) -> RunResults:
    """Make `folder` the run directory of an audit of `model`; what an earlier, interrupted one recorded is kept."""
    x, y, ids = chosen(data, settings.examples, seed=settings.seed)
    if not len(x):
        raise InvalidInput("there are no examples to audit: the data are empty")
    base = settings.base(data)
    full = {
        **config,
        "dataset": data.name,
        "bounds": list(data.bounds),
        "preprocessing": {"mean": model.mean.tolist(), "std": model.std.tolist()} if model.preprocessed else None,
        "maps": [map.name for map in settings.chosen_maps(data)],
        "protocols": settings.asked,
        "examples": digest(x, y),
        "seed": settings.seed,
        "attack": {"eps": base.eps, "steps": base.steps, "points": base.N, "seed": base.seed},
        "weights": digest_of_weights(model),
    }
    if world.leads:
        _claim(RunDirectory(folder), full, world, command=command, fresh=fresh)
    return measure(model, data, (x, y, ids), settings, folder, world=world, command=command, watch=watch)


def measure(
    model: WrappedModel,
    data: Dataset,
    examples: tuple[Tensor, Tensor, list[int]],
    settings: Settings,
    folder: Path,
    *,
    world: World,
    command: str | None = None,
    watch: Watch = silent,
) -> RunResults:
    """Every protocol and map that `settings` asks for, recorded in the run directory `folder`."""
    x, y, ids = examples
    check_examples(model, x.to(world.device), y.to(world.device))
    about = {"run": folder.name, "classes": list(data.classes), "command": command}
    records = folder / "records"
    for map in settings.chosen_maps(data):
        values = int(saliency(map, model, x[:1].to(world.device), y[:1].to(world.device)).numel())
        for protocol in settings.protocols(data, values=values):
            evaluate(
                model, x, y,
                protocol=protocol, map=map, ids=ids, place=OutputDir(records, world.rank, world.size),
                arithmetic="fp32",  # a foreign network: no rounding but its own
                compiled=settings.compiled and map.guide is None,  # a foreign method cannot be compiled
                about={key: value for key, value in about.items() if value is not None},
                progress=partial(watch, f"{protocol.name} {map.name}"),
            )  # fmt: skip
    return read_run(folder)


def _claim(here: RunDirectory, config: Mapping[str, Any], world: World, *, command: str | None, fresh: bool) -> None:
    """Write down what is audited, or see that an earlier audit in this place was of the same."""
    page = config.get("method") == "audit"  # harden has a folder instead, of which nothing is begun anew
    elsewhere = f"choose another {'page' if page else 'folder'} with -o"
    foreign = here.path.exists() and not (here.path.is_dir() and (here.config.exists() or not any(here.path.iterdir())))
    if foreign:
        raise CheckpointError(f"{here.path} exists and is not an audit: {elsewhere}")
    here.path.mkdir(parents=True, exist_ok=True)
    with locked(here.path):
        begun = any((here.path / "records").glob("*"))  # else a mistake was refused, and nothing is lost
        was = read_config(here) if begun and here.config.exists() else None
        odd = [key for key in DECISIVE if was and was.get(key) != config.get(key)]
        if odd and not fresh:
            raise CheckpointError(
                f"{here.path} holds an audit of other data or settings ({', '.join(odd)}): {elsewhere}"
                + (", or begin anew with --fresh" if page else "")
            )
        for stale in (here.path / "records").glob("*") if fresh else ():
            stale.unlink()
        made = environment(world) if command is None else {**environment(world), "command": command}
        for path, content in ((here.config, config), (here.environment, made)):
            write_atomically(path, (json.dumps(content, indent=2) + "\n").encode())
