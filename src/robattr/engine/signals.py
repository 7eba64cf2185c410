"""Signals that ask a training to stop, which it does after the step that it is in."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Any

_received: ContextVar[Sequence[int]] = ContextVar("signals of the innermost `stop_signals`", default=())


@contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM instead of ending the process; a second one of a kind acts as usual."""
    received: list[int] = []
    previous: dict[signal.Signals, Any] = {}

    def handle(number: int, frame: FrameType | None) -> None:
        received.append(number)
        signal.signal(number, previous[signal.Signals(number)])

    if threading.current_thread() is threading.main_thread():  # Python accepts handlers only there
        previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in previous:
        signal.signal(number, handle)
    outer = _received.set(received)
    try:
        yield received
    finally:
        _received.reset(outer)
        for number, handler in previous.items():
            signal.signal(number, handler)


def stopping() -> bool:
    """Whether a signal was collected: it also ends the processes that this one has started, such as a compiler's."""
    return bool(_received.get())
