"""Random numbers per example: the same in any batch, on any device, in any process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

Row = tuple[int, ...]


def uniform(like: Tensor, rows: Sequence[Row], *keys: int) -> Tensor:
    """U(0, 1) of `like`'s shape (B, ...); row b depends on `keys` and `rows[b]` (for example id and restart) alone."""
    shape = tuple(like.shape[1:])
    drawn = [np.random.default_rng([*keys, *row]).random(shape) for row in rows]
    return torch.from_numpy(np.stack(drawn)).to(like)


def rand_like(rows: Sequence[Row], *keys: int) -> Callable[[Tensor], Tensor]:
    """A replacement for `torch.rand_like` whose n-th call draws `uniform(x, rows, *keys, n)`."""
    calls = iter(range(2**31))
    return lambda like: uniform(like, rows, *keys, next(calls))


def normal_parts(like: Tensor, rows: Sequence[Row], sizes: Iterable[int], *keys: int) -> Iterator[Tensor]:
    """Draws of N(0, I) for each row in parts (B, n, ...), n of `sizes`, float64 on the CPU.

    Draw t of row b depends on `keys`, `rows[b]` and t alone, not on how many are drawn at a time. A thread draws the
    next part while one is in use.
    """
    shape = tuple(like.shape[1:])
    sources = [np.random.default_rng([*keys, *row]) for row in rows]

    def draw(n: int) -> Tensor:
        return torch.from_numpy(np.stack([source.standard_normal((n, *shape)) for source in sources]))

    with ThreadPoolExecutor(1) as thread:
        coming: Future[Tensor] | None = None
        for n in sizes:
            ready, coming = coming, thread.submit(draw, n)
            if ready is not None:
                yield ready.result()
        if coming is not None:
            yield coming.result()
