"""How closely an audit looks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Literal, TypeAlias

from robattr.attacks.maps import AttributionMap
from robattr.auditing.maps import maps
from robattr.data import Dataset
from robattr.errors import InvalidInput, nearest
from robattr.evaluation import protocol as protocols
from robattr.evaluation.protocol import Protocol

ProtocolName: TypeAlias = Literal["both", "paper", "strict"]


@dataclass(frozen=True)
class Settings:
    """How closely to look. Where eps, steps or points are None they are the dataset's own, else ε = 8/255 of the range,
    50 steps, 100 points.
    """

    eps: float | None = None
    maps: str | AttributionMap | Sequence[str | AttributionMap] = "ig"
    protocol: ProtocolName = "both"
    examples: int | None = 100
    steps: int | None = None
    points: int | None = None
    seed: int = 0
    compiled: bool = False  # compile the attack: worth its minutes on a GPU

    def __post_init__(self) -> None:
        if self.protocol not in ("both", "paper", "strict"):
            raise InvalidInput(
                f"unknown protocol {self.protocol!r}: {nearest(self.protocol, ('both', 'paper', 'strict'))}"
            )
        if self.eps is not None and not (isinstance(self.eps, Real) and self.eps > 0):
            raise InvalidInput(f"eps must be a number above 0, as 8 / 255 is, got {self.eps!r}")
        if self.seed < 0:
            raise InvalidInput(f"seed must be at least 0, got {self.seed}")
        for name in ("examples", "steps", "points"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise InvalidInput(f"{name} must be at least 1, got {value}")

    def base(self, data: Dataset, *, values: int = 10) -> Protocol:
        """The paper's protocol for these data and maps of that many values."""
        made = protocols.scaled(data.name, pixels=values, bounds=data.bounds, eps=self.eps)
        if self.eps is None and protocols.is_the_papers(data):
            made = protocols.paper(data.name)
        steps, points = self.steps or made.steps, self.points or made.N
        return replace(made, steps=steps, N=points, pgd_steps=min(made.pgd_steps, steps), seed=self.seed)

    def chosen_maps(self, data: Dataset) -> list[AttributionMap]:
        """The maps asked for."""
        return maps(self.maps, points=self.base(data).N, bounds=data.bounds)

    @property
    def asked(self) -> list[str]:
        """The names of the protocols asked for."""
        return list(protocols.PROTOCOLS) if self.protocol == "both" else [self.protocol]

    def protocols(self, data: Dataset, *, values: int) -> list[Protocol]:
        """The protocols asked for."""
        base = self.base(data, values=values)
        return [protocols.named(name, base) for name in self.asked]
