"""Groups of evaluations that can be compared: one dataset, one protocol, one kind of map, one k."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from robattr.data import known
from robattr.errors import CheckpointError
from robattr.reporting.record import evaluated_dataset
from robattr.reporting.run_results import EvaluationResults, RunResults

MOST_SHOWN = 24  # runs in a chart: as many as have a look of their own


@dataclass(frozen=True)
class Group:
    """Comparable evaluations: one dataset, one protocol, one kind of map, one k.

    `show_k` is set where another group differs in k alone (images of another size): titles then say k.
    """

    dataset: str
    protocol: str
    map_name: str
    members: tuple[tuple[RunResults, EvaluationResults], ...]
    show_k: bool = False

    @property
    def title(self) -> str:
        k = f" · k = {self.k}" if self.show_k else ""
        return f"{self.dataset} · {self.protocol} protocol · {self.map_name} maps{k}"

    @property
    def key(self) -> str:
        return f"{self.dataset}-{self.protocol}-{self.map_name}" + (f"-k{self.k}" if self.show_k else "")

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names from the summaries, else from the dataset; () where unknown."""
        written = next((e.summary["classes"] for _, e in self.members if e.summary.get("classes")), None)
        if written is None and self.dataset in known.NAMES:
            from robattr import data  # waits for torch

            written = data.info(self.dataset).classes
        return tuple(map(str, written or ()))

    @property
    def k(self) -> int:
        return self.members[0][1].k

    @property
    def counts(self) -> tuple[int, ...]:
        """The distinct numbers of examples of the evaluations."""
        return tuple(sorted({evaluation.examples for _, evaluation in self.members}))

    def shown(self) -> Group:
        """The group as charts show it: of more than MOST_SHOWN runs the first seed of each variant, then the next."""
        return replace(self, members=tuple(self.members[at] for at in few([run for run, _ in self.members])))

    @cached_property
    def _by_m(self) -> dict[tuple[str, Any], dict[int, list[RunResults]]]:
        """For each method on each network, its runs by m, the nodes of the integral in training."""
        found: dict[tuple[str, Any], dict[int, list[RunResults]]] = {}
        for run, _ in self.members:
            if run.m is not None:
                found.setdefault(_kind(run), {}).setdefault(run.m, []).append(run)
        return found

    def varies_m(self, run: RunResults) -> bool:
        """Whether the runs of this method on this network have several m, as in the paper's table 2."""
        return len(self._by_m.get(_kind(run), ())) > 1

    def with_one_m(self) -> Group:
        """Keep one m of each method on each network: that of most runs, then of most steps, then the largest."""

        def rank(item: tuple[int, list[RunResults]]) -> tuple[int, ...]:
            m, runs = item
            return len(runs), sum(run.config.get("steps") or 0 for run in runs), m

        chosen = {kind: max(by_m.items(), key=rank)[0] for kind, by_m in self._by_m.items()}
        kept = tuple((run, e) for run, e in self.members if run.m in (None, chosen.get(_kind(run))))
        return replace(self, members=kept)


def group_evaluations(runs: Iterable[RunResults]) -> tuple[Group, ...]:
    """Gather the evaluations of the runs into groups that can be compared, in order of appearance."""
    gathered: dict[tuple[str, str, str, int], list[tuple[RunResults, EvaluationResults]]] = {}
    for run in runs:
        for evaluation in run.evaluations:
            summary = evaluation.summary
            dataset, other = evaluated_dataset(run.config, summary)
            key = (dataset, evaluation.protocol, str(summary.get("map", "?")), evaluation.k)
            named = replace(run, name=f"{run.name}, trained on {run.dataset}") if other else run
            gathered.setdefault(key, []).append((named, evaluation))
    if not gathered:
        raise CheckpointError("none of the runs has an evaluation: run `robattr evaluate RUN` first")
    same = Counter(key[:3] for key in gathered)
    return tuple(Group(*key[:3], tuple(m), show_k=same[key[:3]] > 1) for key, m in gathered.items())


def few(runs: Sequence[RunResults]) -> list[int]:
    """The positions of at most MOST_SHOWN runs: the first of each variant, then the second, and so on."""
    seen: Counter[str] = Counter()
    turns = []
    for at, run in enumerate(runs):
        turns.append((seen[run.variant], at))
        seen[run.variant] += 1
    return sorted(at for _, at in sorted(turns)[:MOST_SHOWN])


def _kind(run: RunResults) -> tuple[str, Any]:
    """The method and the network."""
    return run.method, run.config.get("model")
