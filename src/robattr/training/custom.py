"""Custom objectives: how a training run makes one, and how a resumed run recognises it.

An objective is any value of the formula (`Robust`, `Distributional`), or any function rho(model, x, y) that returns a
`Rho`, or anything else with a `value` of shape (B,). It cannot be written to a file. What is written is its text
(`repr`) and a hash of the source of the functions and classes that it consists of: a run is not continued with another.
"""

from __future__ import annotations

import hashlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import torch
from torch import Tensor, nn

from robattr.errors import InvalidInput, RobattrError, brief
from robattr.formula import IG, Change, Distributional, Everywhere, Joint, Rho, Robust, at_output, displacement
from robattr.formula.change import Clean, Combined, Compared, Measured, Value
from robattr.formula.maps import BaselineIG, Logits, Magnitude, RunnerUp, Target, TheInput
from robattr.formula.network import Model
from robattr.models.by_name import import_named

if TYPE_CHECKING:
    from robattr.training.config import TrainConfig

Bounds: TypeAlias = tuple[float, float]
EXAMPLE = "objectives.ig_norm(1.0, LinfBall(0.1), PGD(7, 0.02)), or a function rho(model, x, y) -> Rho"
LIBRARIES = {"robattr", "torch", "numpy", *sys.stdlib_module_names} - {"__main__"}  # their source is not hashed
PLAIN = (type(None), bool, int, float, complex, str, bytes)


class Function(Protocol):
    """ρ as a function of a batch; one with a parameter `rand` gets the run's random numbers, like `torch.rand_like`."""

    def __call__(self, model: Model, x: Tensor, y: Tensor) -> Rho: ...


Objective: TypeAlias = Robust | Joint | Distributional | Function


@dataclass(frozen=True)
class Custom:
    """A custom objective, or a function that makes one; two are equal if their text and source are.

    `factory` may take `config` (the `TrainConfig`) and `bounds` (of valid inputs). If it takes `config`, the keys of
    the run reach the objective, and so do ramps and sweeps. Otherwise a ramp scales λ, ε and the step size.
    """

    text: str
    source: str
    given: Objective | None = field(default=None, compare=False, repr=False)
    factory: Callable[..., Any] | None = field(default=None, compare=False, repr=False)
    scales: tuple[float, float] = field(default=(1.0, 1.0), compare=False)  # of λ, and of ε and the step size
    ref: str = field(default="", compare=False)  # "package.module:name", if it was given by name

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Pickle an objective given by name as that name: another process imports it again."""
        return (_renamed, (self.ref, self.scales)) if self.ref else super().__reduce__()

    @property
    def name(self) -> str:
        """What reports call it: the name of the function, with hyphens."""
        named = self.factory or self.given
        return str(getattr(named, "__name__", "custom")).strip("<>_").replace("_", "-")

    @property
    def follows_config(self) -> bool:
        """Whether the keys of the run reach the objective."""
        return self.factory is not None and "config" in inspect.signature(self.factory).parameters

    def objective(self, run: TrainConfig, bounds: Bounds) -> Objective:
        """The objective of a run; a copy of a distributional one, because dual ascent changes its γ."""
        found = self._made(run, bounds) if self.factory else self.given
        found = check_objective(found, of=self.text if self.factory else "objective")
        if not self.follows_config and self.scales != (1.0, 1.0):
            found = _scaled(found, *self.scales)
        return replace(found) if isinstance(found, Distributional) else found

    def _made(self, run: TrainConfig, bounds: Bounds) -> Any:
        assert self.factory is not None
        has = inspect.signature(self.factory).parameters
        try:
            return self.factory(**{k: v for k, v in {"config": run, "bounds": bounds}.items() if k in has})
        except RobattrError:
            raise
        except Exception as cause:
            raise InvalidInput(f"{self.text!r} failed: {type(cause).__name__}: {cause}") from cause


def custom(objective: Objective) -> Custom:
    """The record of an objective given as a value."""
    return Custom(text_of(objective), source_of(objective), given=check_objective(objective, of="objective"))


def named(ref: str) -> Custom:
    """The objective that "package.module:name" is, or that the function of this name makes.

    This runs the user's code: never pass a name that came with a file.
    """
    found = import_named(ref, example="my_objectives:make_rho")
    if isinstance(found, Robust | Joint | Distributional):
        return replace(custom(found), ref=ref)
    if not callable(found):
        raise InvalidInput(f"expected {ref!r} to be an objective or a function that returns one, got {found!r}")
    parameters = inspect.signature(found).parameters.values()
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [p.name for p in parameters if p.default is p.empty and p.kind not in optional]
    if unknown := [name for name in needed if name not in ("config", "bounds")]:
        raise InvalidInput(
            f"expected {ref!r} to need no arguments but `config` and `bounds`, got {', '.join(unknown)}: name a "
            "function that returns the objective, such as def make_rho(): return rho"
        )
    return Custom(ref, source_of(found), factory=found, ref=ref)


def _renamed(ref: str, scales: tuple[float, float]) -> Custom:
    return replace(named(ref), scales=scales)


def check_objective(found: Any, *, of: str) -> Objective:
    """Reject what is not an objective."""
    if not callable(found) or isinstance(found, type | nn.Module | Change):
        hint = " (a Change is one part of it: Robust(change=…, within=…, by=…))" if isinstance(found, Change) else ""
        raise InvalidInput(f"expected {EXAMPLE} as {of}, got {brief(found)}{hint}")
    objective: Objective = found
    return objective


def as_rho(found: Any, x: Tensor) -> Rho:
    """Convert what a function returned to a `Rho`; if its parts are unknown, the whole value is the loss."""
    value = getattr(found, "value", None)
    if not isinstance(value, Tensor) or value.shape != (len(x),):
        got = f"a value of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"{type(found).__name__}"
        raise InvalidInput(
            f"expected the objective to return a Rho, with one value per example, shape ({len(x)},), got {got}: "
            "return Rho(loss, penalty, worst=x)"
        )
    return found if isinstance(found, Rho) else Rho(value, value.detach() * 0, x)


def second_order(objective: Objective) -> int:
    """Second-order gradients per example and update: attack steps × nodes in the attack + nodes in the update.

    A custom map counts as one; a function as none, because its gradients are unknown.
    """
    if isinstance(objective, Joint):
        return sum(map(second_order, objective.terms))
    if not isinstance(objective, Robust | Distributional):
        return 0
    seen = getattr(objective, "attacked", None) or objective.change
    return int(getattr(objective.by, "steps", 1)) * _gradients(seen) + _gradients(objective.change)


def _gradients(part: Any) -> int:
    """The input gradients in a change or a map that are differentiated again."""
    match part:
        case Change(terms):
            return sum(_gradients(term) for _, term in terms)
        case IG(at=at, rule=rule):
            return 0 if at == at_output else len(rule)
        case Measured(attribution=map_) | Magnitude(map=map_) | RunnerUp(map=map_):
            return _gradients(map_)
        case BaselineIG(ig=map_, baseline=baseline):
            draws = len(baseline) if isinstance(baseline, Tensor) and baseline.dim() == 4 else 1
            return draws * _gradients(map_)
        case Compared(attribution=map_, reference=reference):
            return _gradients(map_) + _gradients(reference)
        case Combined(changes=changes):
            return sum(map(_gradients, changes))
        case Clean(part=inner, detach=detach):
            return 0 if detach else _gradients(inner)
        case Value() | Logits() | TheInput() | Target():
            return 0
        case _:
            return int(part is not displacement)


def _scaled(objective: Any, weight: float, eps: float) -> Any:
    """The objective with λ multiplied by `weight`, ε and the step size by `eps`."""
    if isinstance(objective, Joint):
        return Joint(tuple(_scaled(term, weight, eps) for term in objective.terms))
    if not isinstance(objective, Robust | Distributional):
        raise InvalidInput(
            "weight_ramp and eps_ramp have no effect on a function: set both to () (--set weight_ramp= --set "
            "eps_ramp=), or name a function of `config` that makes the objective"
        )
    rho: Any = objective
    within, by = rho.within, rho.by
    if hasattr(within, "radius"):
        within, by = replace(within, radius=within.radius * eps), _shorter(by, eps)
    elif eps != 1 and not isinstance(within, Everywhere):
        raise InvalidInput(f"eps_ramp has no effect on {within}, which has no radius: set eps_ramp= to nothing")
    return replace(rho, weight=rho.weight * weight, within=within, by=by)


def _shorter(by: Any, eps: float) -> Any:
    """The ascent with its step sizes multiplied by `eps`."""
    if hasattr(by, "ascent"):
        return replace(by, ascent=_shorter(by.ascent, eps))
    sizes = {key: getattr(by, key) * eps for key in ("step_size", "first", "last") if hasattr(by, key)}
    return replace(by, **sizes) if sizes else by


def text_of(objective: object) -> str:
    """`repr` without addresses."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(objective))


def source_of(*things: object) -> str:
    """A hash of the source of all functions and classes outside libraries in `things`, and of the values in them."""
    digest = hashlib.sha256()
    for part in _parts(things, {}):
        digest.update(part)
        digest.update(b"\0")
    return digest.hexdigest()[:16]


def _parts(thing: Any, seen: dict[int, Any]) -> Iterator[bytes]:
    """The bytes of a value, and of the values it consists of, each once; `seen` keeps them alive."""
    if isinstance(thing, PLAIN):
        yield repr(thing).encode()
        return
    if id(thing) in seen:
        return
    seen[id(thing)] = thing
    inside: list[Any] = []
    if isinstance(thing, Tensor):
        yield thing.detach().cpu().flatten().view(torch.uint8).numpy().tobytes()  # numpy has no bf16
    elif isinstance(thing, nn.Module):
        inside = [type(thing), thing.state_dict()]
    elif isinstance(thing, dict):
        inside = [part for item in thing.items() for part in item]
    elif isinstance(thing, list | tuple):
        inside = list(thing)
    elif isinstance(thing, set | frozenset):
        inside = sorted(thing, key=repr)
    elif isinstance(thing, partial):
        inside = [thing.func, thing.args, thing.keywords]
    elif isinstance(thing, MethodType):
        inside = [thing.__func__, thing.__self__]
    elif isinstance(thing, FunctionType):
        inside = [*inspect.getclosurevars(thing).nonlocals.values()]
        if not _of_a_library(thing):
            yield _source(thing)
            inside += [thing.__defaults__, thing.__kwdefaults__, *_globals(thing)]
    elif isinstance(thing, type):
        if not _of_a_library(thing):
            yield _source(thing)
    elif is_dataclass(thing):
        inside = [type(thing), *(getattr(thing, f.name) for f in fields(thing))]
    elif "__repr__" in {name for kind in type(thing).__mro__[:-1] for name in vars(kind)}:  # its text tells it apart
        inside = [type(thing), text_of(thing)]
    elif not _of_a_library(type(thing)):
        inside = [type(thing), getattr(thing, "__dict__", None)]
    for part in inside:
        yield from _parts(part, seen)


def _of_a_library(thing: Any) -> bool:
    return (thing.__module__ or "").partition(".")[0] in LIBRARIES


def _globals(function: FunctionType) -> list[Any]:
    """The plain values, functions and classes of its own module that a function refers to."""
    used = [function.__globals__[name] for name in _names(function.__code__) if name in function.__globals__]
    here = function.__module__
    return [u for u in used if isinstance(u, PLAIN) or (isinstance(u, FunctionType | type) and u.__module__ == here)]


def _names(code: CodeType) -> list[str]:
    """The names that a function and the functions inside it refer to."""
    inner = [name for const in code.co_consts if isinstance(const, CodeType) for name in _names(const)]
    return [*code.co_names, *inner]


def _source(thing: Any) -> bytes:
    """The source text; where there is none (a prompt, `exec`), the compiled code."""
    try:
        if isinstance(thing, FunctionType) and thing.__code__.co_filename == "<string>":
            raise OSError("Python 3.13 returns the text of `python -c`")
        return inspect.getsource(thing).encode()
    except (OSError, TypeError):
        functions = [thing] if isinstance(thing, FunctionType) else vars(thing).values()
        return b"".join(_code(f.__code__) for f in functions if isinstance(f, FunctionType))


def _code(code: CodeType) -> bytes:
    consts = [_code(c) if isinstance(c, CodeType) else repr(c).encode() for c in code.co_consts]
    return b"\0".join([code.co_code, *consts, *(name.encode() for name in code.co_names)])
