"""What the paper's attack found, for a second evaluation that begins with it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from robattr.attacks.result import AttackResult


class PaperResults:
    """What the paper's attack found on batches of examples, kept by an evaluation under `paper`, in the host's memory.

    `strict` begins with the same attack: for the same model, map and examples it takes these results instead. Batches
    that do not fit into `room` bytes are attacked again.
    """

    def __init__(self, room: int = 2**30) -> None:
        self._room, self._kept = room, dict[tuple[int, ...], AttackResult]()

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, ids: Sequence[int], found: AttackResult) -> None:
        if found.bytes <= self._room:
            self._room -= found.bytes
            self._kept[tuple(ids)] = found.to(torch.device("cpu"))

    def take(self, ids: Sequence[int], device: torch.device) -> AttackResult | None:
        """The results of exactly these examples, once."""
        found = self._kept.pop(tuple(ids), None)
        return None if found is None else found.to(device)
