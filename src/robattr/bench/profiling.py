"""What a piece of work spends its time on, by kind of kernel (on a CPU: of operator)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

from robattr.bench.timing import wait

CALLS = 3
KINDS = {  # by a word in the name, the first that fits; "cf32" are products inside convolutions by Fourier transform
    "convolutions": ("conv", "fprop", "dgrad", "wgrad", "fft", "winograd", "cf32", "cudnn", "nchwtonhwc", "nhwctonchw"),
    "matrix products": ("gemm", "gemv", "cutlass", "cublas", "::mm", "::addmm", "::bmm", "::addmv", "::mv"),
    "copies": ("memcpy", "memset", "::copy_", "::clone", "::fill_", "::zero_"),
}
REST = "everything between"


def spent(fn: Callable[[], object], device: torch.device) -> dict[str, float]:
    """The share of time of each kind, largest first; on a GPU, of the time its kernels run."""
    on_gpu = device.type == "cuda"
    fn()
    wait(device)
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as seen:
        for _ in range(CALLS):
            fn()
        wait(device)
    times: dict[str, float] = {}
    for event in seen.key_averages():
        kind = kind_of(event.key)
        times[kind] = times.get(kind, 0.0) + (event.self_device_time_total if on_gpu else event.self_cpu_time_total)
    whole = sum(times.values())
    return {kind: times[kind] / whole for kind in sorted(times, key=times.__getitem__, reverse=True)} if whole else {}


def kind_of(name: str) -> str:
    """The kind of a kernel or an operator. Kernels that the compiler generated are named after all they replace."""
    lowered = name.lower()
    if lowered.startswith("triton"):
        return REST
    return next((kind for kind, words in KINDS.items() if any(word in lowered for word in words)), REST)
