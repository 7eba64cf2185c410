"""Compile gradient functions, and fall back to eager, visibly, where that fails.

A function of tensors is traced once, with every derivative inside it resolved into operators of torch (`make_fx`), for
fixed shapes; torch's code generator gets that graph. So `torch.autograd.grad` of any order and a user's
autograd.Functions compile; torch.compile differentiates neither twice.
"""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from robattr.engine.precision import precision
from robattr.engine.signals import stopping
from robattr.engine.traced_graph import split, trace
from robattr.errors import CompilationFellBack

ROUNDING = 1e-6  # relative, of the operands of a deep network in float32
ALLOWED = 1e-3
"""How far, ‖a − b‖₂ / ‖b‖₂, float32 rounding may set two computations of a gradient of ‖IG‖₁ apart."""
NOTHING = 1e-6
"""The size, beside all outputs, of a gradient that is nothing but rounding."""
TINY = 1e-150
OPTIONS: dict[str, Any] = {
    # torch 2.13 generates wrong code (UnboundLocalError) where it reorders the scatter of a max-pool on a CPU.
    "reorder_for_peak_memory": False,
    "triton.autotune_at_compile_time": None,  # at the first call, as torch.compile has it
    # One shape of each element-wise kernel, not the faster of two: half as much to compile, and steps as fast.
    "triton.autotune_pointwise": False,
}
"""Of torch's compiler."""

Backend = Callable[[GraphModule, list[Tensor]], Callable[..., Any]]


class WrongWhenCompiled(RuntimeError):
    """The compiled function and the eager one differ by more than rounding explains."""


class Compiled:
    """`fn`, of tensors in any nesting, compiled at its first call; `fn` itself where that fails, with one warning.

    backend     `inductor` (generated code), `traced` (the traced graph, one operator after the other)
    at          the place of the argument that `iterate` changes

    The first result is checked against the one of `fn`, where there is memory for it. `fell_back` says whether `fn`
    itself runs, `seconds` what the first call took in all.
    """

    def __init__(self, fn: Callable[..., Any], *, name: str, backend: Backend | None = None, at: int | None = None):
        self._fn, self._name, self._backend, self._at = fn, name, backend or inductor, at
        self._run: Callable[..., Any] | None = None
        self.seconds = 0.0
        self.fell_back = False

    def __call__(self, *args: Any) -> Any:
        return self._first(*args) if self._run is None else self._run(*args)

    def iterate(self, times: int, *args: Any) -> Tensor:
        """z after z ← fn(…, z, …) so many times; z is the argument in the place `at`."""
        assert self._at is not None
        before, after = args[: self._at], args[self._at + 1 :]
        z: Tensor = args[self._at]
        kept: list[Tensor] | None = None
        for _ in range(times):
            if isinstance(self._run, Code):
                kept = self._run.first(*before, z, *after) if kept is None else kept
                z = self._run.rest(kept, *before, z, *after)
            else:
                z = self(*before, z, *after)
        return z

    def _first(self, *args: Any) -> Any:
        begun = time.perf_counter()
        if self._backend is inductor and any(t.is_cuda for t in pytree.tree_leaves(args)):
            start_workers()
        expected = self._expected(*args)
        try:
            with warnings.catch_warnings(action="ignore"):  # the compiler's advice (TF32, …) is not for the user
                fast = compiled(self._fn, args, self._backend, at=self._at)
                out = fast(*args)
            if expected is not None:
                check_close(out, expected, lambda: (self._exact(*args), self._fn(*_rounded(args))))
            self._run = fast
        except torch.OutOfMemoryError:  # a smaller batch may fit
            raise
        except Exception as why:  # whatever the compiler meets, the eager function still works
            self._run, self.fell_back = self._fn, True
            reason = str(why).strip().splitlines()
            if not stopping():  # Ctrl-C ends the compiler, too; the training stops after this step
                warnings.warn(
                    f"the {self._name} could not be compiled and runs eagerly, with the same results but slower: "
                    f"{type(why).__name__}: {reason[0] if reason else 'no reason given'}",
                    CompilationFellBack,
                    stacklevel=3,
                )
            out = self._fn(*args) if expected is None else expected
        self.seconds = time.perf_counter() - begun
        return out

    def _exact(self, *args: Any) -> Any:
        """The eager result in float32."""
        kind = pytree.tree_leaves(args)[0].device.type
        with precision("fp32", kind):
            return self._fn(*args)

    def _expected(self, *args: Any) -> Any:
        """The eager result; None where it takes more memory than there is, which the compiled one may not."""
        try:
            return self._fn(*args)
        except torch.OutOfMemoryError:
            return None


class Code:
    """A traced function as compiled code, in two parts where a part of it does not change in iterations."""

    def __init__(
        self, graph: GraphModule, leaves: list[Tensor], *, constants: list[Tensor], out: pytree.TreeSpec,
        backend: Backend, moving: set[int],
    ) -> None:  # fmt: skip
        once, each = split(graph, moving)
        self._constants, self._out = constants, out
        self._once = None if once is None else backend(once, [*leaves, *constants])
        kept = self.first(*leaves)
        self._each = backend(each, [*leaves, *constants, *kept])

    def __call__(self, *args: Any) -> Any:
        return self.rest(self.first(*args), *args)

    def first(self, *args: Any) -> list[Tensor]:
        """What does not depend on the argument that moves."""
        if self._once is None:
            return []
        with torch.no_grad(), _without_autocast():  # the casts are in the graph
            return list(self._once(*pytree.tree_leaves(args), *self._constants))

    def rest(self, kept: list[Tensor], *args: Any) -> Any:
        """The result, from what `first` returned."""
        with torch.no_grad(), _without_autocast():
            found = self._each(*pytree.tree_leaves(args), *self._constants, *kept)
            return pytree.tree_unflatten(list(found), self._out)


def compiled(fn: Callable[..., Any], args: tuple[Any, ...], backend: Backend, *, at: int | None = None) -> Code:
    """`fn` compiled for arguments of the shapes, dtypes and devices of `args`; the one in the place `at` may move."""
    graph, constants, out = trace(fn, args)
    moving = set[int]()
    if at is not None:
        before = len(pytree.tree_leaves(args[:at]))
        moving = set(range(before, before + len(pytree.tree_leaves(args[at]))))
    with torch.no_grad(), _without_autocast():
        leaves = pytree.tree_leaves(args)
        return Code(graph, leaves, constants=constants, out=out, backend=backend, moving=moving)


def inductor(graph: GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
    """Code generated by torch's compiler, kept in the user's cache folder between runs.

    The code reads memory as `inputs` lay in it: a tensor with other strides is copied.
    """
    from torch._inductor import standalone_compile  # not torch.compile, which would trace the graph once more

    _keep_cache()
    own: list[Any] = [t.contiguous() if 0 in t.stride() else t for t in inputs]  # nothing is copied into expanded ones
    code = standalone_compile(graph, own, dynamic_shapes="from_example_inputs", options={"config_patches": OPTIONS})
    strides = [t.stride() for t in own]

    def run(*tensors: Tensor) -> Any:
        return code(*map(_laid_out, tensors, strides))

    return run


def start_workers() -> None:
    """Start the processes in which torch's compiler compiles kernels for a GPU; they take seconds to be ready.

    torch.compile does so itself, `standalone_compile` does not: it compiles one kernel after the other until then.
    """
    with suppress(ImportError):  # a private function of torch
        from torch._inductor.async_compile import maybe_warm_pool

        maybe_warm_pool()


def _laid_out(t: Tensor, strides: tuple[int, ...]) -> Tensor:
    same = t.stride() == strides
    return t if same else torch.empty_strided(t.shape, strides, dtype=t.dtype, device=t.device).copy_(t)


def traced(graph: GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
    """The graph itself, one operator after the other: no code is generated."""
    return graph.forward


def _without_autocast() -> ExitStack:
    stack = ExitStack()
    for kind in ("cpu", "cuda"):
        if torch.is_autocast_enabled(kind):
            stack.enter_context(torch.autocast(kind, enabled=False))
    return stack


def check_close(out: Any, expected: Any, others: Callable[[], tuple[Any, Any]]) -> None:
    """Refuse a compiled result that is less accurate than the eager one, or has NaN in other places.

    A gradient of ‖IG‖₁ changes by far more than its rounding, because signs of IG and sides of ReLUs flip: in reduced
    precision, and in float32 behind dozens of layers. `others` are two eager results that rounding sets apart from the
    `expected` one: in float32, and at arguments that are rounded otherwise. The compiled result may be at most twice as
    far from the first as `expected` is from either. The first of several outputs, the gradient, is compared by itself,
    too: beside the others it may be small.
    """
    pairs = list(zip(pytree.tree_leaves(out), pytree.tree_leaves(expected), strict=True))
    if any(bool((a.isnan() != b.isnan()).any()) for a, b in pairs):
        raise WrongWhenCompiled("NaN where the eager result has none, or the other way round")
    if any(bool(((a != b) & (a.isinf() | b.isinf())).any()) for a, b in pairs):
        raise WrongWhenCompiled("infinite where the eager result is finite, or the other way round")
    parts: list[Callable[[Any], Any]] = [lambda all: all]
    parts += [lambda all: all[0]] if isinstance(expected, tuple) else []
    least = NOTHING * _size(expected)
    if all(_distance(part(out), part(expected), least) <= ALLOWED for part in parts):
        return
    reference, rounded = others()
    for part in parts:
        ours = _distance(part(out), part(reference), least)
        theirs = max(_distance(part(expected), part(other), least) for other in (reference, rounded))
        if ours > 2 * theirs + ALLOWED:
            raise WrongWhenCompiled(f"{ours:.2g} of its size away from the float32 result, the eager one {theirs:.2g}")


def _rounded(args: Any) -> Any:
    """The arguments, with relative errors up to ROUNDING in floating-point tensors."""
    draws = torch.Generator().manual_seed(0)

    def off(t: Any) -> Any:
        if not isinstance(t, Tensor) or not t.is_floating_point():
            return t
        return t.detach() * (1 + ROUNDING * (2 * torch.rand(t.shape, generator=draws) - 1)).to(t)

    return pytree.tree_map(off, args)


def _distance(a: Any, b: Any, least: float) -> float:
    """‖a − b‖₂ / max(‖b‖₂, least)."""
    return _size(pytree.tree_map(lambda u, v: u - v if v.is_floating_point() else v, a, b)) / max(_size(b), least, TINY)


def _size(a: Any) -> float:
    """‖a‖₂ over all floating-point tensors, NaN and infinite values as 0."""
    floats = [t.detach() for t in pytree.tree_leaves(a) if t.is_floating_point()]
    return math.sqrt(sum(float(t.double().nan_to_num(0.0, 0.0, 0.0).square().sum()) for t in floats))


def _keep_cache() -> None:
    """Keep compiled kernels between runs, in the user's cache folder, unless the user chose another.

    One folder for each kind of CPU: torch's cache returns source for vectors of another width (AVX-512 in a home that
    two machines share), which then computes wrong numbers.
    """
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir  # which torch sets where nothing is chosen

    if os.environ.get("TORCHINDUCTOR_CACHE_DIR", default_cache_dir()) == default_cache_dir():
        with suppress(OSError, RuntimeError):  # without a home or the right to write there, torch's own folder
            home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
            cache = home / "robattr" / "compiled" / torch.backends.cpu.get_cpu_capability()
            cache.mkdir(parents=True, exist_ok=True)
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache)
