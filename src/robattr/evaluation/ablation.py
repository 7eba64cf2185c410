"""What each attack of the strict protocol adds, from the records: {attack: [top-k, Kendall]} of every example."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from robattr.evaluation.records import Rows
from robattr.evaluation.scores import COMPARED

WITHOUT_GRADIENTS = ("random", "score")


@dataclass(frozen=True)
class Contribution:
    """One attack. alone, adds and wins are (top-k, Kendall).

    ran     examples that it ran on
    alone   its mean score on them, where it kept the label
    adds    how much the worst case over all examples would be higher without it
    wins    examples whose worst case it alone reaches
    """

    attack: str
    ran: int
    alone: tuple[float | None, float | None]
    adds: tuple[float, float]
    wins: tuple[int, int]


def contributions(records: Rows) -> list[Contribution]:
    """Leave each attack out in turn; in the order of the schedule."""
    rows = [r["attacks"] for r in records if r.get("attacks")]
    names = sorted(dict.fromkeys(name for row in rows for name in row), key=lambda name: _order(name, rows))
    found = []
    for name in names:
        ran = [row[name] for row in rows if name in row]
        alone, adds, wins = [], [], []
        for at in range(len(COMPARED)):
            known = [pair[at] for pair in ran if pair[at] is not None]
            gaps = [_lowest(row, at, but=(name,)) - _lowest(row, at) for row in rows]
            alone.append(fmean(known) if known else None)
            adds.append(fmean(gaps))
            wins.append(sum(gap > 0 for gap in gaps))
        found.append(Contribution(name, len(ran), (alone[0], alone[1]), (adds[0], adds[1]), (wins[0], wins[1])))
    return found


def advantage(records: Rows, name: str) -> float | None:
    """How much lower an attack is than all attacks by gradients, on average: the larger over the scores, or None."""
    rows = [r["attacks"] for r in records if name in (r.get("attacks") or {})]
    if not rows:
        return None
    return max(
        fmean(max(0.0, _lowest(row, at, but=WITHOUT_GRADIENTS) - _value(row[name], at)) for row in rows)
        for at in range(len(COMPARED))
    )


def _lowest(row: Mapping[str, Any], at: int, *, but: Collection[str] = ()) -> float:
    """The worst case of an example without some attacks; 1 where none of the others kept the label."""
    return min((_value(pair, at) for name, pair in row.items() if name not in but), default=1.0)


def _value(pair: Sequence[float | None], at: int) -> float:
    value = pair[at]
    return 1.0 if value is None else value


def _order(name: str, rows: Sequence[Mapping[str, Any]]) -> int:
    """The latest place of an attack among those that ran on an example."""
    return max(list(row).index(name) for row in rows if name in row)
