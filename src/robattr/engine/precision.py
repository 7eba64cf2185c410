"""Arithmetic as an explicit choice: fp32 (exact products), tf32 (10-bit mantissa in products), bf16 (8-bit, autocast).

tf32 and bf16 change convolutions and matrix products alone; sums of the path, sizes and updates stay in float32. On a
CPU tf32 is fp32.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from robattr.errors import InvalidInput, nearest
from robattr.formula.answers import in_use as in_use
from robattr.formula.network import Model

Precision = Literal["fp32", "tf32", "bf16"]
_backends: Any = torch.backends  # whose stubs lack some of these
SWITCHES = (_backends.cuda.matmul, _backends.cudnn.conv, _backends.cudnn.rnn, _backends.mkldnn.matmul)


def layout(arithmetic: str, x: Tensor) -> torch.memory_format:
    """How images like x (B, C, H, W) and the kernels lie in memory where products in that precision run fastest.

    The tf32 and bf16 units of a GPU read pixels with all their channels beside each other; other layouts are copied
    first. Images of one channel have them so only in bf16, where `forms` keep the later layers fast.
    """
    last = x.is_cuda and x.dim() == 4 and (arithmetic == "bf16" or (arithmetic == "tf32" and x.shape[1] > 1))
    return torch.channels_last if last else torch.contiguous_format


@contextmanager
def precision(name: str, device: str = "cuda") -> Iterator[None]:
    """While open, products run in the named precision; on leaving, every switch is as it was.

    One switch is torch's own: on a CPU without bf16 units the first bf16 product turns oneDNN off for the process.
    """
    if name not in get_args(Precision):
        raise InvalidInput(f"unknown precision {name!r}: {nearest(name, get_args(Precision))}")
    products, convolutions = "highest", name != "fp32"  # torch refuses to read them where fp32_precision was set
    with suppress(RuntimeError):
        products = torch.get_float32_matmul_precision()
    with suppress(RuntimeError):
        convolutions = torch.backends.cudnn.allow_tf32
    before, onednn = [switch.fp32_precision for switch in SWITCHES], torch.backends.mkldnn.enabled
    low = torch.autocast(device, dtype=torch.bfloat16, enabled=name == "bf16")
    try:
        torch.set_float32_matmul_precision("highest" if name == "fp32" else "high")
        torch.backends.cudnn.allow_tf32 = name != "fp32"
        for switch in SWITCHES:
            switch.fp32_precision = "ieee" if name == "fp32" else "tf32"
        with low:
            yield
    finally:
        torch.set_float32_matmul_precision(products)
        torch.backends.cudnn.allow_tf32 = convolutions
        for switch, value in zip(SWITCHES, before, strict=True):
            switch.fp32_precision = value
        torch.backends.mkldnn.enabled = onednn


def exactly(model: Model) -> Model:
    """x ↦ model(x) with products in fp32, whatever precision is in use: predictions do not depend on it."""

    def logits(x: Tensor) -> Tensor:
        with precision("fp32", x.device.type):
            return model(x)

    return logits


@contextmanager
def deterministic(wanted: bool = True) -> Iterator[None]:
    """While open, torch uses deterministic algorithms: an fp32 run repeats bit for bit with equal versions."""
    if not wanted:
        yield
        return
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cudnn.benchmark,
    )
    try:
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cudnn.benchmark = False
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.backends.cudnn.benchmark = before[2]


@contextmanager
def tuned() -> Iterator[None]:
    """While open, cuDNN times its algorithms for each shape and keeps the fastest, unless runs must repeat bit for bit.

    For training alone: an evaluation repeats, and the fastest algorithm may be another one next time.
    """
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = not torch.are_deterministic_algorithms_enabled()
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
