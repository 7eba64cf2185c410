"""Compiled functions: when the compiler's processes start, and what happens where an interrupt ends them."""

from __future__ import annotations

import signal
import warnings

import pytest
import torch
from torch._inductor import async_compile

from robattr.engine.compiled import Compiled, inductor, start_workers, traced
from robattr.engine.signals import stop_signals
from robattr.errors import CompilationFellBack


class OnGPU(torch.Tensor):
    """A tensor of this machine that says it is on a GPU."""

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True


@pytest.mark.parametrize(
    ("backend", "x", "started"),
    [(inductor, torch.ones(2).as_subclass(OnGPU), 1), (inductor, torch.ones(2), 0), (traced, torch.ones(2), 0)],
    ids=["inductor on a GPU", "inductor on a CPU", "no generated code"],
)
def test_workers_start_with_the_first_call(
    backend: object, x: torch.Tensor, started: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = list[str]()
    monkeypatch.setattr("robattr.engine.compiled.start_workers", lambda: calls.append("workers"))
    monkeypatch.setattr("robattr.engine.compiled.trace", lambda *_: pytest.fail("stop"))

    def fn(x: torch.Tensor) -> torch.Tensor:
        calls.append("eager")
        return 2 * x

    with pytest.raises(pytest.fail.Exception, match="stop"):
        Compiled(fn, name="test", backend=backend)(x)  # type: ignore[arg-type]
    assert calls == ["workers"] * started + ["eager"]


def test_workers_are_those_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[int]()
    monkeypatch.setattr(async_compile, "maybe_warm_pool", lambda: calls.append(1))
    start_workers()
    assert calls == [1]
    monkeypatch.delattr(async_compile, "maybe_warm_pool")
    start_workers()  # a later torch may not have it


def test_a_compiler_that_a_signal_ends_is_not_warned_about() -> None:
    def ended(*_: object) -> object:
        raise RuntimeError("C++ compile error")

    def interrupted(*_: object) -> object:
        signal.raise_signal(signal.SIGINT)  # which the terminal also sends to the compiler
        return ended()

    with stop_signals() as received, warnings.catch_warnings(action="error"):
        for backend in (interrupted, ended):  # the next function that was being compiled meets the same
            assert Compiled(torch.sin, name="step", backend=backend)(torch.ones(2)).equal(torch.ones(2).sin())  # type: ignore[arg-type]
    assert received == [signal.SIGINT]
    with stop_signals(), pytest.warns(CompilationFellBack, match="the step could not be compiled .*C.. compile error"):
        Compiled(torch.sin, name="step", backend=ended)(torch.ones(2))  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):  # in an evaluation, where the signal acts as usual
        Compiled(torch.sin, name="step", backend=interrupted)(torch.ones(2))  # type: ignore[arg-type]
