"""Checks of models, batches, numbers and the parts of an objective."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import Signature, signature
from math import isfinite
from numbers import Integral, Real

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from robattr.errors import InvalidInput, UnsupportedModel, brief, shape_of
from robattr.formula.network import Bound, Model, bind, no_gradient, second_order


def check_model(model: Model) -> None:
    """Refuse models that cannot be differentiated twice."""
    if not callable(model) or isinstance(model, type):
        got = f"the class {model.__name__}: call it" if isinstance(model, type) else type(model).__name__
        raise UnsupportedModel(f"expected a model (an nn.Module or a callable returning logits), got {got}")
    parts = dict(model.named_modules()) if isinstance(model, nn.Module) else {"": model}
    for name, part in parts.items():
        if _compiled(part):
            raise UnsupportedModel(
                f"expected a plain model, got {f'a layer {name!r}' if name else 'one'} already compiled by "
                "torch.compile, which has no second derivative: pass the original (model._orig_mod); robattr compiles "
                "the gradient itself"
            )
        if isinstance(part, torch.jit.ScriptModule):
            raise UnsupportedModel(
                "expected a plain module, got TorchScript, whose parameters cannot be replaced: pass the eager module"
            )
    if not isinstance(model, nn.Module):
        return
    if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
        raise UnsupportedModel(
            f"expected a plain module, got {type(model).__name__}, whose gradients are wrong for attributions: "
            "use robattr.integrations.rho_of(rho, model, x, y), or pass model.module and average the gradients yourself"
        )
    for name, m in model.named_modules():
        if isinstance(m, nn.SyncBatchNorm):
            raise UnsupportedModel(
                f"layer {name!r} is a SyncBatchNorm, which has no second derivative: use nn.BatchNorm2d "
                "(robattr train keeps its statistics equal on all processes)"
            )
        if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.running_mean is None:
            raise UnsupportedModel(
                f"layer {name!r} is a batch norm without running statistics, so that outputs depend on the batch: set "
                "track_running_stats=True, or normalise per example"
            )
    for name, p in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(p):
            raise UnsupportedModel(
                f"{name!r} of a lazy layer has no shape yet: call the model once on an example first"
            )
        buffer, remedy = not isinstance(p, nn.Parameter), "build the model outside torch.inference_mode()"
        _check_stored(f"{name!r} of the model", p, remedy=remedy, buffer=buffer)
    for name, p in model.named_parameters():
        if not p.is_floating_point():
            raise UnsupportedModel(
                f"expected real parameters, got {p.dtype} in {name!r}: attributions of complex or integer networks are "
                "not defined"
            )
        if p.dtype in (torch.float16, torch.bfloat16):
            raise UnsupportedModel(
                f"expected float32 or float64 parameters, got {p.dtype} in {name!r}, where second derivatives "
                "overflow or vanish silently: call model.float() (reduced precision is an option of the engine)"
            )


def _compiled(part: object) -> bool:
    """Whether `part` is what torch.compile returns for a module or a function, or a module after module.compile()."""
    if isinstance(part, nn.Module):
        dynamo = sys.modules.get("torch._dynamo.eval_frame")  # slow to import, and imported once anything is compiled
        return isinstance(part, getattr(dynamo, "OptimizedModule", ())) or part._compiled_call_impl is not None
    return hasattr(part, "_torchdynamo_orig_callable")


def check_batch(model: Model, x: Tensor, y: Tensor, *others: Tensor, finite: bool = True) -> int:
    """Check x, y and every further point x' against the model; returns its number of classes.

    Refuses points that are not finite, unless told not to. Runs the model on one example, in eval mode and without a
    graph, to learn the shape of its output.
    """
    if torch.is_inference_mode_enabled():
        raise no_gradient()
    for name, z in (("x", x), *(("x'", z) for z in others)):
        _check_points(name, z, finite=finite)
        if z.shape != x.shape:
            raise InvalidInput(f"expected x and {name} of one shape, got {tuple(x.shape)} and {tuple(z.shape)}")
        _check_alike(f"x and {name}", x, z)
    kinds = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
    if not isinstance(y, Tensor) or not (y.dtype in kinds or y.is_floating_point()):
        got = f"a tensor of {y.dtype}" if isinstance(y, Tensor) else type(y).__name__
        raise InvalidInput(f"expected integer class labels y, got {got}: use y.long()")
    if not y.is_floating_point() and y.shape != x.shape[:1]:
        raise InvalidInput(f"expected labels of shape ({len(x)},), one per example, got {tuple(y.shape)}")
    if y.device != x.device:
        raise InvalidInput(f"expected x and y on one device, got {x.device} and {y.device}: use y.to(x.device)")
    _check_stored("y", y, remedy="use y.clone()")
    with torch.no_grad(), second_order(model), explain_mismatch(model, x):
        logits = model(x[:1].clone())  # a model that overwrites its input is refused later, with x as it was
    if not isinstance(logits, Tensor) or logits.dim() != 2 or len(logits) != 1:
        raise UnsupportedModel(
            f"expected logits of shape (B, classes), got {shape_of(logits)} for B = 1: wrap the model so that it "
            "returns them"
        )
    classes = logits.shape[1]
    if y.is_floating_point():  # soft labels, or targets of regression
        if y.shape != (len(x), classes) and not (classes == 1 and y.shape == x.shape[:1]):
            raise InvalidInput(
                f"expected integer class labels y of shape ({len(x)},), or real targets of shape "
                f"({len(x)}, {classes}), one per output, got {y.dtype} of shape {tuple(y.shape)}: use y.long()"
            )
        if not torch.isfinite(y).all():
            raise InvalidInput("expected finite y, got NaN or infinite values: clean the data first")
        return classes
    low, high = int(y.min()), int(y.max())
    if classes == 1 and high > 0:
        check_classes(classes)
    if low < 0 or high >= classes:
        raise InvalidInput(
            f"expected labels in 0..{classes - 1} (the model has {classes} outputs), got {low}..{high}: number the "
            "classes in the order of the outputs"
        )
    return classes


@contextmanager
def checked(model: Model, x: Tensor, x1: Tensor, y: Tensor) -> Iterator[Bound]:
    """While open, the bound network in eval mode, after the checks of model and batch; a `Bound` passes unchecked."""
    if isinstance(model, Bound):
        yield model
        return
    check_model(model)
    check_batch(model, x, y, x1)
    with second_order(model):
        yield bind(model)


def check_callable(what: str, value: object) -> None:
    """Refuse what cannot be called."""
    if not callable(value):
        raise InvalidInput(f"{what}, got {brief(value)}")


def check_whole(what: str, value: object, *, least: int) -> None:
    """Refuse what is not a whole number ≥ `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise InvalidInput(f"{what} ≥ {least}, got {value!r}")


def check_seed(seed: object) -> None:
    """Refuse what torch's generators do not take as a seed."""
    if isinstance(seed, bool) or not isinstance(seed, Integral) or not 0 <= int(seed) < 2**63:
        raise InvalidInput(f"expected a seed of at least 0, below 2**63, got {seed!r}")


def check_number(what: str, value: object, *, positive: bool = False) -> None:
    """Refuse what is not a finite number ≥ 0, or > 0."""
    number = isinstance(value, Real) and not isinstance(value, bool) and isfinite(value)
    if not number or value < 0 or (positive and value == 0):  # type: ignore[operator]
        raise InvalidInput(f"{what} {'>' if positive else '≥'} 0, got {value!r}")


def check_classes(classes: int) -> None:
    """Reject single-logit binary models."""
    if classes < 2:
        raise UnsupportedModel(
            "expected logits of at least two classes, got one: for a binary model with one logit z, use the two "
            "logits [0, z], torch.cat([torch.zeros_like(z), z], dim=1)"
        )


@contextmanager
def explain_mismatch(model: Model, x: Tensor) -> Iterator[None]:
    """While open, an error of `model` at x names the dtypes or devices of x and parameters that differ."""
    try:
        yield
    except RuntimeError:
        module = model.module if isinstance(model, Bound) else model
        for name, p in module.named_parameters() if isinstance(module, nn.Module) else ():
            _check_alike(f"x and the model's {name!r}", x, p)
        raise


def _check_alike(names: str, a: Tensor, b: Tensor) -> None:
    if a.dtype != b.dtype or a.device != b.device:
        raise InvalidInput(
            f"expected {names} of one dtype on one device, got {a.dtype} on {a.device} and {b.dtype} on {b.device}: "
            "convert one with .to(other)"
        )


def _check_stored(name: str, z: Tensor, *, remedy: str, buffer: bool = False) -> None:
    """Refuse tensors without dense values that autograd can save."""
    if z.is_meta:
        raise InvalidInput(
            f"expected {name} to have values, got a tensor on the meta device: use .to_empty() and fill it"
        )
    if (z.layout != torch.strided or z.is_nested) and not buffer:  # a graph network's adjacency may be sparse
        raise InvalidInput(f"expected {name} to be a dense tensor, got {z.layout}: use .to_dense()")
    if z.is_inference():
        raise InvalidInput(f"{name} was made in inference mode, where autograd cannot save it: {remedy}")


def _check_points(name: str, z: Tensor, *, finite: bool) -> None:
    if not isinstance(z, Tensor) or not z.is_floating_point():
        got = f"a tensor of {z.dtype}" if isinstance(z, Tensor) else type(z).__name__
        remedy = f"{name}.float()" if isinstance(z, Tensor) else f"torch.as_tensor({name})"
        raise InvalidInput(f"expected {name} to be a floating-point tensor, got {got}: use {remedy}")
    _check_stored(name, z, remedy=f"use {name}.clone()")
    if z.dim() < 2 or len(z) == 0:
        remedy = "add a batch dimension" if z.dim() < 2 else "give some"
        raise InvalidInput(
            f"expected {name} of shape (B, ...) with at least one example, got {tuple(z.shape)}: {remedy}"
        )
    if finite and not torch.isfinite(z).all():
        bad = int((~torch.isfinite(z)).flatten(1).any(1).sum())
        raise InvalidInput(
            f"expected finite {name}, got NaN or infinite values in {bad} of {len(z)} examples: clean the data"
        )


def check_part(part: object, argument: str, kind: type, *, example: str) -> None:
    """Refuse a part that lacks a member of the protocol `kind`, or has a method with other arguments."""
    members = {name: member for name, member in vars(kind).items() if not name.startswith("_")}
    if missing := [name for name in members if not hasattr(part, name)]:
        raise InvalidInput(
            f"expected {kind.__name__} as `{argument}`, such as {example}, got {brief(part)} without "
            f"{', '.join(missing)}"
        )
    for name, method in members.items():
        if isinstance(method, property):
            continue
        parameters = list(signature(method).parameters.values())[1:]  # without self
        wanted = Signature([p.replace(annotation=p.empty, default=p.empty) for p in parameters])
        by_name = {p.name: None for p in parameters if p.kind is p.KEYWORD_ONLY}
        try:
            own = signature(getattr(part, name))
        except (TypeError, ValueError):  # a method without a signature, such as a built-in one
            continue
        try:
            own.bind(*range(len(parameters) - len(by_name)), **by_name)
        except TypeError as cause:
            raise InvalidInput(
                f"expected {type(part).__name__}.{name}{wanted}, as in {example}, got {name}{own}: {cause}"
            ) from None
