"""Run a batch in as many parts as the memory of the device needs."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from robattr.engine.batch_size import divided
from robattr.formula.neighbourhoods import Rand

T = TypeVar("T")


class Parts:
    """Call work(slice) for all of a batch; where memory runs out, again from its first example in twice as many parts.

    `count`, the number of parts, stays for the next batch; `rows_that_fit` is divided by it. The error is raised where
    a part is one example and its passes one row, or where `divisible` says no: then the examples of a batch depend on
    each other, and it runs whole. `release` gives memory back.
    """

    def __init__(self, release: Callable[[], object] = lambda: None) -> None:
        self.count, self._release = 1, release

    def __call__(
        self, work: Callable[[slice], T], size: int, *, divisible: Callable[[], bool] = lambda: True
    ) -> list[T]:
        count = self.count if self.count == 1 or divisible() else 1
        while True:
            length = -(-size // count)
            try:
                with divided(count) as division:
                    return [work(slice(at, min(at + length, size))) for at in range(0, size, length)]
            except torch.OutOfMemoryError as error:
                if length == 1 and division.most == 1:
                    raise
                failed = error.with_traceback(None)  # its frames hold what the failed attempt had made
            self._free()
            if not divisible():
                raise failed
            self.count = count = 2 * count

    def whole(self, work: Callable[[], T]) -> T:
        """Call work(), which asks `rows_that_fit`; where memory runs out, again with half as many rows."""
        return self(lambda _: work(), 1)[0]

    def _free(self) -> None:
        self._release()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def same_draws(rand: Rand, size: int) -> Callable[[slice], Rand]:
    """Random numbers of a part, cut from draws for the whole batch of `size`: they do not depend on the parts."""
    drawn: list[Tensor] = []

    def of(part: slice) -> Rand:
        calls = 0

        def draw(like: Tensor) -> Tensor:
            nonlocal calls
            if calls == len(drawn):
                drawn.append(rand(like.new_empty((size, *like.shape[1:]))))
            calls += 1
            return drawn[calls - 1][part]

        return draw

    return of
