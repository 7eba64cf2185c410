"""Look before you leap: what will and will not work with this model, in seconds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from robattr.auditing import checks
from robattr.auditing.as_dataset import Bounds, Data, check_folder, chosen, material
from robattr.auditing.audit import READ, input_channels, own_classes
from robattr.auditing.preprocessing import Preprocessing
from robattr.auditing.probe import Check, ModelProbe, Plan
from robattr.auditing.wrapped_model import wrap
from robattr.engine.processes import choose_device
from robattr.errors import InvalidInput, RobattrError
from robattr.formula.network import second_order

PROBED = 16  # examples looked at
SIDES = (28, 32, 64, 224)  # image sizes tried where nothing says what the model takes


@dataclass(frozen=True)
class Diagnosis:
    """Every check in order; `healthy` unless one failed."""

    checks: tuple[Check, ...]

    @property
    def healthy(self) -> bool:
        return all(check.level != "fail" for check in self.checks)

    def __str__(self) -> str:
        lines = []
        for check in self.checks:
            remedy = f" → {check.remedy}" if check.remedy else ""
            lines.append(f"{check.level:4} {check.name}: {check.finding}{remedy}")
        return "\n".join(lines)


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
    device: str = "cpu",
) -> Diagnosis:
    """Check `model`, on a few examples of `data` or else on random inputs of `shape` (C, H, W) or (features,).

    A `Dataset` is held against its own bounds. `plan` is the training step whose memory and time are estimated.
    """
    place = choose_device(device)
    try:
        ready, notes = wrap(model, preprocessing=preprocessing, device=place)
    except RobattrError as cause:
        return Diagnosis((Check("form", "fail", str(cause), "mend this first; the other checks need it"),))
    try:
        check_folder(data, size=size, channels=None if data is None else channels)
        x, y, bounds = _probe(
            ready, data, bounds=bounds, shape=shape, size=size, channels=channels or input_channels(model),
            classes=classes or (own_classes(model, data) if data is not None else None),
        )  # fmt: skip
    except RobattrError as cause:
        return Diagnosis((Check("input", "fail", str(cause), "give data, or shape, that the model takes"),))
    y = None if y is None else y.to(place)
    patient = ModelProbe(model, ready, tuple(notes), x.to(place), y, bounds, data is not None, plan or Plan())
    return Diagnosis(tuple(_examined(patient)))


def _examined(patient: ModelProbe) -> Iterator[Check]:
    """All checks; those that need the findings of earlier ones only where these were good."""
    for stage in (checks.FIRST, checks.THEN, checks.LAST):
        found: list[Check] = []
        for check in stage:
            try:
                found += check(patient)
            except Exception as cause:  # an unknown model may fail in any way: that is what the doctor is here to say
                reason = (str(cause).strip() or type(cause).__name__).splitlines()[0]
                found.append(
                    Check(check.__name__, "fail", f"the model fails: {reason}", "mend the model, or its input")
                )
        yield from found
        if any(check.level == "fail" for check in found):
            return


def _probe(
    model: nn.Module,
    data: Data | None,
    *,
    bounds: tuple[float, float],
    shape: Sequence[int] | None,
    size: int | None,
    channels: int,
    classes: Sequence[str] | None,
) -> tuple[Tensor, Tensor | None, Bounds]:
    """A few examples and their range: the user's, else random ones."""
    if data is not None:
        if shape is not None:
            raise InvalidInput(f"shape {tuple(shape)} is of random inputs, and there are data: leave one of them out")
        given = material(data, bounds=bounds, size=size, channels=channels, classes=classes, limit=READ, checked=False)
        x, y, _ = chosen(given, PROBED)
        return x, y, given.bounds
    for candidate in [tuple(shape)] if shape is not None else _shapes(model, channels):
        low, high = bounds
        noise = torch.rand((4, *candidate), generator=torch.Generator().manual_seed(0))
        x = low + (high - low) * noise
        if shape is not None or _takes(model, x):
            return x, None, bounds
    raise InvalidInput("which input the model takes could not be guessed: give a shape, such as 3,224,224, or data")


def _shapes(model: nn.Module, channels: int) -> list[tuple[int, ...]]:
    first = next((m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)), None)
    if isinstance(first, nn.Linear):
        return [(first.in_features,), *((channels, side, side) for side in SIDES)]
    wide = first.in_channels if isinstance(first, nn.Conv2d) else channels
    return [(wide, side, side) for side in SIDES]


def _takes(model: nn.Module, x: Tensor) -> bool:
    place = next((p.device for p in model.parameters()), x.device)
    try:
        with second_order(model), torch.no_grad():
            model(x.to(place))
    except (RuntimeError, ValueError, TypeError, IndexError):
        return False
    return True
