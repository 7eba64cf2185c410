"""An objective as a form, which compiling depends on, and numbers, which a ramp may change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from robattr.formula.ascent import PGD
from robattr.formula.change import Change
from robattr.formula.neighbourhoods import Everywhere, L1Ball, LinfBall, LpBall
from robattr.formula.objective import Joint, Robust

BALLS = LinfBall | LpBall | L1Ball


def stepwise(rho: Robust | Joint) -> bool:
    """Whether every adversary is PGD in a ball: each step is a function of z alone, without random numbers."""
    searched = [term for term in rho.terms if term.change.terms]
    return all(type(t.by) is PGD and isinstance(t.within, BALLS | Everywhere) for t in searched)


def form(rho: Robust | Joint) -> Robust | Joint:
    """The parts of an objective that are compiled; an adversary or a neighbourhood that runs eagerly is left out."""
    return rho if stepwise(rho) else _each_term(rho, _without_search)


def _without_search(term: Robust) -> Robust:
    changes = [change for change in (term.change, term.attacked) if change is not None]
    bounds = any(change.over(term.within) != change for change in changes)  # of N(x, ε) as a whole
    return replace(term, within=term.within if bounds else Everywhere(), by=PGD(0, 0.0))


def without_numbers(rho: Robust | Joint) -> Robust | Joint:
    """The form with every number 0: what compiling depends on."""
    return _each_term(form(rho), lambda term: _renumbered(term, lambda _: 0.0))


def numbers_of(rho: Robust | Joint) -> list[list[float]]:
    """The numbers of each term of the form."""
    found: list[list[float]] = []

    def keep(number: Any) -> Any:
        found[-1].append(float(number))
        return number

    for term in form(rho).terms:
        found.append([])
        _renumbered(term, keep)
    return found


def with_numbers(term: Robust, numbers: Tensor) -> Robust:
    """One term of a form with these numbers."""
    each = iter(numbers.unbind())
    return _renumbered(term, lambda _: next(each))


def _renumbered(term: Robust, new: Callable[[Any], Any]) -> Robust:
    """The term with new(n) for each number n that a ramp may change: λ, the coefficients, ε and the step size."""

    def change(old: Change) -> Change:
        return Change(tuple((new(c), part) for c, part in old.terms))

    return replace(
        term,
        weight=new(term.weight),
        change=change(term.change),
        attacked=term.attacked and change(term.attacked),
        within=replace(term.within, radius=new(term.within.radius)) if isinstance(term.within, BALLS) else term.within,
        by=replace(term.by, step_size=new(term.by.step_size)) if isinstance(term.by, PGD) else term.by,
    )


def _each_term(rho: Robust | Joint, change: Callable[[Robust], Robust]) -> Robust | Joint:
    return Joint(tuple(map(change, rho.terms))) if isinstance(rho, Joint) else change(rho)
