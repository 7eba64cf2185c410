"""The processes that compile kernels for a GPU are started before the graph is traced."""

from __future__ import annotations

import pytest
import torch
from torch._inductor import async_compile

from robattr.engine.compiled import Compiled, inductor, start_workers, traced


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
