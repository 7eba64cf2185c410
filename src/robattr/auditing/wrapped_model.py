"""The user's model as the formula wants it: inputs within bounds go in, logits come out, in float32.

    f(x) = logits(module((x − mean) / std))

The preprocessing is part of the differentiated network: ε, bounds and maps live in the units of the data, not in those
of the normalised input.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from copy import deepcopy
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from robattr.auditing.preprocessing import Preprocessing
from robattr.errors import InvalidInput, RobattrError, UnsupportedModel, nearest
from robattr.formula.checks import check_batch
from robattr.formula.network import second_order

BatchNorm = Literal["frozen", "train"]


class WrappedModel(nn.Module):
    """A user's module behind its preprocessing, answering with logits.

    Its weights are those of `module`, under the prefix "module." that `load_weights` drops again. `still` names the
    batch-norm layers whose statistics `train()` does not wake.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, module: nn.Module, preprocessing: Preprocessing | None = None) -> None:
        super().__init__()
        self.module = module
        self.preprocessed = preprocessing is not None
        chosen = preprocessing or Preprocessing()
        # Not part of the state: the weights alone are what a file of weights holds.
        self.register_buffer("mean", torch.tensor(chosen.mean, dtype=torch.float32), persistent=False)
        self.register_buffer("std", torch.tensor(chosen.std, dtype=torch.float32), persistent=False)
        self.still: frozenset[str] = frozenset()

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
            if name in self.still:
                part.training = False
        return self

    def freeze(self, *, batch_norm: BatchNorm, layers: Collection[str] = ()) -> None:
        """Hold still the given layers and all inside them, and with "frozen" the statistics of every batch norm.

        A frozen batch norm keeps its running statistics and still learns its scale and shift, unless its layer is
        frozen too.
        """
        if batch_norm not in ("frozen", "train"):
            raise InvalidInput(f"batch_norm must be 'frozen' or 'train', got {batch_norm!r}")
        names = [name for name, _ in self.module.named_modules() if name]
        for layer in layers:
            if layer not in names:
                raise InvalidInput(f"the model has no layer {layer!r} to freeze: {nearest(layer, names)}")
            self.module.get_submodule(layer).requires_grad_(False)
        if not any(p.requires_grad for p in self.parameters()):
            raise InvalidInput("every parameter is frozen, so there is nothing to train: freeze fewer layers")
        chosen = tuple(f"module.{layer}" for layer in layers)
        self.still = frozenset(
            name
            for name, part in self.named_modules()
            if isinstance(part, _BatchNorm)
            and (batch_norm == "frozen" or name in chosen or name.startswith(tuple(f"{c}." for c in chosen)))
        )


def logits(out: Any) -> Tensor:
    """The logits of what a model returned: a tensor, or `.logits` (Hugging Face), or the key "logits"."""
    found = out if isinstance(out, Tensor) else getattr(out, "logits", None)
    if found is None and isinstance(out, Mapping):
        found = out.get("logits")
    if not isinstance(found, Tensor):
        raise UnsupportedModel(
            f"expected logits (B, classes), or an output with .logits, got {type(out).__name__}: "
            "wrap the model in a module that returns its logits"
        )
    return found


def wrap(
    model: nn.Module,
    *,
    preprocessing: Preprocessing | Mapping[str, Any] | None = None,
    device: torch.device | str | None = None,
    copy: bool = False,
) -> tuple[WrappedModel, list[str]]:
    """`model` ready for an audit, and what had to be done to it, in sentences.

    The user's module is never changed: where its type, device or layers must be others, a copy is (or with `copy`).
    """
    module, notes = plain(model)
    if layer := _quantised(module):
        raise UnsupportedModel(
            f"expected a model of floats, got the quantised layer {layer}: pass the model that was quantised"
        )
    place = None if device is None else torch.device(device)
    tensors = [*module.parameters(), *(b for b in module.buffers() if b.is_floating_point())]
    kinds = {t.dtype for t in tensors if t.dtype != torch.float32 and t.is_floating_point()}
    synced = [name for name, part in module.named_modules() if isinstance(part, nn.SyncBatchNorm)]
    moves = place is not None and any(t.device != place for t in tensors)
    if kinds or synced or moves or copy:
        module = _copied(module)
    if kinds:
        module = module.float()
        shown = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))
        notes.append(f"weights in {shown} were converted to float32 in a copy, the precision of every derivative here")
    if synced:
        module = _without_sync(module)
        notes.append(
            f"{len(synced)} SyncBatchNorm layers became plain batch norm in a copy: they have no second derivative"
        )
    made = WrappedModel(module, Preprocessing.of(preprocessing))
    made.training = module.training
    return (made if place is None else made.to(place)), notes


def plain(model: nn.Module) -> tuple[nn.Module, list[str]]:
    """The module inside torch.compile, DataParallel and DistributedDataParallel, and a note where there was one."""
    if not isinstance(model, nn.Module):
        raise UnsupportedModel(f"expected a torch.nn.Module, got {type(model).__name__}: wrap the function in a module")
    notes: list[str] = []
    while True:
        if isinstance(model, torch._dynamo.OptimizedModule):
            inside = model._orig_mod
        elif isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inside = model.module
        else:
            return model, notes
        notes.append(f"taken out of {type(model).__name__}, which has no usable second derivative")
        model = inside


def _quantised(model: nn.Module) -> str:
    """The name of a quantised layer, or an empty string: its weights are packed, no parameters."""
    kinds = ("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized", "torch.nn.quantized", "torchao.")
    return next(
        (name or "itself" for name, part in model.named_modules() if type(part).__module__.startswith(kinds)), ""
    )


def _copied(module: nn.Module) -> nn.Module:
    try:
        return deepcopy(module)
    except (RuntimeError, TypeError) as cause:
        raise UnsupportedModel(
            f"the model cannot be copied ({cause}): give it in float32, on the right device, without SyncBatchNorm"
        ) from cause


def check_examples(model: WrappedModel, x: Tensor, y: Tensor) -> None:
    """Refuse examples that the model does not take or has no output for: its own code may raise anything."""
    try:
        check_batch(model, x, y)
    except RobattrError:
        raise
    except Exception as cause:
        reason = (str(cause).strip() or type(cause).__name__).splitlines()[0]
        raise UnsupportedModel(
            f"expected a model that takes examples of shape {tuple(x.shape[1:])} in float32, got one that fails on "
            f"them ({reason}): give them the size and channels it was made for, and cast nothing to another precision "
            "in forward()"
        ) from cause


def check_copy(model: nn.Module, copied: WrappedModel, x: Tensor) -> None:
    """Refuse a copy that does not answer at x as `model` does: it leans on the original, by a closure for instance."""
    z = copied.normalise(x.to(copied.mean))
    wanted, found = _answer(plain(model)[0], z), _answer(copied.module, z)
    converted = any(p.dtype != torch.float32 for p in plain(model)[0].parameters())
    if isinstance(wanted, Exception) or (converted and isinstance(found, Exception)):
        return  # the model itself does not take x, or not in float32: `check_examples` says so
    if isinstance(found, Exception):
        fault = f"fails ({type(found).__name__}: {found})"
    elif not _alike(wanted, found):
        fault = "answers differently"
    else:
        return
    raise UnsupportedModel(
        f"expected a model that can be copied, got one whose copy {fault}: let hooks write to the module they are "
        "called with, not to one that a closure holds"
    )


def _answer(module: nn.Module, z: Tensor) -> Tensor | Exception:
    """The logits at z, or what the module raised."""
    like = next(module.parameters(), z)
    try:
        with second_order(module), torch.no_grad(), torch.random.fork_rng([like.device] if like.is_cuda else []):
            torch.manual_seed(0)
            return logits(module(z.to(like)))
    except Exception as cause:  # an unknown module may fail in any way
        return cause


def _alike(wanted: Tensor, found: Tensor) -> bool:
    slack = 1e-3 if wanted.dtype in (torch.float32, torch.float64) else 0.1  # of the largest logit
    near = float(slack * found.abs().max())
    return wanted.shape == found.shape and torch.allclose(
        wanted.to(found), found, rtol=slack, atol=near, equal_nan=True
    )


def _without_sync(module: nn.Module) -> nn.Module:
    """`module` with every SyncBatchNorm as the batch norm of the same weights and statistics."""
    if isinstance(module, nn.SyncBatchNorm):
        return _PlainBatchNorm.like(module)
    for name, child in module.named_children():
        setattr(module, name, _without_sync(child))
    return module


class _PlainBatchNorm(_BatchNorm):
    """Batch norm for inputs of any rank, as SyncBatchNorm is."""

    @classmethod
    def like(cls, synced: nn.SyncBatchNorm) -> _PlainBatchNorm:
        made = cls(
            synced.num_features,
            synced.eps,
            synced.momentum,
            affine=synced.affine,
            track_running_stats=synced.track_running_stats,
        )
        made.load_state_dict(synced.state_dict())
        made.training = synced.training
        return made.to(next(iter(synced.state_dict().values())).device) if synced.state_dict() else made

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise InvalidInput(f"batch norm expects inputs (B, C, ...), got {tuple(input.shape)}")
