"""Times, counts and profiles of a function, and checks that two results agree."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any
from unittest import mock

import torch
import torch._inductor
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from benchmarks.results import Agreement, Roofline, Times
from robattr.engine import compiled, precision

SHORTEST = 0.1  # seconds: shorter calls are timed several at once, as training runs them: it does not wait for a GPU
ALLOWED = {"fp32": 1e-3, "tf32": 0.05, "bf16": 0.25}  # distance of gradients and maps
# Share of the first step's gain that rounding may cost an attack. Most of the loss comes from the clean map: where two
# pixels exchange ranks at the edge of the top k, the attack lowers the other one. With tf32 rounding imitated on a CPU,
# twelve MNIST images lost 0.7 to 5.2% each, 1.8% on average; with the same top pixels, 0.03 to 0.4%.
LOST = {"fp32": 0.005, "tf32": 0.05, "bf16": 0.2}
KINDS = {  # by a word in the name, the first that fits; "cf32" are products inside convolutions by Fourier transform
    "convolutions": ("conv", "fprop", "dgrad", "wgrad", "fft", "winograd", "cf32", "cudnn", "nchwtonhwc", "nhwctonchw"),
    "matrix products": ("gemm", "gemv", "cutlass", "cublas", "nvjet", "::mm", "::addmm", "::bmm", "::addmv", "::mv"),
    "copies": ("memcpy", "memset", "::copy_", "::clone", "::fill_", "::zero_"),
}
REST = "everything between"
SLOWEST, NAMED = 15, 160  # kernels that a profile lists, and letters of a name
PHASES = (  # of a compilation: what it is called, and the function of the engine
    ("eager", compiled.Compiled, "_expected"),
    ("trace", compiled, "trace"),
    ("kernels", torch._inductor, "standalone_compile"),
    ("first call", compiled.Code, "__call__"),
    ("check", compiled, "check_close"),
)


class Disagreement(Exception):
    """The port and the engine differ by more than rounding explains."""


def agree(of: str, ours: Tensor, theirs: Tensor, *, allowed: float) -> Agreement:
    """The distance ‖ours − theirs‖₂ / ‖theirs‖₂, or a Disagreement."""
    return within(of, distance(ours, theirs), allowed=allowed)


def distance(ours: Tensor, theirs: Tensor) -> float:
    """‖ours − theirs‖₂ / ‖theirs‖₂ over all elements."""
    a, b = ours.detach().double().cpu(), theirs.detach().double().cpu()
    return float((a - b).norm() / b.norm())


def within(of: str, measured: float, *, allowed: float) -> Agreement:
    """A measured distance, or a Disagreement where it exceeds `allowed` or is NaN."""
    if math.isnan(measured) or measured > allowed:
        raise Disagreement(
            f"the engine and the eager port disagree on the {of}: distance {measured:.3g}, allowed {allowed:.3g}"
        )
    return Agreement(of, measured, allowed)


def wait(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(fn: Callable[[], object], device: torch.device, *, calls: int = 1) -> float:
    """Seconds of `calls` calls, the device included."""
    wait(device)
    begun = time.perf_counter()
    for _ in range(calls):
        fn()
    wait(device)
    return time.perf_counter() - begun


def timed(
    *functions: Callable[[], object], device: torch.device, repeats: int = 10, seconds: float = 5.0
) -> list[Times]:
    """Time each function after a warm-up, samples interleaved so that a busy machine slows all alike.

    Takes fewer than `repeats` samples, but at least three, where more would exceed `seconds`.
    """
    plans = []
    for fn in functions:
        seconds_of(fn, device)
        first = max(seconds_of(fn, device), 1e-7)
        calls = max(1, round(SHORTEST / first))
        plans.append((fn, calls, min(repeats, max(int(seconds / (first * calls)), 3 if first < seconds else 1))))
    samples: list[list[float]] = [[] for _ in plans]
    for turn in range(repeats):
        for (fn, calls, wanted), taken in zip(plans, samples, strict=True):
            if turn < wanted:
                taken.append(1e3 * seconds_of(fn, device, calls=calls) / calls)
    return [
        Times(median(taken), min(taken), max(taken), len(taken), calls)
        for (_, calls, _), taken in zip(plans, samples, strict=True)
    ]


@dataclass(frozen=True)
class Rates:
    """Measured limits of the device: operations/s of a large matrix product, bytes/s of a large copy."""

    operations: float
    bytes: float


def measured_rates(device: torch.device, arithmetic: str) -> Rates:
    """The limits of the device in the precision used; a copy counts bytes read plus bytes written."""
    n, size = (8192, 2**28) if device.type == "cuda" else (1536, 2**25)
    dtype = torch.bfloat16 if arithmetic == "bf16" else torch.float32
    a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    product, source = torch.empty_like(a), torch.randn(size, device=device)
    target = torch.empty_like(source)
    with precision("fp32" if arithmetic == "bf16" else arithmetic, device.type):
        (multiply,) = timed(lambda: torch.mm(a, b, out=product), device=device, seconds=2.0)
    (copy,) = timed(lambda: target.copy_(source), device=device, seconds=2.0)
    return Rates(2 * n**3 / (multiply.low / 1e3), 2 * 4 * size / (copy.low / 1e3))


@dataclass(frozen=True)
class Work:
    """Operations, least bytes and kept bytes of a computation."""

    operations: float
    bytes: float
    kept: float

    def roofline(self, rates: Rates, *, baseline: float) -> Roofline:
        """The least time of this work; `baseline`: operations of the port."""
        busy, moved = 1e3 * self.operations / rates.operations, 1e3 * self.bytes / rates.bytes
        bound = "operations" if busy >= moved else "bytes"
        kept_ms = 1e3 * self.kept / rates.bytes
        return Roofline(self.operations, self.bytes, self.kept, baseline, max(busy, moved), kept_ms, bound)


class _Operations(TorchDispatchMode):
    """Counts every kernel below autograd. torch's FlopCounterMode also tracks modules, which `autograd.grad` breaks."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if (count := flop_registry.get(func.overloadpacket)) is not None:
            self.total += int(count(*args, **(kwargs or {}), out_val=out))
        return out


def operations(fn: Callable[[], object]) -> int:
    """Floating-point operations of convolutions and matrix products in fn(), by torch's formulas."""
    with _Operations() as counted:
        fn()
    return int(counted.total)


def generated_kernels() -> int:
    """How many kernels torch's compiler has written so far."""
    from torch._inductor import metrics

    return int(metrics.generated_kernel_count)


@contextmanager
def compiling() -> Iterator[dict[str, float]]:
    """Seconds of the phases of compilation inside the block, filled as they pass."""
    spent: dict[str, float] = {}

    def watch(phase: str, fn: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **settings: Any) -> Any:
            begun = time.perf_counter()
            try:
                return fn(*args, **settings)
            finally:
                spent[phase] = spent.get(phase, 0.0) + time.perf_counter() - begun

        return watched

    with ExitStack() as stack:
        for phase, owner, name in PHASES:
            stack.enter_context(mock.patch.object(owner, name, watch(phase, getattr(owner, name))))
        yield spent


def size_of(*tensors: Tensor) -> int:
    """Their bytes."""
    return sum(t.numel() * t.element_size() for t in tensors)


@dataclass(frozen=True)
class Profile:
    """Shares of the time by kind of kernel, largest first, the slowest kernels, and the milliseconds of all.

    Of a slow kernel: name, ms and launches per call.
    """

    shares: dict[str, float]
    slowest: tuple[tuple[str, float, float], ...]
    ms: float


def profiled(fn: Callable[[], object], device: torch.device, *, calls: int = 3) -> Profile:
    """Where the time of fn() goes, by kernel (on a CPU, by operator)."""
    on_gpu = device.type == "cuda"
    fn()
    wait(device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the profiler of a CUDA build warns about its own events, on a CPU too
        with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as seen:
            for _ in range(calls):
                fn()
            wait(device)
        events = seen.key_averages()
    each = [
        (e.key, (e.self_device_time_total if on_gpu else e.self_cpu_time_total) / 1e3 / calls, e.count / calls)
        for e in events
    ]
    each.sort(key=lambda kernel: -kernel[1])
    times: dict[str, float] = {}
    for name, ms, _ in each:
        times[kind_of(name)] = times.get(kind_of(name), 0.0) + ms
    whole = sum(times.values())
    shares = {kind: times[kind] / (whole or 1.0) for kind in sorted(times, key=times.__getitem__, reverse=True)}
    return Profile(shares, tuple((name[:NAMED], ms, count) for name, ms, count in each[:SLOWEST]), whole)


def kind_of(name: str) -> str:
    """The kind of a kernel or operator. Generated (Triton) kernels carry the names of all that they fuse."""
    lowered = name.lower()
    if lowered.startswith("triton"):
        return REST
    return next((kind for kind, words in KINDS.items() if any(word in lowered for word in words)), REST)
