"""A model and a map on examples with noise, cut into batches: what is recorded of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from robattr.certificates.certificate import bounds_from
from robattr.certificates.challenge import CERTIFICATES, Challenge, challenge
from robattr.certificates.record import attack_record, identities, tally_of, with_counts
from robattr.certificates.smoothing import Smoothing, tally
from robattr.engine import in_use
from robattr.engine.batch_size import rows_that_fit
from robattr.errors import InvalidInput
from robattr.evaluation.checks import ModelProbe, require
from robattr.evaluation.example_set import ExampleSet
from robattr.evaluation.records import Record, Rows
from robattr.evaluation.resume_checks import digest_of_weights


@dataclass(frozen=True)
class Examples(ExampleSet):
    """A model and a map on examples, and the noise. `bounds` are the range of the data."""

    smoothing: Smoothing
    bounds: tuple[float, float] = (0.0, 1.0)

    def __post_init__(self) -> None:
        if not len(self.x) == len(self.y) == len(self.ids) > 0 or len(set(self.ids)) != len(self.ids):
            raise InvalidInput(
                f"expected as many labels and different ids as examples, got {len(self.x)} examples, {len(self.y)} "
                f"labels and {len(set(self.ids))} ids"
            )

    def check(self, *, differentiated: bool = False) -> None:
        """Refuse a model or examples for which the counts have no meaning; attacks also differentiate twice."""
        x, y, _ = self.take(range(len(self.x)))
        require(ModelProbe(self.model, x, y, self.bounds), differentiated=differentiated)

    def batches(self, copies: int) -> list[range]:
        """Positions of the examples of each batch: as many as fit with `copies` noisy copies each, at least one."""
        fits = rows_that_fit(self.model, self.x[:1].to(self.device), passes=self.map.together)
        return self.cut(max(1, fits // copies))

    def settings(self) -> dict[str, Any]:
        """What the counts depend on, besides the examples, which are compared one by one."""
        return {
            **self.smoothing.settings(),
            "map": self.map.name,
            "points": self.map.nodes,
            "weights": digest_of_weights(self.model),
            "precision": in_use(self.device),
        }

    def counted(self, at: Sequence[int], passed: Callable[[int], None]) -> list[Record]:
        """The records of a batch."""
        x, y, ids = self.take(at)
        found = tally(self.model, self.map, x, y, ids=ids, smoothing=self.smoothing, passed=passed)
        return with_counts(identities(self.model, self.map, x, y, ids), found)

    def attacked(
        self, at: Sequence[int], passed: Callable[[int], None], *, known: Rows, claim: float, how: Challenge
    ) -> list[Record]:
        """The records of a challenge of a batch; the certificates at `claim` follow from the records `known`."""
        x, y, ids = self.take(at)
        by_id = {r["id"]: r for r in known}
        certified = bounds_from(tally_of([by_id[i] for i in ids], self.smoothing), self.smoothing).at(claim)
        found = challenge(
            self.model, self.map, x, y, certified, ids=ids, smoothing=self.smoothing, how=how, passed=passed
        )
        broken = [each.broken(certified) for each in found.values()]
        return [
            attack_record(about, b, found, [name for name in CERTIFICATES if any(one[name][b] for one in broken)])
            for b, about in enumerate(identities(self.model, self.map, x, y, ids))
        ]
