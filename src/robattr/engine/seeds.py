"""Random generators as functions of (seed, stream, index)."""

from __future__ import annotations

import torch


def generator(seed: int, stream: int, index: int) -> torch.Generator:
    """A CPU generator that is a function of (seed, stream, index) alone, with well separated states.

    SplitMix64's finaliser mixes the three, since neighbouring seeds of a Mersenne twister start correlated.
    """
    mask = (1 << 64) - 1
    state = 0
    for part in (seed, stream, index):
        state = (state ^ (part & mask)) + 0x9E3779B97F4A7C15 & mask
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & mask
        state = (state ^ state >> 27) * 0x94D049BB133111EB & mask
        state ^= state >> 31
    return torch.Generator().manual_seed(state)
