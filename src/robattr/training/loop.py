"""The training loop."""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from robattr import data as datasets
from robattr.data import Batches, Dataset
from robattr.engine import deterministic
from robattr.engine.files import as_path
from robattr.engine.processes import join
from robattr.engine.signals import stop_signals
from robattr.errors import Diverged, InvalidInput, brief
from robattr.training import checkpoint
from robattr.training.batchnorm import over_global_batch
from robattr.training.config import Objective, TrainConfig
from robattr.training.log import Log
from robattr.training.run_directory import claim
from robattr.training.setup import init_or_resume, load_dataset, save, save_weights
from robattr.training.step import train_step, validate


@dataclass(frozen=True)
class Outcome:
    """How a run ended: finished, or stopped by a signal after the checkpoint of `step`."""

    path: Path
    step: int
    finished: bool
    stopped_by: int | None = None
    val_accuracy: float | None = None


def train(
    run: TrainConfig,
    out: str | Path,
    *,
    objective: Objective | None = None,
    dataset: Dataset | None = None,
    model: nn.Module | None = None,
    device: str = "auto",
    data_dir: str | Path | None = None,
    fresh: bool = False,
) -> Outcome:
    """Train as `run` says, in the directory `out`, or continue the run in it; with `fresh`, discard that run first.

    `objective` replaces the method of `run`: any `Robust` or `Distributional`, or a function rho(model, x, y) that
    returns a `Rho`. `dataset` and `model` replace those that `run` names; the model is trained in place, all of it in
    train mode. Under `torchrun` every process makes the same call. A run that is killed and continued ends with the
    same weights as an uninterrupted one, on a CPU bit for bit.
    """
    if not isinstance(run, TrainConfig):
        raise InvalidInput(f"expected a TrainConfig, such as recipes.get('mnist/ig-norm'), got {brief(run)}")
    for name, value, kind in (("dataset", dataset, Dataset), ("model", model, nn.Module)):
        if value is not None and not isinstance(value, kind):
            raise InvalidInput(f"expected {name} to be a {kind.__name__}, got {brief(value)}: its name goes into `run`")
    run = run if objective is None else run.with_objective(objective)
    if dataset is not None and run.dataset in datasets.names():
        run = replace(run, dataset=dataset.name)
    with (
        join(device) as world,
        claim(as_path(out), run, world=world, fresh=fresh) as here,
        deterministic(run.deterministic),
        torch.random.fork_rng(devices=[world.device] if world.device.type == "cuda" else []),
    ):
        dtype = torch.float64 if run.precision == "fp64" else torch.float32
        data = dataset or load_dataset(run, data_dir)
        data = data.full() if run.full else data
        batches = Batches(data, size=run.batch, seed=run.seed, mirror=run.mirror, device=world.device)
        share = world.share(batches.size)
        state, notes = init_or_resume(run, here, data=data, model=model, world=world, dtype=dtype)
        val_accuracy, stopped_by = None, None

        def due(every: int) -> bool:
            return step == run.steps or (every > 0 and step % every == 0)

        with (
            Log(here, run, step=state.step, silent=not world.leads) as log,
            stop_signals() as signals,
            over_global_batch(state.model.train(), world),
        ):
            log.say(*notes)
            while state.step < run.steps and stopped_by is None:
                x, y = batches.batch(state.step)
                x = x[share].to(dtype).contiguous(memory_format=state.layout)
                step = state.step + 1
                state.apply_ramps(run, data.bounds)
                try:
                    metrics = train_step(
                        state, run, x, y[share], batch=batches.size, world=world, measure=due(run.log_every),
                        read=due(run.checkpoint_every) or bool(signals), stopping=bool(signals),
                    )  # fmt: skip
                    if due(run.checkpoint_every):
                        state.check_finite()
                except Diverged as error:
                    if world.leads:  # the latest checkpoint may be the one that diverges
                        checkpoint.remove_from(here.checkpoints, state.step)
                    last = checkpoint.listed(here.checkpoints)
                    raise Diverged(
                        f"{error}. The run diverged and was stopped. {run.advice()}. The last good state is "
                        f"{last[-1].path if last else 'on the leading machine'}: a new run can start there with "
                        f"--set warm_start={here.path}"
                    ) from None
                log.say(*state.engine.notes)
                if metrics and due(run.log_every):
                    log.write({"step": step, **metrics.record(state, run), **log.pace(step)})
                log.advance(step)
                if due(run.validate_every) and len(data.validation):
                    with state.averaged_weights() as averaged:
                        val_accuracy = validate(averaged, data, world=world)
                    log.write({"step": step, "val_accuracy": val_accuracy})
                if (metrics and metrics.stopping) or (
                    signals and world.size == 1
                ):  # several processes agree one step later
                    stopped_by = signals[0] if signals else signal.SIGTERM
                if world.leads and (due(run.checkpoint_every) or stopped_by is not None):
                    log.sync()
                    save(state, run, here)

        finished = state.step >= run.steps
        if finished:
            state.use_average()
            if world.leads:
                save_weights(state.model, run, here, data)
        return Outcome(here.path, state.step, finished, stopped_by, val_accuracy)
