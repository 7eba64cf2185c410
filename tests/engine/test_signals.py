"""Signals that stop a training."""

from __future__ import annotations

import signal
import threading

import pytest

from robattr.engine.signals import stop_signals, stopping


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_collected_and_the_second_acts_as_usual(number: signal.Signals) -> None:
    def usual(*_: object) -> None:
        raise InterruptedError

    before = signal.signal(number, usual)
    try:
        with stop_signals() as received:
            assert not stopping()
            signal.raise_signal(number)
            assert (received, stopping()) == ([number], True)
            with pytest.raises(InterruptedError):
                signal.raise_signal(number)
        assert (signal.getsignal(number), stopping()) == (usual, False)
    finally:
        signal.signal(number, before)


def test_another_thread_collects_nothing() -> None:
    found = list[object]()

    def work() -> None:
        with stop_signals() as received:
            found.extend([received, stopping(), signal.getsignal(signal.SIGINT)])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [[], False, signal.getsignal(signal.SIGINT)]
