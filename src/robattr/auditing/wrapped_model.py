"""The user's model as a network of the formula: inputs within bounds to logits, in float32.

    f(x) = logits(module((x − mean) / std))

The preprocessing is part of the differentiated network: ε, bounds and maps are in the units of the data, not of the
normalised input.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path
from typing import Any, Literal, Self, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from robattr._form import check_form, parse_json
from robattr.errors import CheckpointError, InvalidInput, UnsupportedModel, brief, nearest
from robattr.evaluation.checks import forward
from robattr.formula.ranges import Interval
from robattr.training.run_directory import RunDirectory, read_config

BatchNorm = Literal["frozen", "train"]
QUANTISED = ("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized", "torch.nn.quantized", "torchao.")


@dataclass(frozen=True)
class Preprocessing:
    """(x − mean) / std per channel (axis 1), in the units of the data; one number applies to every channel."""

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        if not self.mean or not self.std or not all(map(isfinite, self.mean)) or any(not 0 < s < inf for s in self.std):
            raise InvalidInput(f"expected a finite mean and positive std, per channel or one for all, got {self}")

    def agrees(self, other: Preprocessing) -> bool:
        """Whether both are the same for every channel, up to the rounding of a file."""
        return all(
            (len(a) == len(b) or 1 in (len(a), len(b))) and np.allclose(a, b, rtol=1e-5, atol=0)
            for a, b in ((self.mean, other.mean), (self.std, other.std))
        )

    @classmethod
    def of(cls, given: Preprocessing | Mapping[str, Any] | None) -> Preprocessing | None:
        """The given value, or one made from `dict(mean=…, std=…)` as in Foolbox."""
        if given is None or isinstance(given, Preprocessing):
            return given
        if not isinstance(given, Mapping):
            raise InvalidInput(f"expected preprocessing=dict(mean=…, std=…), got {brief(given)}")
        if unknown := given.keys() - {"mean", "std", "axis"}:
            raise InvalidInput(f"unknown preprocessing {sorted(unknown)}: expected mean and std, per channel")
        if given.get("axis") not in (None, -3, 1):
            raise InvalidInput(f"expected the channels on axis -3, got axis={given['axis']}: move them there")
        return cls(_tuple(given.get("mean", 0.0)), _tuple(given.get("std", 1.0)))


class WrappedModel(nn.Module):
    """A user's module after its preprocessing; returns logits.

    Its weights are those of `module` under the prefix "module.", which `load_weights` removes. `frozen` names the
    batch-norm layers that stay in eval mode under `train()`.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, module: nn.Module, preprocessing: Preprocessing | None = None) -> None:
        super().__init__()
        self.module = module
        self.preprocessed = preprocessing is not None
        chosen = preprocessing or Preprocessing()
        # Not part of the state: a weights file has the weights alone.
        self.register_buffer("mean", torch.tensor(chosen.mean, dtype=torch.float32), persistent=False)
        self.register_buffer("std", torch.tensor(chosen.std, dtype=torch.float32), persistent=False)
        self.frozen: frozenset[str] = frozenset()

    def forward(self, x: Tensor) -> Tensor:
        return logits(self.module(self.normalise(x)))

    def normalise(self, x: Tensor) -> Tensor:
        if not self.preprocessed:
            return x
        for name, values in (("mean", self.mean), ("std", self.std)):  # broadcasting would make one channel three
            if len(values) not in (1, x.shape[1]):
                raise InvalidInput(f"expected {x.shape[1]} channels in {name}, or one number, got {len(values)}")
        wide = (1, -1, *(1,) * (x.dim() - 2))
        return (x - self.mean.view(wide)) / self.std.view(wide)

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        for name, part in self.named_modules():
            if name in self.frozen:
                part.training = False
        return self

    def freeze(self, *, batch_norm: BatchNorm, layers: Collection[str] = ()) -> None:
        """Freeze the given layers with all inside them, and with "frozen" the statistics of every batch norm.

        A frozen batch (or instance) norm keeps its running statistics but learns its scale and shift, unless its layer
        is frozen. Inside a frozen layer no buffer changes.
        """
        if batch_norm not in ("frozen", "train"):
            raise InvalidInput(f"batch_norm must be 'frozen' or 'train', got {batch_norm!r}")
        names = [name for name, _ in self.module.named_modules() if name]
        layers = [layers] if isinstance(layers, str) else layers
        for layer in layers:
            if layer not in names:
                raise InvalidInput(f"the model has no layer {layer!r} to freeze: {nearest(layer, names)}")
            self.module.get_submodule(layer).requires_grad_(False)
        if not any(p.requires_grad for p in self.parameters()):
            raise InvalidInput("every parameter is frozen, so there is nothing to train: freeze fewer layers")
        chosen = tuple(f"module.{layer}" for layer in layers)
        inside = tuple(f"{layer}." for layer in chosen)
        self.frozen = frozenset(
            name
            for name, part in self.named_modules()
            if (isinstance(part, _NormBase) and batch_norm == "frozen")
            or (next(part.buffers(recurse=False), None) is not None and f"{name}.".startswith(inside))
        )


def logits(out: Any) -> Tensor:
    """The logits in a model's output: a tensor, `.logits` (Hugging Face) or the key "logits"."""
    found = out if isinstance(out, Tensor | Interval) else getattr(out, "logits", None)
    if found is None and isinstance(out, Mapping):
        found = out.get("logits")
    if not isinstance(found, Tensor | Interval):
        raise UnsupportedModel(
            f"expected logits (B, classes), or an output with .logits, got {type(out).__name__}: "
            "wrap the model in a module that returns its logits"
        )
    return cast(Tensor, found)  # or an interval, which stands for one


def wrap(
    model: nn.Module,
    *,
    preprocessing: Preprocessing | Mapping[str, Any] | None = None,
    device: torch.device | str | None = None,
    copy: bool = False,
) -> tuple[WrappedModel, list[str]]:
    """Wrap `model` for an audit; returns it with notes of what was changed in a copy.

    The user's module is never changed. Where its precision, device or layers must change, or with `copy`, a copy is.
    """
    module, notes = unwrap(model)
    for name, part in module.named_modules():
        if type(part).__module__.startswith(QUANTISED):
            raise UnsupportedModel(
                f"expected floating-point layers, got the quantised layer {name or 'itself'}: pass the model from "
                "before quantisation"
            )
    place = None if device is None else torch.device(device)
    tensors = [*module.parameters(), *(b for b in module.buffers() if b.is_floating_point())]
    if any(t.is_meta for t in tensors):
        raise UnsupportedModel(
            "expected a model with weights, got one on the meta device: use .to_empty() and load them"
        )
    kinds = {t.dtype for t in tensors if t.dtype != torch.float32 and t.is_floating_point()}
    synced = sum(isinstance(part, nn.SyncBatchNorm) for part in module.modules())
    moves = place is not None and any(t.device != place for t in tensors)
    if kinds or synced or moves or copy:
        try:
            module = deepcopy(module)
        except (RuntimeError, TypeError) as cause:
            raise UnsupportedModel(
                f"the model cannot be copied ({cause}): give it in float32, on the right device, without SyncBatchNorm"
            ) from cause
    if kinds:
        module = module.float()
        shown = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))
        notes.append(f"weights in {shown} were converted to float32 in a copy, the precision of every derivative here")
    if synced:
        for part in module.modules():
            if isinstance(part, nn.SyncBatchNorm):
                part.__class__ = _PlainBatchNorm  # type: ignore[assignment]  # has the same attributes
        notes.append(f"{synced} SyncBatchNorm layers became plain batch norm in a copy: they have no second derivative")
    made = WrappedModel(module, Preprocessing.of(preprocessing))
    made.training = module.training
    return (made if place is None else made.to(place)), notes


def unwrap(model: nn.Module) -> tuple[nn.Module, list[str]]:
    """The module inside torch.compile, DataParallel and DistributedDataParallel, and a note for each removed."""
    if not isinstance(model, nn.Module):
        raise UnsupportedModel(f"expected a torch.nn.Module, got {type(model).__name__}: wrap the function in a module")
    notes: list[str] = []
    while True:
        inside = getattr(model, "_orig_mod", None)  # in what torch.compile returns
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inside = model.module
        if not isinstance(inside, nn.Module):
            return model, notes
        notes.append(f"taken out of {type(model).__name__}, which has no usable second derivative")
        model = inside


def check_copy(model: nn.Module, copied: WrappedModel, x: Tensor) -> None:
    """Refuse a model whose copy differs at x, because a hook or a closure refers to the original."""
    original, z = unwrap(model)[0], copied.normalise(x.to(copied.mean))
    like = next(original.parameters(), z)
    try:
        expected = logits(_seeded(original, z.to(like)))
    except Exception:  # the model fails on x: `evaluation.checks` says so
        return
    try:
        got = logits(_seeded(copied.module, z))
    except Exception as cause:
        if like.dtype != torch.float32:  # in float32 alone, which `evaluation.checks` says
            return
        fault = f"fails ({type(cause).__name__}: {cause})"
    else:
        tolerance = 1e-3 if like.dtype in (torch.float32, torch.float64) else 0.1  # above √u of float32, or of bfloat16
        gap = (expected.to(got) - got).abs().max() if expected.shape == got.shape else inf
        if not gap > tolerance * got.abs().max():  # NaN is found by `evaluation.checks`
            return
        fault = "returns other logits"
    raise UnsupportedModel(
        f"expected a model that can be copied, got one whose copy {fault}: let hooks write to the module that they are "
        "called with, not to one in a closure"
    )


def _seeded(module: nn.Module, z: Tensor) -> Any:
    """The output at z with a fixed seed."""
    with torch.random.fork_rng([z.device] if z.is_cuda else []):
        torch.manual_seed(0)
        return forward(module, z)


class _PlainBatchNorm(_BatchNorm):
    """Batch norm for inputs of any rank, like SyncBatchNorm."""

    def _check_input_dim(self, input: Tensor) -> None: ...


def check_preprocessing(given: Mapping[str, Sequence[float]], weights: Path | None) -> None:
    """Refuse weights that were hardened with another preprocessing: the outputs would be wrong without an error."""
    here = None if weights is None else RunDirectory(weights.parent)
    if here is None or here.weights != weights:
        return
    if not here.preprocessing.is_file():
        if given and here.config.is_file() and read_config(here).get("recipe") == "harden":
            raise InvalidInput(f"{weights} was hardened without preprocessing: leave --mean and --std away")
        return
    remedy = f"give the --mean and --std in {here.preprocessing}"
    if not given:
        here.check_bare(remedy)
    try:
        saved = parse_json(here.preprocessing.read_text("utf-8"))
        check_form(saved, {"mean": [float], "std": [float]})
    except ValueError as cause:
        raise CheckpointError(f"{here.preprocessing} is damaged ({cause}): harden the model again") from cause
    kept, asked = (Preprocessing(**{key: tuple(each) for key, each in one.items()}) for one in (saved, given))
    if not asked.agrees(kept):
        raise InvalidInput(f"{weights} was hardened with {kept}, got {asked}: {remedy}")


def _tuple(value: float | Sequence[float] | Tensor) -> tuple[float, ...]:
    try:
        return tuple(torch.as_tensor(value, dtype=torch.float64).reshape(-1).tolist())
    except (TypeError, ValueError, RuntimeError) as cause:
        raise InvalidInput(
            f"expected numbers as mean and std, per channel or one for all, got {brief(value)}"
        ) from cause
