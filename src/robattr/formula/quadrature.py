"""Quadrature rules on [0, 1] as data: ∫ g(t) dt ≈ Σ_k weights_k · g(nodes_k).

The paper's text sums the left ends k/m, k = 0…m−1; the reference code the right ends k/m, k = 1…m. Both err by O(1/m).
The midpoint rule errs by O(1/m²), Gauss–Legendre faster than any power on smooth integrands, at the same cost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isclose
from numbers import Integral
from typing import TypeAlias

import numpy as np

from robattr.errors import InvalidInput


@dataclass(frozen=True)
class Rule:
    """Nodes t_k in [0, 1] and weights that sum to 1."""

    nodes: tuple[float, ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.nodes or len(self.nodes) != len(self.weights):
            raise InvalidInput(
                f"a rule expects as many nodes as weights, at least one, got {len(self.nodes)} and {len(self.weights)}"
            )
        if not all(0.0 <= t <= 1.0 for t in self.nodes):
            raise InvalidInput(f"a rule expects nodes in [0, 1], got {min(self.nodes)} … {max(self.nodes)}")
        if not isclose(sum(self.weights), 1.0, abs_tol=1e-9):
            raise InvalidInput(f"a rule expects weights that sum to 1, got {sum(self.weights)!r}")

    def __len__(self) -> int:
        return len(self.nodes)


MOST_NODES = 10_000

Rules: TypeAlias = Callable[[int], Rule]
"""A family of rules: m ↦ the rule with m nodes."""


def left(m: int) -> Rule:
    """t_k = k/m, k = 0…m−1: the paper's equation (summation approximation)."""
    return _equal(m, 0.0)


def right(m: int) -> Rule:
    """t_k = k/m, k = 1…m: the reference implementation."""
    return _equal(m, 1.0)


def midpoint(m: int) -> Rule:
    """t_k = (k + ½)/m: second order. ‖IG‖₁ is as accurate with 3 to 6 nodes as by 50 of `right`, IG with 9 to 32.

    >>> midpoint(2)
    Rule(nodes=(0.25, 0.75), weights=(0.5, 0.5))
    """
    return _equal(m, 0.5)


def gauss_legendre(m: int) -> Rule:
    """The m-point Gauss–Legendre rule: exact for polynomials of degree 2m − 1."""
    nodes, weights = np.polynomial.legendre.leggauss(_count(m))
    return Rule(tuple((0.5 * (nodes + 1.0)).tolist()), tuple((0.5 * weights).tolist()))


def radau(m: int) -> Rule:
    """The m-point right Radau rule: one node is x' itself; exact for polynomials of degree 2m − 2.

    For objectives without an ℓ(x') of their own (IG-NORM), whose attack must see x' itself. On a robust network three
    nodes integrate as accurately as ten right ends (relative error of IG 0.13 on Fashion-MNIST).
    """
    m = _count(m)
    legendre = np.polynomial.legendre
    nodes = np.sort(legendre.legroots([0.0] * (m - 1) + [-1.0, 1.0]).real)  # of P_m − P_{m−1}; the last is 1
    weights = (1.0 + nodes) / (m * legendre.legval(nodes, [0.0] * (m - 1) + [1.0])) ** 2
    nodes[-1], weights[-1] = 1.0, 2.0 / m**2
    return Rule(tuple((0.5 * (nodes + 1.0)).tolist()), tuple((weights / weights.sum()).tolist()))


def _equal(m: int, offset: float) -> Rule:
    m = _count(m)
    return Rule(tuple((k + offset) / m for k in range(m)), (1.0 / m,) * m)


def _count(m: int) -> int:
    if isinstance(m, bool) or not isinstance(m, Integral) or not 1 <= m <= MOST_NODES:
        raise InvalidInput(f"expected a whole number of nodes m ≥ 1, at most {MOST_NODES:,}, got {m!r}")
    return int(m)
