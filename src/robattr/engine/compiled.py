"""Compiling gradient functions, with eager as the safety net.

torch.compile refuses to differentiate a compiled *module* twice; it does compile the *function that returns the
gradient*, with `torch.func` inside. Shapes are static (`dynamic=False`): a training run has one.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from robattr.engine import kernels
from robattr.engine.precision import ALLOWED, in_use
from robattr.formula.network import second_order


class WrongWhenCompiled(RuntimeError):
    """The compiled function and the plain one differ by more than rounding explains."""


class Compiled:
    """`fn` compiled at its first call; if that fails, `fn` itself, with one warning that says why.

    The first answer is held against that of `fn`, where there is memory for it. `seconds` is what the first call took
    in all.
    """

    def __init__(self, fn: Callable[..., Any], *, name: str, backend: str | Callable[..., Any] = "inductor") -> None:
        self._fn, self._name, self._backend = fn, name, backend
        self._run: Callable[..., Any] | None = None
        self.seconds = 0.0
        self.fell_back = False
        # One code compiled for many nets: torch stops at the eighth otherwise.
        limit = torch._dynamo.config.accumulated_recompile_limit
        self._many_nets = torch._dynamo.config.patch(recompile_limit=limit)

    def __call__(self, *args: Any) -> Any:
        with self._many_nets:
            return self._call(*args)

    def _call(self, *args: Any) -> Any:
        if self._run is not None:
            return self._run(*args)
        begun = time.perf_counter()
        _keep_cache()
        plain = self._plain(*args)
        try:
            fast = torch.compile(
                self._fn, dynamic=False, fullgraph=True, backend=self._backend, options=self._options(args)
            )
            out = fast(*args)
            if plain is not None:
                _hold(out, plain)
            self._run = fast
        except Exception as why:  # whatever the compiler meets, the plain function still works
            reason = str(why).strip().splitlines()
            warnings.warn(
                f"the {self._name} could not be compiled and runs eagerly, with the same results but slower: "
                f"{type(why).__name__}: {reason[0] if reason else 'no reason given'}",
                stacklevel=2,
            )
            self._run, self.fell_back = self._fn, True
            out = self._fn(*args) if plain is None else plain
        self.seconds = time.perf_counter() - begun
        return out

    def _options(self, args: Any) -> dict[str, Any] | None:
        """Our own passes, where inductor compiles for a GPU."""
        on_gpu = next((t.device for t in _tensors(args) if t.is_cuda), None)
        return kernels.options(in_use(on_gpu)) if on_gpu and self._backend == "inductor" else None

    def _plain(self, *args: Any) -> Any:
        """The eager answer; None where it takes more memory than there is, which the compiled one may not."""
        try:
            return self._fn(*args)
        except torch.OutOfMemoryError:
            return None


def own_function(model: nn.Module, x: Tensor) -> str:
    """The name of an `autograd.Function` of the model's own making, or an empty string.

    torch (2.11 to 2.13) compiles such a function wrongly under `torch.func`: its second derivatives are lost, silently.
    """
    with second_order(model), torch.enable_grad():
        end = model(x[:1].detach().requires_grad_()).grad_fn
    seen, ahead = set[Any](), [end]
    while ahead:
        node = ahead.pop()
        if node is None or node in seen:
            continue
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            return type(node).__name__.removesuffix("Backward")
        seen.add(node)
        ahead += [before for before, _ in node.next_functions]
    return ""


def restless(model: nn.Module, x: Tensor) -> bool:
    """Whether the model as it is answers otherwise than when it is still, or moves its buffers: dropout by function,
    statistics of its own. Compiled steps take the clean loss of the still one.
    """
    if not any(part.training for part in model.modules()):
        return False
    kept = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []), torch.no_grad():
        own = model(x)
        moved = any(name not in kept or not _alike(buffer, kept[name]) for name, buffer in model.named_buffers())
        for name, buffer in model.named_buffers():
            if name in kept:
                buffer.copy_(kept[name])
        with second_order(model):
            return moved or not _alike(own, model(x))


def _alike(a: Tensor, b: Tensor) -> bool:
    """Equal but for the rounding of other kernels."""
    a, b = a.double(), b.double()
    largest = b.nan_to_num(0.0, 0.0, 0.0).abs().max() if b.numel() else 0.0
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-3, atol=1e-3 * float(largest), equal_nan=True)


def _hold(ours: Any, theirs: Any) -> None:
    """Refuse a compiled answer that rounding does not explain; nan stands for nan."""
    pairs = list(zip(_tensors(ours), _tensors(theirs), strict=True))
    apart, size = (
        sum(float(t.detach().double().nan_to_num(0.0).square().sum()) for t in each)
        for each in ([a - b for a, b in pairs], [b for _, b in pairs])
    )
    allowed = ALLOWED[in_use(pairs[0][1].device)]
    lost = any(bool((a.isnan() != b.isnan()).any()) for a, b in pairs)
    if lost or apart > allowed**2 * size:
        share = (apart / max(size, 1e-300)) ** 0.5
        raise WrongWhenCompiled(f"{share:.2g} of its size away from the eager one, where rounding explains {allowed:g}")


def _tensors(answer: Any) -> Iterator[Tensor]:
    """The floating-point tensors of a nested answer, in order."""
    if isinstance(answer, Tensor):
        if answer.is_floating_point():
            yield answer
    else:
        for inner in answer.values() if isinstance(answer, Mapping) else answer:
            yield from _tensors(inner)


def _keep_cache() -> None:
    """Keep compiled kernels between runs, in the user's cache folder, unless the user chose another."""
    if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
        cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "robattr" / "compiled"
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache)
