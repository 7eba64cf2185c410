"""Check a model in seconds, before an audit or a hardening: what fails, what to know, what it will cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from robattr._text import duration
from robattr.attacks.maps import integrated_gradients
from robattr.auditing.arithmetic import FEW_AND_MOST, choose
from robattr.auditing.as_dataset import Bounds, Data, as_dataset, check_names, draw, input_channels
from robattr.auditing.audit import MAX_READ
from robattr.auditing.cost import SHARE, Plan, audit_estimate, chunk_that_fits, memory, peak_bytes
from robattr.auditing.record import Settings
from robattr.auditing.wrapped_model import Preprocessing, WrappedModel, wrap
from robattr.engine import precision
from robattr.engine.processes import choose_device
from robattr.errors import InvalidInput, RobattrError, brief
from robattr.evaluation.checks import Check, ModelProbe, examine, forward
from robattr.evaluation.cost import seconds_per_pass
from robattr.evaluation.protocol import Protocol, scaled
from robattr.formula.ascent import grad_and_value
from robattr.formula.neighbourhoods import check_range
from robattr.formula.network import bind, gradient, second_order
from robattr.formula.scalars import logit
from robattr.models.smooth import TWINS, smooth

EXAMPLES = 16  # examples of the data that are checked; as many as in an audit decide about the precision
SIDES = (28, 32, 64, 224)  # image sizes to try where the model does not say which it takes
AUDITED = 100  # examples of the audit whose time is estimated
LONG = 3600.0  # seconds above which a smaller audit is recommended


@dataclass(frozen=True)
class Diagnosis:
    """Every check in order; `healthy` unless one failed."""

    checks: tuple[Check, ...]

    @property
    def healthy(self) -> bool:
        return all(check.level != "fail" for check in self.checks)

    def __str__(self) -> str:
        return "\n".join(
            f"{c.level:4} {c.name}: {c.finding}{f' → {c.remedy}' if c.remedy else ''}" for c in self.checks
        )


def doctor(
    model: nn.Module,
    data: Data | None = None,
    *,
    bounds: tuple[float, float] = (0.0, 1.0),
    preprocessing: Preprocessing | Mapping[str, Any] | None = None,
    shape: Sequence[int] | None = None,
    size: int | None = None,
    channels: int | None = None,
    classes: Sequence[str] | None = None,
    plan: Plan | None = None,
    device: str = "auto",
) -> Diagnosis:
    """Check `model` on a few examples of `data`, or on random inputs of `shape` (C, H, W) or (features,).

    A failed check is what `evaluate`, `audit` and `harden` would raise. A `Dataset` has its own bounds. `plan` is the
    training step whose memory and time are estimated.
    """
    if plan is not None and not isinstance(plan, Plan):
        raise InvalidInput(f"expected a plan such as robattr.auditing.Plan(m=10), got {brief(plan)}")
    place = choose_device(device)
    try:
        wrapped, notes = wrap(model, preprocessing=preprocessing, device=place)
    except RobattrError as cause:
        return Diagnosis((Check("form", "fail", str(cause), "the other checks need this first"),))
    try:
        x, y, protocol = _examples(wrapped, data, bounds, shape, size=size, channels=channels, classes=classes)
    except RobattrError as cause:
        return Diagnosis((Check("input", "fail", str(cause), "give data, or a shape, that the model takes"),))
    judged = ModelProbe(wrapped, x.to(place), None if y is None else y.to(place), protocol.bounds)
    probe = replace(judged, x=judged.x[:EXAMPLES], y=None if judged.y is None else judged.y[:EXAMPLES])
    found = [*_form(notes), _modes(model)]
    with precision("fp32", place.type):
        found += examine(probe)
        if found[-1].name == "derivatives":  # the last of the list: the basic checks passed
            found += [*_units(model, probe), *_operations(model, probe)]
    if all(check.level != "fail" for check in found):
        name, told = choose(wrapped, [integrated_gradients()], judged.x, judged.targets, protocol=protocol)
        found += [Check("precision", "ok", told)] if told else []
        with precision(name, place.type):  # as in an audit
            found += [_curvature(probe), *_costs(wrapped, probe, plan or Plan(), protocol)]
    return Diagnosis(tuple(found))


def _examples(
    model: WrappedModel,
    data: Data | None,
    bounds: Bounds,
    shape: Sequence[int] | None,
    *,
    size: int | None,
    channels: int | None,
    classes: Sequence[str] | None,
) -> tuple[Tensor, Tensor | None, Protocol]:
    """A few examples, their labels and the protocol of an audit: the user's, or random ones without labels."""
    if data is not None:
        if shape is not None:
            raise InvalidInput(f"shape {tuple(shape)} is for random inputs, and there are data: leave one of them out")
        given = as_dataset(
            data, model=model.module, bounds=bounds, size=size, channels=channels, classes=classes, limit=MAX_READ,
            checked=False,
        )  # fmt: skip
        check_names(classes, model, given)
        x, y, _ = draw(given, max(EXAMPLES, FEW_AND_MOST[1]))
        return x, y, Settings().base(given)
    if shape is not None and not (isinstance(shape, Sequence) and all(type(n) is int and n > 0 for n in shape)):
        raise InvalidInput(f"expected a shape of positive whole numbers, such as (3, 224, 224), got {brief(shape)}")
    check_range(bounds)
    low, high = bounds
    for candidate in [tuple(shape)] if shape is not None else _shapes(model, channels or input_channels(model), size):
        noise = torch.rand((4, *candidate), generator=torch.Generator().manual_seed(0))
        x = low + (high - low) * noise
        if shape is not None or _accepts(model, x):
            return x, None, scaled("", pixels=10, bounds=bounds)
    raise InvalidInput("the input shape of the model could not be guessed: give a shape, such as 3,224,224, or data")


def _shapes(model: nn.Module, channels: int, size: int | None) -> list[tuple[int, ...]]:
    first = next((m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)), None)
    depth = first.in_channels if isinstance(first, nn.Conv2d) else channels
    rows = [(first.in_features,)] if isinstance(first, nn.Linear) else []
    return [*rows, *((depth, side, side) for side in ([size] if size else SIDES))]


def _accepts(model: WrappedModel, x: Tensor) -> bool:
    try:
        forward(model, x.to(model.mean.device))
    except (RuntimeError, ValueError, TypeError, IndexError):
        return False
    return True


def _form(notes: Sequence[str]) -> list[Check]:
    """What had to be undone in a copy: torch.compile, data parallelism, SyncBatchNorm, half precision."""
    remedy = "audit and harden do this too; your model is not changed"
    fine = Check("form", "ok", "a plain module with float32 weights and plain batch norm")
    return [Check("form", "warn", note, remedy) for note in notes] or [fine]


def _modes(model: nn.Module) -> Check:
    """Dropout and batch norm in train mode: robattr switches them to eval mode, other libraries do not."""
    kinds = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._BatchNorm)
    count = sum(m.training and isinstance(m, kinds) for m in model.modules())
    said = f"{count or 'no'} dropout or batch-norm layers are in train mode"
    remedy = "robattr switches them to eval mode for its calls; call model.eval() elsewhere"
    return _finding("modes", count > 0, said, remedy)


def _units(model: nn.Module, p: ModelProbe) -> Iterator[Check]:
    """Whether mean and std are in the units of the data."""
    assert isinstance(p.model, WrappedModel)
    if p.model.preprocessed:
        with torch.no_grad():
            seen = p.model.normalise(p.x)
        reach, spread = float(seen.abs().max()), float(seen.max() - seen.min())
        if reach > 20 or spread < 0.1:
            said = f"after (x − mean) / std the inputs reach {reach:.3g} and differ by {spread:.3g} at most"
            yield Check("preprocessing", "warn", said, "give mean and std in the units of the data (bounds)")
        return
    scales = any(type(m).__name__ == "Standardise" for m in model.modules())  # robattr's own networks do
    if p.y is not None and p.bounds[1] - p.bounds[0] == 255 and not scales:
        said = "inputs up to 255 reach the network without preprocessing"
        yield Check("preprocessing", "warn", said, "if it was trained on scaled inputs, give mean and std")


def _operations(model: nn.Module, p: ModelProbe) -> Iterator[Check]:
    """In-place operations and fused attention."""
    with _Functions() as functions, _Operators() as operators:
        forward(p.model, p.x[:2])
    mutating = sorted(name for name in operators.seen if name.endswith("_") and not name.startswith("_"))
    said = f"values are overwritten by {', '.join(mutating[:5])}" if mutating else "no operation is in place"
    remedy = "fine here; Captum methods with hooks (DeepLift, GuidedBackprop) need inplace=False"
    yield _finding("in place", bool(mutating), said, remedy)
    if (
        any("scaled_dot_product" in getattr(f, "__name__", "") for f in functions.seen)
        or any("attention" in name or "transformer" in name for name in operators.seen)
        or any(isinstance(m, nn.MultiheadAttention) for m in model.modules())
    ):
        said = "fused kernels have no second derivative; robattr uses the plain ones where it takes them"
        yield Check("attention", "ok", said)


def _curvature(p: ModelProbe) -> Check:
    """ReLU's second derivative is 0: an attack on maps takes its direction from the softplus twin instead."""
    with _Functions() as functions:
        forward(p.model, p.x[:1])
    relus = sum(count for f, count in functions.seen.items() if f in TWINS)
    x, y = p.x[:1], p.targets[:1]
    own, twin = _is_curved(p.model, x, y), _is_curved(smooth(p.model), x, y)
    if relus and twin:
        said = f"{relus} ReLU-like activations: the attack takes its direction from their softplus twin (β = 1)"
        return Check("curvature", "ok", said)
    if own or twin:
        return Check("curvature", "ok", "smooth activations: the attack follows the network itself")
    said = "neither the network nor its softplus twin is curved: gradient maps cannot be moved, or clamp() hides a ReLU"
    return Check("curvature", "warn", said, "write activations as relu, not as clamp(min=0) or maximum(u, 0)")


def _is_curved(model: nn.Module, x: Tensor, y: Tensor) -> bool:
    """Whether the second derivative of the logit differs from 0 at x."""
    with second_order(model):
        net = bind(model).detach()
        v = torch.rand(x.shape, generator=torch.Generator().manual_seed(0)).to(x)
        along = grad_and_value(
            lambda z: (gradient(lambda u: logit(net, u, y), z) * v).flatten(1).sum(1), allow_zero=True
        )
        return bool(along(x)[0].any())


def _costs(model: WrappedModel, p: ModelProbe, plan: Plan, protocol: Protocol) -> Iterator[Check]:
    """Memory and time of one update of an IG objective and of an audit, measured on a few examples."""
    per_pass, peak, available = (
        seconds_per_pass(model, p.x, p.targets),
        peak_bytes(model, p.x, plan),
        memory(p.x.device),
    )
    said = (
        f"one update (batch {plan.batch}, m = {plan.m}, {plan.attack_steps} attack steps) takes about "
        f"{duration(per_pass * plan.passes)} and {peak / 2**30:.2g} of {available / 2**30:.3g} GiB on {p.x.device}"
    )
    chunk = chunk_that_fits(model, p.x, m=plan.m, batch=plan.batch) or plan.m
    remedy = f"harden then evaluates {chunk} nodes at a time (chunk={chunk}); or use a smaller batch"
    yield _finding("cost", peak > SHARE * available, said, remedy)
    paper, both = audit_estimate(model, p.x, p.targets, protocol, examples=AUDITED, per_pass=per_pass)
    said = f"{AUDITED} examples take about {duration(paper)} (paper) or {duration(both)} (both protocols)"
    remedy = "use a GPU, fewer examples, or --points 20 --iterations 20 for a first look"
    yield _finding("audit", paper >= LONG, said, remedy)


def _finding(name: str, warned: bool, said: str, remedy: str) -> Check:
    return Check(name, "warn", said, remedy) if warned else Check(name, "ok", said)


class _Functions(TorchFunctionMode):
    """Counts the torch functions that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[Any] = Counter()

    def __torch_function__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.seen[func] += 1
        return func(*args, **(kwargs or {}))


class _Operators(TorchDispatchMode):
    """Counts the operators that are executed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.seen[func._schema.name.removeprefix("aten::")] += 1
        return func(*args, **(kwargs or {}))
