"""Further sections of a page, as data: the page escapes every word of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Section:
    """A heading, sentences below it, a list of points and a table; whatever is empty is not shown."""

    title: str
    sentences: tuple[str, ...] = ()
    points: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
