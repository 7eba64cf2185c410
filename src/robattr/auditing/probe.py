"""Who is examined, and what an examination finds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from robattr.auditing.wrapped_model import WrappedModel
from robattr.formula.network import second_order

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Check:
    """One finding and its remedy (empty where all is well)."""

    name: str
    level: Level
    finding: str
    remedy: str = ""


@dataclass(frozen=True)
class Plan:
    """The training step whose cost is estimated."""

    m: int = 10
    m_attack: int = 5
    attack_steps: int = 7
    batch: int = 16


@dataclass(frozen=True)
class ModelProbe:
    """`model` as the user has it, `subject` as robattr will use it, a probe x (B ≥ 2), and its labels where known.

    notes: what was done to make the subject.  real: whether x are the user's data, not random numbers.
    """

    model: nn.Module
    subject: WrappedModel
    notes: tuple[str, ...]
    x: Tensor
    y: Tensor | None
    bounds: tuple[float, float]
    real: bool
    plan: Plan

    @property
    def labels(self) -> Tensor:
        """Classes to attribute: the labels, else (or where there is no such output) the answers."""
        with second_order(self.subject), torch.no_grad():
            logits = self.subject(self.x)
        if self.y is not None and int(self.y.max()) < logits.shape[1]:
            return self.y
        answers: Tensor = logits.argmax(dim=1)
        return answers


class Calls(TorchFunctionMode):
    """Counts the torch functions a model calls."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[Any] = Counter()

    def __torch_function__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.seen[func] += 1
        return func(*args, **(kwargs or {}))


class Operators(TorchDispatchMode):
    """Counts the operators a model runs."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.seen[func._schema.name.removeprefix("aten::")] += 1
        return func(*args, **(kwargs or {}))
