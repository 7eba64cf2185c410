"""Equal accuracy: the number of midpoints that is as accurate as the reference's right ends, measured on the case.

    IG            mean over examples of ‖IG_rule − IG_fine‖₁ / ‖IG_fine‖₁
    ‖IG‖₁         mean of |‖IG_rule‖₁ − ‖IG_fine‖₁| / ‖IG_fine‖₁, the error of the penalty
    completeness  mean of |Σ IG_rule − (ℓ(x') − ℓ(x))| / |ℓ(x') − ℓ(x)|, the usual check in the literature

at the x' that the adversary finds. Gradients of ReLU networks jump. So the error of IG itself stays O(1/m) with the
midpoint rule, with a smaller constant; in sums over pixels the jumps average out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.results import Table
from benchmarks.workloads import Workload
from robattr.formula.attribution import IG
from robattr.formula.network import bind, second_order
from robattr.formula.quadrature import Rule, midpoint, right
from robattr.formula.scalars import cross_entropy

EXAMPLES, FINE, CHUNK = 16, 400, 20
GRID = (*range(1, 12), *range(12, 50, 2), *range(50, 100, 5))  # numbers of midpoints that are tried
ERRORS = ("IG", "‖IG‖₁", "completeness")


@dataclass(frozen=True)
class Accuracy:
    """Midpoints as accurate as the reference by one of the errors: m in the update, m_attack in the attack."""

    by: str
    m: int
    m_attack: int


class Quadrature:
    """The errors of rules on one workload; each rule is evaluated once."""

    def __init__(self, work: Workload) -> None:
        self.config, few = work.config, work.first(EXAMPLES)
        with second_order(few.model):
            self._worst = few.objective(midpoint).attack(bind(few.model).detach(), few.x, few.y, start=few.start)
        self._few, self._fine = few, attribution(few, midpoint(FINE), self._worst)
        with torch.no_grad():
            self._gain = cross_entropy(few.model, self._worst, few.y) - cross_entropy(few.model, few.x, few.y)
        self._known: dict[Rule, dict[str, float]] = {}

    def errors(self, rule: Rule) -> dict[str, float]:
        """The three errors of a rule."""
        if rule not in self._known:
            ig, fine = attribution(self._few, rule, self._worst), self._fine
            values = (
                norm(ig - fine) / norm(fine),
                (norm(ig) - norm(fine)).abs() / norm(fine),
                (ig.flatten(1).sum(1) - self._gain).abs() / self._gain.abs(),
            )
            self._known[rule] = {name: float(value.mean()) for name, value in zip(ERRORS, values, strict=True)}
        return self._known[rule]

    def equal(self, by: str) -> Accuracy:
        """The fewest midpoints whose error does not exceed the error of the recipe's right ends."""
        m, m_attack = (fewest(lambda rule: self.errors(rule)[by], n) for n in (self.config.m, self.config.m_attack))
        return Accuracy(by, m, m_attack)

    def table(self, found: list[Accuracy]) -> Table:
        """The errors of the reference's rules and of ours."""
        rows: list[tuple[str | float, ...]] = []

        def add(use: str, who: str, name: str, rule: Rule) -> None:
            rows.append((use, f"{name}({len(rule)})", who, *self.errors(rule).values()))

        for use, reference in (("update", self.config.m), ("attack", self.config.m_attack)):
            add(use, "reference", "right", right(reference))
            for each in found:
                m = each.m if use == "update" else each.m_attack
                add(use, f"engine, equal error of {each.by}", "midpoint", midpoint(m))
            add(use, "as many midpoints", "midpoint", midpoint(reference))
        columns = ("for", "rule", "who", *(f"error of {name}" for name in ERRORS))
        return Table(f"Relative quadrature errors, fine rule midpoint({FINE})", columns, tuple(rows))


def fewest(error: Callable[[Rule], float], reference: int) -> int:
    """The fewest midpoints of the grid whose error does not exceed the error of `reference` right ends."""
    allowed = error(right(reference))
    return next((m for m in GRID if m < reference and error(midpoint(m)) <= allowed), reference)


def fine_penalty(work: Workload, worst: Tensor) -> float:
    """mean ‖IG(x, x')‖₁ by the fine rule: the strength of an x', independent of the rule that found it."""
    few = work.first(EXAMPLES)
    return float(norm(attribution(few, midpoint(FINE), worst[:EXAMPLES])).mean())


def attribution(work: Workload, rule: Rule, worst: Tensor) -> Tensor:
    """IG(x, x') without a graph, in chunks of nodes."""
    with torch.no_grad():
        return IG(rule=rule, chunk=CHUNK)(work.model, work.x, worst, work.y)


def norm(a: Tensor) -> Tensor:
    """‖·‖₁ of each example."""
    return a.flatten(1).abs().sum(1)
