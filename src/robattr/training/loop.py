"""The training loop, top to bottom."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from robattr.data import Batches, Dataset
from robattr.engine import deterministic, layout
from robattr.engine.processes import World, join
from robattr.errors import Diverged, InvalidInput
from robattr.training import checkpoint
from robattr.training.batchnorm import over_global_batch
from robattr.training.config import IN_A_BALL, WEIGHTED, TrainConfig
from robattr.training.log import Log, Silence
from robattr.training.run_directory import RunDirectory, claim
from robattr.training.setup import init_or_resume, load_dataset, save, save_weights
from robattr.training.signals import Stop
from robattr.training.state import TrainState
from robattr.training.step import StepMetrics, correct, has_ig, train_step


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
    dataset: Dataset | None = None,
    model: nn.Module | None = None,
    device: str = "auto",
    data_dir: str | Path | None = None,
    resume: bool = False,
) -> Outcome:
    """Train as `run` says, in the directory `out`; with `resume`, continue what is there (or begin, if nothing is).

    `dataset` and `model` replace those that `run` names; the model is trained in place. Under `torchrun`
    every process calls this alike. A run that is killed and resumed ends with the same weights, bit for bit
    on a CPU, as one that was not.
    """
    with (
        join(device) as world,
        claim(Path(out), run, world=world, resume=resume) as here,
        deterministic(run.deterministic),
        torch.random.fork_rng(devices=[world.device] if world.device.type == "cuda" else []),
    ):
        dtype = torch.float64 if run.precision == "fp64" else torch.float32
        data = dataset or load_dataset(run, data_dir)
        batches = Batches(data, size=run.batch, seed=run.seed, mirror=run.mirror, device=world.device)
        share = world.share(batches.size)
        state, notes = init_or_resume(run, here, data=data, model=model, world=world, dtype=dtype)
        val_accuracy, stopped_by = None, None

        with (
            Log(here, run, step=state.step) if world.leads else Silence() as log,
            Stop() as stop,
            over_global_batch(state.model.train(), world),
        ):
            while state.step < run.steps and stopped_by is None:
                x, y = batches.batch(state.step)
                step = state.step + 1
                logging = due(step, run.log_every, run)
                state.follow(run, data.bounds)
                try:
                    report = train_step(
                        state, run, x[share].to(dtype).contiguous(memory_format=layout(run.precision, x)), y[share],
                        batch=batches.size, world=world, measure=logging, stopping=stop.signal is not None,
                    )  # fmt: skip
                    if due(step, run.checkpoint_every, run):
                        state.check_finite()
                except Diverged as error:
                    if world.leads:  # the state that the step failed at is no good one
                        checkpoint.forget_from(here.checkpoints, state.step)
                    raise Diverged(f"{error}. {advice(run, here)}") from None
                log.say(*notes, *state.engine.notes)
                log.reached(step)
                if logging:
                    log.write({"step": step, **figures(report, state, run), "rate": log.rate(step)})
                if due(step, run.validate_every, run) and len(data.validation):
                    with state.at_average() as model:
                        val_accuracy = validate(model, data, world=world)
                    log.write({"step": step, "val_accuracy": val_accuracy})
                if report.stopping or (stop.signal and world.size == 1):  # many processes agree one step later
                    stopped_by = stop.signal or signal.SIGTERM
                if world.leads and (due(step, run.checkpoint_every, run) or stopped_by is not None):
                    log.sync()
                    save(state, run, here)

        finished = state.step >= run.steps
        if finished:
            state.settle()
            if world.leads:
                save_weights(state.model, run, here)
        return Outcome(here.path, state.step, finished, stopped_by, val_accuracy)


def due(step: int, every: int, run: TrainConfig) -> bool:
    """Whether what is done `every` so many steps (0: never), and at the end, is done after `step`."""
    return step == run.steps or (every > 0 and step % every == 0)


def figures(report: StepMetrics, state: TrainState, run: TrainConfig) -> dict[str, float]:
    """A line of `metrics.jsonl`: means over the batch, whatever `reduction` is.

    The penalty is before λ; `ig` is the size of IG alone, where ρ holds it.
    """
    now = run.at(state.step - 1)
    line = {
        "loss": report.loss, "penalty": report.penalty, "value": report.value, "accuracy": report.accuracy,
        "lr": run.rate(state.step - 1), "weight": now.weight, "eps": now.eps, "grad_norm": report.grad_norm,
    }  # fmt: skip
    if has_ig(state.objective):
        line["ig"] = report.ig
    return line if state.gamma is None else {**line, "cost": report.cost, "gamma": float(state.gamma)}


def validate(model: nn.Module, data: Dataset, *, world: World, chunk: int = 500) -> float:
    """Accuracy on the validation split, its chunks dealt out to the processes."""
    split, dtype = data.validation, next(model.parameters()).dtype
    if not len(split):
        raise InvalidInput(
            f"{data.name} has no validation examples to compare runs on: bring ten or more of each class, or a folder "
            "validation/ beside train/"
        )
    counts = torch.zeros(2, device=world.device)
    for first in range(world.rank * chunk, len(split), world.size * chunk):
        x = data.pixels(split.images[first : first + chunk].to(world.device)).to(dtype)
        y = split.labels[first : first + chunk].to(world.device)
        counts += torch.stack([correct(model, x, y), torch.tensor(len(y), device=world.device)])
    hits, total = world.total(counts).tolist()
    return float(hits / total)


def advice(run: TrainConfig, here: RunDirectory) -> str:
    """What to do about divergence (the paper: too large a λ cannot converge)."""
    kept = checkpoint.listed(here.checkpoints)
    piecewise = run.schedule == "piecewise"
    lower = [f"rates (η, now {run.rates})" if piecewise else f"lr (η, now {run.lr:g})"]
    further = ["clip"]
    if run.method in WEIGHTED:
        lower.insert(0, f"weight (λ, now {run.weight:g})")
        further.append("weight_ramp")
    if run.method in IN_A_BALL:
        lower.append(f"eps (ε, now {run.eps:g})")
        further.append("eps_ramp")
    return (
        f"The run diverged and was stopped. Lower {', '.join(lower)}; or set {' or '.join(further)}. The last good "
        f"state is {kept[-1].path if kept else 'not on this machine'}: a new run can begin there with "
        f"--set warm_start={here.path}"
    )
