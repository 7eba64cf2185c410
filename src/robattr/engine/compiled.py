"""Compiling gradient functions, with eager as the safety net.

torch.compile refuses to differentiate a compiled *module* twice; it does compile the *function that returns the
gradient*, with `torch.func` inside. Shapes are static (`dynamic=False`): a training run has one.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


class Compiled:
    """`fn` compiled at its first call; if that fails, `fn` itself, with one warning that says why.

    `seconds` is what the first call took, compilation included.
    """

    def __init__(self, fn: Callable[..., Any], *, name: str, backend: str = "inductor") -> None:
        self._fn, self._name, self._backend = fn, name, backend
        self._run: Callable[..., Any] | None = None
        self.seconds = 0.0
        self.fell_back = False

    def __call__(self, *args: Any) -> Any:
        if self._run is not None:
            return self._run(*args)
        begun = time.perf_counter()
        _keep_cache()
        try:
            fast = torch.compile(self._fn, dynamic=False, fullgraph=True, backend=self._backend)
            out = fast(*args)
            self._run = fast
        except Exception as why:  # whatever the compiler meets, the plain function still works
            reason = str(why).strip().splitlines()
            warnings.warn(
                f"the {self._name} could not be compiled and runs eagerly, with the same results but slower: "
                f"{type(why).__name__}: {reason[0] if reason else 'no reason given'}",
                stacklevel=2,
            )
            self._run, self.fell_back = self._fn, True
            out = self._fn(*args)
        self.seconds = time.perf_counter() - begun
        return out


def _keep_cache() -> None:
    """Keep compiled kernels between runs, in the user's cache folder, unless the user chose another."""
    if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
        cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "robattr" / "compiled"
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache)
