"""The numbers of an objective that a ramp may change, apart from its form, which is what compiling depends on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from torch import Tensor

from robattr.formula.ascent import PGD
from robattr.formula.change import Change
from robattr.formula.neighbourhoods import Everywhere, L1Ball, LinfBall, LpBall
from robattr.formula.objective import Joint, Robust

BALLS = LinfBall | LpBall | L1Ball


def terms_of(rho: Robust | Joint) -> tuple[Robust, ...]:
    return rho.terms if isinstance(rho, Joint) else (rho,)


def each_term(rho: Robust | Joint, change: Callable[[Robust], Robust]) -> Robust | Joint:
    return Joint(tuple(map(change, rho.terms))) if isinstance(rho, Joint) else change(rho)


def stepwise(rho: Robust | Joint) -> bool:
    """Whether every adversary is PGD in a ball: each step is a function of z alone, without random numbers."""
    searched = [term for term in terms_of(rho) if term.change.terms]
    return all(type(t.by) is PGD and isinstance(t.within, BALLS | Everywhere) for t in searched)


def form(rho: Robust | Joint) -> Robust | Joint:
    """The parts of an objective that are compiled; an adversary or a neighbourhood that runs eagerly is left out."""
    return rho if stepwise(rho) else each_term(rho, lambda t: replace(t, within=Everywhere(), by=PGD(0, 0.0)))


def numbers_of(rho: Robust | Joint) -> list[float]:
    """Everything in an objective that a ramp may change: λ, the coefficients, ε and the step size."""
    return [float(n) for term in terms_of(form(rho)) for n in _numbers_of(term)]


def _numbers_of(term: Robust) -> list[Any]:
    found: list[Any] = [term.weight, *(c for c, _ in term.change.terms)]
    found += [c for c, _ in term.attacked.terms] if term.attacked else []
    found += [term.within.radius] if isinstance(term.within, BALLS) else []
    return found + ([term.by.step_size] if isinstance(term.by, PGD) else [])


def split_numbers(rho: Robust | Joint, numbers: Tensor) -> list[Tensor]:
    """The numbers of each term."""
    return list(numbers.split([len(_numbers_of(term)) for term in terms_of(form(rho))]))


def with_numbers(rho: Robust | Joint, numbers: Tensor | None) -> Robust | Joint:
    """The objective with those numbers; with None all of them are 0, and what is left is what compiling depends on."""
    count = len(numbers_of(rho))
    each: Iterator[Any] = iter([0.0] * count if numbers is None else numbers.unbind())
    return each_term(form(rho), lambda term: renumbered(term, each))


def renumbered(term: Robust, each: Iterator[Any]) -> Robust:
    """One term with its numbers from the iterator."""

    def change(old: Change) -> Change:
        return Change(tuple((next(each), part) for _, part in old.terms))

    return replace(
        term,
        weight=next(each),
        change=change(term.change),
        attacked=term.attacked and change(term.attacked),
        within=replace(term.within, radius=next(each)) if isinstance(term.within, BALLS) else term.within,
        by=replace(term.by, step_size=next(each)) if isinstance(term.by, PGD) else term.by,
    )
