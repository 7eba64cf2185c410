"""Fine-tune the user's model for robust explanations, with any objective, and audit it before and after."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from robattr import recipes
from robattr._progress import Watch, silent
from robattr.attacks.maps import AttributionMap
from robattr.auditing.as_dataset import Data, as_dataset, check_names, draw
from robattr.auditing.cost import chunk_that_fits
from robattr.auditing.record import Settings, check_examples, measure, record, with_precision
from robattr.auditing.wrapped_model import BatchNorm, Preprocessing, WrappedModel, check_copy, unwrap, wrap
from robattr.data import Dataset
from robattr.engine import precision as arithmetic
from robattr.engine.files import as_path, write_json
from robattr.engine.processes import join
from robattr.errors import CheckpointError, InvalidInput, brief
from robattr.evaluation.summary import compare
from robattr.formula.checks import check_whole
from robattr.metrics.intervals import Comparison
from robattr.reporting import audit_sections
from robattr.reporting.html import write_page
from robattr.reporting.run_results import RunResults
from robattr.reporting.verdict import Verdict, strictest, verdict
from robattr.training import checkpoint
from robattr.training import settings as keys
from robattr.training.config import Objective, TrainConfig
from robattr.training.custom import Custom
from robattr.training.loop import Outcome, train
from robattr.training.run_directory import RunDirectory, read_config
from robattr.training.setup import check_state

CALLED = "robattr.harden(model, data, ...)  # in Python, with the settings listed above"
TUNED_FOR = ("mnist", "fashion-mnist")  # whose recipes have a method's weights for pixels in [0, 1]
ARGUMENTS = {
    "dataset": "data", "model": "model", "recipe": "objective", "method": "objective", "warm_start": "model",
    **{key: key for key in ("eps", "steps", "batch", "lr", "seed", "chunk", "precision")},
}  # fmt: skip
"""Keys of a run that are arguments of `harden`."""


@dataclass(frozen=True)
class Hardened:
    """The fine-tuned copy of the user's module, its audits, and the page that compares them.

    If a signal stopped the training, `after` is None, and the same call continues.
    """

    model: nn.Module
    outcome: Outcome
    before: Verdict
    after: Verdict | None
    difference: Mapping[str, Comparison]
    page: Path | None


def harden(
    model: nn.Module,
    data: Data,
    *,
    objective: str | Objective | Custom = "ig-sum-norm",
    out: str | Path = "hardened",
    bounds: tuple[float, float] = (0.0, 1.0),
    preprocessing: Preprocessing | Mapping[str, Any] | None = None,
    eps: float | None = None,
    steps: int = 300,
    batch: int = 16,
    lr: float = 1e-4,
    batch_norm: BatchNorm = "frozen",
    freeze: Collection[str] = (),
    chunk: int | None = None,
    changes: Mapping[str, Any] | None = None,
    maps: str | AttributionMap | Sequence[str | AttributionMap] = "ig",
    examples: int | None = 50,
    audit_steps: int | None = None,
    points: int | None = None,
    name: str | None = None,
    size: int | None = None,
    channels: int | None = None,
    classes: Sequence[str] | None = None,
    held_out: float = 0.1,
    seed: int = 0,
    device: str = "auto",
    precision: str = "auto",
    fresh: bool = False,
    command: str | None = None,
    watch: Watch = silent,
) -> Hardened:
    """Fine-tune a copy of `model` from its weights and audit it before and after; `model` itself is not changed.

    objective    a method of `robattr train` ("ig-norm", "igr", "madry", …), with the λ of its recipe for pixels in
                 [0, 1], or any objective of the formula
    out          the folder: before/ and hardened/ are run directories, report.html compares them; the same call
                 continues an interrupted one, with `fresh` it begins anew
    batch_norm   "frozen" keeps the running statistics (usual for fine-tuning with small batches); "train" updates them
                 by the clean inputs
    freeze       names of layers that keep their weights
    chunk        nodes of the path in memory at once; None: as many as fit (an objective of your own has its own)
    changes      other keys of `robattr.TrainConfig`, such as dict(weight=0.5, attack_steps=10)
    precision    of matrix products, in the audits and the training; "auto" as in `audit`
    name         of the model, on the page (default: its class)
    held_out     share of each class for validation, and again for the audits, where the data have no splits

    The weights are in hardened/model.safetensors: `robattr.models.load_weights(your_module, file)`. The preprocessing
    is not part of them; it is in hardened/preprocessing.json.
    """
    place = as_path(out)
    RunDirectory(place).check_free("hardening")
    if not isinstance(changes, Mapping | None):
        raise InvalidInput(f"expected changes=dict(weight=0.5, …), got {brief(changes)}")
    check_whole("harden expects a whole number of steps", steps, least=1)
    if own := next((key for key in changes or () if key in ARGUMENTS), None):
        raise InvalidInput(f"{own} cannot be changed: use the argument `{ARGUMENTS[own]}`")
    settings = Settings(eps, maps, "paper", examples, audit_steps, points, seed, precision=precision)
    seed = settings.seed
    given = as_dataset(
        data, model=model, bounds=bounds, size=size, channels=channels, classes=classes, held_out=held_out, seed=seed
    )
    if not len(given.test):
        raise InvalidInput("there are no held-out examples for the audits: raise held_out, or add a test folder")
    asked = {**(changes or {}), **({} if chunk is None else {"chunk": chunk})}
    run = _run(objective, given, settings, steps=steps, batch=batch, lr=lr, seed=seed, changes=asked)
    with join(device) as world:
        tuned, notes = wrap(model, preprocessing=preprocessing, device=world.device, copy=True)
        check_state(tuned.module)
        check_names(classes, tuned, given)
        with arithmetic("fp32", world.device.type):
            check_copy(model, tuned, given.pixels(given.train.images[:2]))
        few = given.pixels(given.train.images[:256]).to(world.device)
        labels = given.train.labels[:256].to(world.device)
        check_examples(tuned, few, labels, given.bounds)
        settings, told = with_precision(settings, tuned, given, few, labels)
        tuned.freeze(batch_norm=batch_norm, layers=freeze)
        config = {
            "name": "Before", "method": "before", "notes": [*notes, *told], "skipped": list(given.skipped),
            "training": {"batch_norm": batch_norm, "freeze": sorted(freeze)},
        }  # fmt: skip
        tuned.eval()
        before = record(
            tuned, given, settings, place / "before",
            config=config, world=world, fresh=fresh, command=command or CALLED, watch=watch,
        )  # fmt: skip
        begun = RunDirectory(place / "hardened")
        was = read_config(begun) if begun.config.exists() and not fresh else {}  # as it began, on any machine
        begun_in = was.get("precision") if precision == "auto" else None
        run = keys.change(run, {"precision": begun_in or settings.precision})
        if run.second_order and run.own is None:
            fits = was["chunk"] if "chunk" in was else chunk_that_fits(tuned, few[:1], m=run.m, batch=batch)
            run = replace(run, chunk=run.chunk or fits)
        if not fresh:
            _check_begun(run, begun, place)
        if world.leads and tuned.preprocessed:
            begun.path.mkdir(parents=True, exist_ok=True)
            write_json(begun.preprocessing, {"mean": tuned.mean.tolist(), "std": tuned.std.tolist()})
        elif world.leads:  # that of an earlier run there
            begun.preprocessing.unlink(missing_ok=True)
        outcome = train(run, begun.path, dataset=given, model=tuned, device=device, fresh=fresh)
        if not outcome.finished:
            return Hardened(_restored(tuned, model), outcome, verdict(before), None, {}, None)
        tuned.eval()
        judged = draw(given, examples, seed=seed)
        _check_answers(tuned, *judged[:2], world.device, outcome.path)
        after = measure(
            tuned, given, judged, settings, outcome.path, world=world, command=command or CALLED, watch=watch
        )
        asked = {key: before.config[key] for key in ("maps", "protocols")}  # both are judged by the same evaluation
        after = replace(after, config={**after.config, **asked})
        first = strictest(before)
        second = next(
            e for e in after.evaluations if all(e.summary[k] == first.summary[k] for k in ("protocol", "map"))
        )
        difference = compare(first.records, second.records)
        page = _page(before, after, place / "report.html", of=name or type(model).__name__) if world.leads else None
    return Hardened(_restored(tuned, model), outcome, verdict(before), verdict(after), difference, page)


def _run(
    objective: str | Objective | Custom,
    data: Dataset,
    settings: Settings,
    *,
    steps: int,
    batch: int,
    lr: float,
    seed: int,
    changes: dict[str, Any],
) -> TrainConfig:
    """A short fine-tuning at the audit's ε, with the given changes."""
    eps = settings.base(data).eps
    named = {"method": objective, **_weights(objective)} if isinstance(objective, str) else {}
    quick = TrainConfig(
        recipe="harden", dataset=data.name, eps=eps, attack_steps=7, step_size=eps / 4, m=10, m_attack=5,
        lr=lr, schedule="cosine", warmup=max(1, steps // 20), steps=steps, batch=batch, seed=seed,
        log_every=max(1, steps // 20), validate_every=max(1, steps // 4), checkpoint_every=max(1, steps // 6),
    )  # fmt: skip
    run = keys.change(quick, {**named, **changes})
    if isinstance(objective, str):
        return run
    own = run.with_objective(objective)
    keys.check_reached(own, changes)
    return own


def _weights(method: str) -> dict[str, Any]:
    """λ and the other weights of a method's recipe, where it has one."""
    found = next((name for dataset in TUNED_FOR if (name := f"{dataset}/{method}") in recipes.names()), None)
    recipe = recipes.get(found) if found else TrainConfig()
    return {key: getattr(recipe, key) for key in ("weight", "weight_l2", "smoothness", "k")}


def _check_begun(run: TrainConfig, begun: RunDirectory, place: Path) -> None:
    """Refuse to continue a hardening of another configuration."""
    if not (begun.config.exists() and checkpoint.listed(begun.checkpoints)):
        return
    if differing := checkpoint.differences(run, read_config(begun)):
        raise CheckpointError(
            f"{place} has a hardening of another configuration ({differing}): choose another folder with -o "
            f"(--weights {begun.weights} starts from its weights), or discard it with --fresh"
        )


def _check_answers(tuned: WrappedModel, x: Tensor, y: Tensor, device: torch.device, place: Path) -> None:
    """Refuse to judge a network that the training has taught to answer nothing rightly."""
    with torch.no_grad():
        for part, expected in zip(x.split(16), y.split(16), strict=True):
            if bool((tuned(part.to(device)).argmax(dim=1).cpu() == expected.cpu()).any()):
                return
    raise InvalidInput(
        f"after the training the model answers none of the {len(x)} held-out examples rightly, so there is nothing to "
        f"judge: lower lr or the objective's weight and begin anew with fresh (the weights are in {place})"
    )


def _restored(tuned: WrappedModel, model: nn.Module) -> nn.Module:
    """The tuned module on the device of the original, with the original's modes and requires_grad."""
    original = unwrap(model)[0]
    for p, was in zip(tuned.module.parameters(), original.parameters(), strict=True):
        p.requires_grad_(was.requires_grad)
    for part, like in zip(tuned.module.modules(), original.modules(), strict=True):
        part.training = like.training
    return tuned.module.to(next(original.parameters()).device)


def _page(before: RunResults, after: RunResults, path: Path, *, of: str) -> Path:
    was, _ = audit_sections.opening(before, title="Before")
    closing = audit_sections.closing(after, notes_of=before)
    verdicts = [was, *audit_sections.opening(after, title=f"After {after.name}")]
    return write_page([before, after], path, title=f"Hardening {of}", opening=verdicts, closing=closing)
