"""The two sides of a comparison must compute the same thing; where they do not, there is no number to show.

distance = ‖engine − port‖₂ / ‖port‖₂, the port in float32
"""

from __future__ import annotations

import math

from torch import Tensor

from robattr.bench.results import Agreement
from robattr.engine.precision import ALLOWED as ALLOWED
from robattr.errors import RobattrError

# Share of the first step's gain that rounding may cost an attack. Most of it comes of the clean map: where two pixels
# exchange their ranks at the edge of the top k, the attack pulls at the other one. With tf32's rounding imitated on a
# CPU, twelve MNIST images lost 0.7 to 5.2% each, 1.8% on average; with the same pixels on top, 0.03 to 0.4%.
LOST = {"fp32": 0.005, "tf32": 0.05, "bf16": 0.2}


class Disagreement(RobattrError):
    """The fast way and the obvious way differ by more than their arithmetic explains."""


def distance(ours: Tensor, theirs: Tensor) -> float:
    """‖ours − theirs‖₂ / ‖theirs‖₂ over all elements; nan where either holds one."""
    a, b = ours.detach().double().cpu(), theirs.detach().double().cpu()
    return float((a - b).norm() / b.norm())


def agree(of: str, ours: Tensor, theirs: Tensor, *, allowed: float) -> Agreement:
    """Their distance, or a Disagreement that says what differs and by how much."""
    return within(of, distance(ours, theirs), allowed=allowed)


def within(of: str, measured: float, *, allowed: float) -> Agreement:
    """The same for a distance already measured."""
    if math.isnan(measured) or measured > allowed:
        raise Disagreement(
            f"the engine and the eager port disagree on the {of}: distance {measured:.3g}, allowed {allowed:.3g}; "
            "no time is reported for this case"
        )
    return Agreement(of, measured, allowed)
