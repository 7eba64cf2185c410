"""A device whose memory runs out: a GPU by a limit of the process, a CPU by a network that refuses large batches."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf

import pytest
import torch
from torch import nn

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


class Memory:
    """Measure what the work of a `net` takes, in bytes on a GPU and in rows of a batch on a CPU; then give less."""

    def __init__(self, device: str) -> None:
        self.device, self._rows, self._fit, self._refused = device, 0, inf, 0
        self._before = self._errors()

    def net(self, inputs: int = 36) -> nn.Module:
        """A network in float64 whose activations take some hundred megabytes on a GPU, and little on a CPU."""
        width = 2**16 if self.device == "cuda" else 32
        torch.manual_seed(5)
        net = nn.Sequential(nn.Flatten(), nn.Linear(inputs, width), nn.Softplus(), nn.Linear(width, 3))

        def fit(_: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
            if torch.is_grad_enabled():  # what a graph keeps is what takes memory
                self._rows = max(self._rows, len(args[0]))
                if len(args[0]) > self._fit:
                    self._refused += 1
                    raise torch.OutOfMemoryError(f"{len(args[0])} rows do not fit")

        if self.device == "cpu":
            net.register_forward_pre_hook(fit)
        return net.double().to(self.device)

    @property
    def failures(self) -> int:
        """How often memory has run out."""
        return self._errors() - self._before

    def _errors(self) -> int:
        return self._refused if self.device == "cpu" else int(torch.cuda.memory_stats().get("num_ooms", 0))

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Measure the peak of what happens inside."""
        if self.device == "cpu":
            self._rows = 0
            yield
            self.peak = self._rows
            return
        held = _held()
        torch.cuda.reset_peak_memory_stats()
        yield
        self.peak = torch.cuda.max_memory_allocated() - held
        assert self.peak > 2**28, "too little for the allocator, which takes 20 MB at a time, to notice a limit"

    @contextmanager
    def scarce(self, share: float) -> Iterator[None]:
        """Leave `share` of the measured peak, beyond what is held now."""
        if self.device == "cpu":
            self._fit = share * self.peak
        else:
            _held()
            whole = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
            torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + share * self.peak) / whole)
        try:
            yield
        finally:
            self._fit = inf
            if self.device == "cuda":
                torch.cuda.set_per_process_memory_fraction(1.0)


def _held() -> int:
    """The bytes of living tensors on the GPU, after all others are given back."""
    gc.collect()
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated()
