"""An architecture is a function that builds a network; the network carries a spec of how it was built.

    spec = (name, arguments),    build(spec) = architectures[name](**arguments)

The spec is plain JSON and is stored in the weights file, so that the file alone can be loaded, without running code.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from torch import nn

from robattr._form import check_form, parse_json
from robattr.errors import InvalidInput, nearest

P = ParamSpec("P")
N = TypeVar("N", bound=nn.Module)

architectures: dict[str, Callable[..., nn.Module]] = {}
"""Every function marked `@architecture`, by name, including the user's own."""

RENAMED = {"threshold_cnn": "avgpool_cnn", "toe_cnn": "tone_curve_cnn", "blurred_cnn": "blur_cnn"}
"""Earlier names in weights files and run directories, and what they are called now."""


@dataclass(frozen=True)
class Spec:
    """How a network was built: the name of an architecture and its arguments (JSON values)."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps({"name": self.name, "arguments": self.arguments}, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> Spec:
        try:
            read = parse_json(text)
            check_form(read, {"name": str, "arguments": dict})
            return Spec(read["name"], read["arguments"])
        except ValueError as cause:
            raise InvalidInput(f"expected a network spec {{name, arguments}} in JSON, got {text[:80]!r}") from cause


def architecture(build: Callable[P, N]) -> Callable[P, N]:
    """Register `build` under its own name; each network it returns carries its `spec`."""
    signature = inspect.signature(build)

    @wraps(build)
    def built(*args: P.args, **kwargs: P.kwargs) -> N:
        net = build(*args, **kwargs)
        call = signature.bind(*args, **kwargs)
        call.apply_defaults()
        # Not by nn.Module.__setattr__: a spec is neither a tensor nor a module.
        object.__setattr__(net, "spec", Spec(build.__name__, dict(call.arguments)))
        return net

    architectures[build.__name__] = built
    return built


def build(spec: Spec) -> nn.Module:
    """The network that a spec describes, newly initialised."""
    spec = Spec(RENAMED.get(spec.name, spec.name), spec.arguments)
    if spec.name not in architectures:
        raise InvalidInput(f"unknown architecture {spec.name!r}: {nearest(spec.name, architectures)}")
    make = architectures[spec.name]
    try:
        inspect.signature(make).bind(**spec.arguments)
    except TypeError as cause:
        raise InvalidInput(f"architecture {spec.name!r} does not take {spec.arguments}: {cause}") from cause
    return make(**spec.arguments)


def positive(**sizes: object) -> None:
    """Refuse sizes that are not positive whole numbers (a spec may come from a foreign file)."""
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise InvalidInput(f"expected {name} to be a positive whole number, got {size!r}")
