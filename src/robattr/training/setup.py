"""Setting up a run: dataset, network, first or latest checkpoint; and saving its final weights."""

from __future__ import annotations

import json
from contextlib import suppress
from inspect import signature
from pathlib import Path

import torch
from torch import Tensor, nn

from robattr import data as datasets
from robattr import models
from robattr._form import parse_json
from robattr.data import Dataset
from robattr.engine import Step, layout
from robattr.engine.processes import World
from robattr.errors import CheckpointError, InvalidInput, RobattrError, UnsupportedModel, nearest
from robattr.formula.checks import check_batch
from robattr.models.by_name import DEFAULTS
from robattr.models.weights_file import locate
from robattr.training import checkpoint
from robattr.training.config import TrainConfig
from robattr.training.run_directory import RunDirectory
from robattr.training.state import TrainState, make_optimizer


def init_or_resume(
    run: TrainConfig, here: RunDirectory, *, data: Dataset, model: nn.Module | None, world: World, dtype: torch.dtype
) -> tuple[TrainState, list[str]]:
    """The state to continue from, the same on every process, and notes for the user.

    A new run writes the checkpoint of step 0 and continues from it, so that there is always a checkpoint, and starting
    and resuming are the same.
    """
    torch.manual_seed(run.seed)
    model = (model or build_model(run, data)).to(world.device, dtype)
    one = data.pixels(data.train.images[:1]).to(world.device, dtype)
    check_fit(model, data, one)
    arithmetic = "fp32" if run.precision == "fp64" else run.precision
    form = _lay_out(model, one, layout(arithmetic, one))
    engine = Step(model, compiled=run.compiles(world.device.type), arithmetic=arithmetic)
    averaged = {name: p.detach().clone() for name, p in model.named_parameters()} if run.average else None
    objective, optimizer = run.objective(data.bounds), make_optimizer(run, model)
    state = TrainState(model, optimizer, objective, engine, data.digest, averaged, layout=form)
    content, notes = None, run.unreached()
    if run.batch > len(data.train):
        notes.append(f"batch={run.batch} exceeds the training set: every step uses all {len(data.train)} examples")
    if world.leads:
        content, refused = checkpoint.load_latest(here.checkpoints, run)
        if content is None:
            if run.warm_start:
                notes += _leaks(load_weights(model, run.warm_start), run)
            content = save(state, run, here)
        notes += [f"skipped a checkpoint: {reason}" for reason in refused]
    kept = checkpoint.unpack(world.from_leader(content))
    if kept.get("data", state.data) != state.data:
        raise CheckpointError(
            f"{here.path} was started on other data (images, labels or classes differ): use those, or choose another "
            "--out"
        )
    try:
        state.restore(kept)
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:  # names, shapes or groups differ
        first = str(error).replace(":\n", "\n").splitlines()[:2][-1].strip()
        raise CheckpointError(
            f"{here.path} was started with another network ({first}): use that one, or choose another --out"
        ) from error
    if world.leads:
        checkpoint.tidy(here.checkpoints, step=state.step, keep=run.keep)  # a kill may have prevented it
    if world.leads and state.step < run.steps:
        here.weights.unlink(missing_ok=True)  # of fewer steps; the file marks a finished run
    return state, notes


def save(state: TrainState, run: TrainConfig, here: RunDirectory) -> bytes:
    """Write the checkpoint of this step and return its content."""
    content = checkpoint.pack(state.snapshot(), run)
    here.check_held()
    checkpoint.save(here.checkpoints, content, step=state.step, keep=run.keep)
    return content


def load_dataset(run: TrainConfig, data_dir: str | Path | None = None, shape: tuple[int, ...] | None = None) -> Dataset:
    """The dataset that `run` names: one of ours, or a folder of images, which get the given shape (C, H, W)."""
    if run.dataset in datasets.names():
        found = datasets.load(run.dataset, data_dir)
    elif run.dataset and Path(run.dataset).expanduser().is_dir():  # "" would be the current folder
        channels, size, _ = shape or (3, 64, 64)
        found = datasets.from_folder(run.dataset, channels=channels, size=size)
    else:
        raise InvalidInput(
            f"{run.dataset!r} is neither a dataset nor a folder of class folders of images: "
            f"{nearest(run.dataset, datasets.names())}"
        )
    return found.full() if run.full else found


def build_model(run: TrainConfig, data: Dataset) -> nn.Module:
    """The network that `run` names: the dataset's own, one of ours sized to the data, or a user's `module:function`."""
    if not run.model and data.name in DEFAULTS:
        return models.for_dataset(data.name)
    if ":" in run.model:
        return models.from_factory(run.model)
    name = run.model or "small_cnn"
    if name not in models.architectures:
        raise InvalidInput(
            f"unknown model {name!r} (a network of yours is named package.module:function; those of the tuned recipes "
            f"need `import robattr.recipes`): {nearest(name, models.architectures)}"
        )
    if data.train.images.ndim != 4:
        raise InvalidInput(
            f"{name} expects images (C, H, W), got inputs of shape {tuple(data.train.images.shape[1:])} in "
            f"{data.name}: bring a network of your own, model=package.module:function"
        )
    channels, size, _ = data.shape
    fits = {"classes": len(data.classes), "channels": channels, "size": size, "scale": 255 / data.bounds[1]}
    make = models.architectures[name]
    return make(**{key: value for key, value in fits.items() if key in signature(make).parameters})


def check_state(model: nn.Module) -> None:
    """Reject a model whose state a weights file cannot store."""
    for name, value in model.state_dict().items():
        if not isinstance(value, Tensor):
            raise UnsupportedModel(
                f"expected a state_dict of tensors only, got {name!r} of type {type(value).__name__}: remove it from "
                "get_extra_state()"
            )


def check_fit(model: nn.Module, data: Dataset, x: Tensor) -> None:
    """Reject a network that cannot be trained on data like x, before anything is written."""
    if not any(p.requires_grad for p in model.parameters()):
        raise UnsupportedModel("no parameter of the network requires a gradient: nothing to train")
    check_state(model)
    try:
        outputs = check_batch(model, x, torch.zeros(1, dtype=torch.int64, device=x.device))
    except RobattrError:
        raise
    except Exception as error:  # any type: torchvision rejects sizes by AssertionError
        raise UnsupportedModel(
            f"the network fails on inputs of {data.name}, of shape {tuple(x.shape[1:])}: "
            f"{str(error).partition(chr(10))[0]} (data.from_folder sets the size and channels of a folder's images)"
        ) from error
    if outputs < len(data.classes):
        raise UnsupportedModel(
            f"the network has {outputs} outputs, but {data.name} has {len(data.classes)} classes: add outputs"
        )


def _lay_out(model: nn.Module, x: Tensor, form: torch.memory_format) -> torch.memory_format:
    """Lay the kernels of `model` out in memory as `form` says; as they were, where a `view` inside it refuses that."""
    model.to(memory_format=form)  # type: ignore[call-overload]
    if form == torch.contiguous_format:
        return form
    try:
        check_batch(model, x.contiguous(memory_format=form), torch.zeros(1, dtype=torch.int64, device=x.device))
    except RuntimeError:
        form = torch.contiguous_format
        model.to(memory_format=form)  # type: ignore[call-overload]
    return form


def _leaks(start: Path, run: TrainConfig) -> list[str]:
    """A note where a run that holds out the validation images starts from weights that were trained on them."""
    with suppress(KeyError, ValueError, CheckpointError):
        config = parse_json(models.read_metadata(start)["config"])
        if config["full"] and not run.full and config["dataset"] == run.dataset:
            return [f"the weights of {run.warm_start} were trained on the validation images, too: their scores mislead"]
    return []


def load_weights(model: nn.Module, ref: str) -> Path:
    """Warm start: the weights of a finished run, of an unfinished one's last checkpoint, of a file or of the zoo.

    Returns their file.
    """
    path = Path(ref).expanduser()
    unfinished = RunDirectory(path)
    unfinished.check_bare("warm_start must name weights that take the images as they are")
    kept = [] if unfinished.weights.exists() else checkpoint.listed(unfinished.checkpoints)
    if kept:
        checkpoint.load(kept[-1])  # raises if it is damaged
        path = kept[-1].path
    elif not path.is_file():
        try:
            path = locate(ref)
        except CheckpointError as cause:
            raise CheckpointError(
                f"no weights to start from: {cause}. Train that run first, or let warm_start name a finished one"
            ) from cause
    models.load_weights(model, path)
    return path


def save_weights(model: nn.Module, run: TrainConfig, here: RunDirectory, data: Dataset) -> None:
    """Write the final weights to `model.safetensors`, with the configuration and the shape of an input as metadata."""
    about = {"recipe": run.recipe, "dataset": run.dataset, "method": run.method, "seed": str(run.seed)}
    here.check_held()
    about |= {"config": json.dumps(run.as_dict()), "shape": json.dumps(list(data.train.images.shape[1:]))}
    models.save_model(model, here.weights, metadata=about)
