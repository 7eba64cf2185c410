"""What `paper` found, for a second evaluation that begins with the same attack and the same noise."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from robattr.attacks.result import AttackResult


class PaperResults:
    """What the paper's attack and random noise found on batches of examples, kept by `paper` in the host's memory.

    `strict` has the same attack and the same noise: for the same model, map and examples it takes these results
    instead. Batches that do not fit into `room` bytes are attacked again.
    """

    def __init__(self, room: int = 2**30) -> None:
        self._room, self._kept = room, dict[tuple[int, ...], tuple[AttackResult, AttackResult]]()

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, ids: Sequence[int], found: AttackResult, noise: AttackResult) -> None:
        if (needed := found.bytes + noise.bytes) <= self._room:
            self._room -= needed
            self._kept[tuple(ids)] = found.to(torch.device("cpu")), noise.to(torch.device("cpu"))

    def take(self, ids: Sequence[int], device: torch.device) -> tuple[AttackResult, AttackResult] | None:
        """The results of exactly these examples, of the attack and of the noise, once."""
        found = self._kept.pop(tuple(ids), None)
        return found and (found[0].to(device), found[1].to(device))
