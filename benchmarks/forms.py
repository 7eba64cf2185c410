"""The forms of operators and layers in `robattr.engine`, timed in whole training steps: `python -m benchmarks.forms`.

    engine      what training does
    operators   the forms of operators alone; pairs of layers are torch's
    kernels     torch's kernels for all operators and layers
    first       torch's kernels, and channels before pixels
    tuned       what training does, and the compiler times many shapes of each kernel (it takes minutes)
    two-shapes  what training does, and the compiler takes the faster of two shapes of each element-wise kernel
    early       what training does, and a generated kernel starts while the one before it ends (Hopper and later)
    halves      what training does, and two halves of the batch are attacked side by side, each on its own stream

The first three differ in bf16 on a GPU alone. The last column is ‖g − g₀‖₂ / ‖g₀‖₂ for the parameter gradients of a row
and of the engine, both in the precision of the run: signs in the attack flip where a row rounds in another way.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from benchmarks import engine
from benchmarks.engine import Mode, laid_out, training_step
from benchmarks.measure import distance, timed
from benchmarks.workloads import RECIPES, Workload, workload
from robattr.engine import compiled, forms, layer_pairs, step
from robattr.formula.quadrature import midpoint
from robattr.reporting.tables import grid

Patch = Callable[[], AbstractContextManager[object]]


def patch(owner: Any, name: str, value: Any) -> Patch:
    return partial(mock.patch.object, owner, name, value)


def options(**values: Any) -> Patch:
    """Of the compiler."""
    return partial(
        mock.patch.dict, compiled.OPTIONS, {name.replace("__", "."): value for name, value in values.items()}
    )


def in_halves(attack_step: Callable[..., Tensor], times: int, *args: Any) -> Tensor:
    """`step.iterate` on two halves of the batch; args are (parameters, buffers, x, z, y, numbers)."""
    weights, batch, numbers = args[:2], args[2:5], args[5:]
    halves = list(zip(*(t.chunk(2) for t in batch), strict=True))
    if not batch[0].is_cuda:
        return torch.cat([ITERATE(attack_step, times, *weights, *half, *numbers) for half in halves])
    here, found = torch.cuda.current_stream(), []
    for half in halves:
        stream = torch.cuda.Stream()
        stream.wait_stream(here)
        with torch.cuda.stream(stream):
            found.append(ITERATE(attack_step, times, *weights, *half, *numbers))
        STREAMS.append(stream)
    for stream in STREAMS[-2:]:
        here.wait_stream(stream)
    return torch.cat(found)


ITERATE = step.iterate
STREAMS: list[torch.cuda.Stream] = []  # for as long as a graph uses them
TORCHS = (patch(forms, "TABLE", {}), patch(layer_pairs, "LayerPairs", nullcontext))
ROWS: dict[str, tuple[Patch, ...]] = {
    "engine": (),
    "operators": TORCHS[1:],
    "kernels": TORCHS,
    "first": (*TORCHS, patch(engine, "layout", lambda *_: torch.contiguous_format)),
    "tuned": (options(coordinate_descent_tuning=True),),
    "two-shapes": (options(triton__autotune_pointwise=True),),
    "early": (options(triton__enable_pdl=True),),
    "halves": (patch(step, "iterate", in_halves),),
}


def measure(work: Workload, row: str, mode: Mode, *, m: int, m_attack: int) -> tuple[float, Tensor, float]:
    """Milliseconds of a whole step in that form, the gradients of all parameters, and the seconds of the first step."""
    with ExitStack() as stack:
        for enter in ROWS[row]:
            stack.enter_context(enter())
        ours = laid_out(work, mode)
        run, timed_step = training_step(ours, work.objective(midpoint, m=m, m_attack=m_attack), mode)
        run()
        gradient = torch.cat([p.grad.flatten() for p in ours.model.parameters() if p.grad is not None]).clone()
        (times,) = timed(run, device=work.device)
    return times.ms, gradient, timed_step.seconds


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.forms", description=__doc__.splitlines()[0])
    parser.add_argument("--network", choices=tuple(RECIPES), default="mnist")
    parser.add_argument("--row", choices=tuple(ROWS), action="append", help="default: all but the last four")
    parser.add_argument("--precision", choices=("fp32", "tf32", "bf16"), default="bf16")
    parser.add_argument("--nodes", type=int, nargs=2, default=(6, 3), metavar=("M", "M_ATTACK"))
    parser.add_argument("--quick", action="store_true", help="small batches: a check, not a benchmark")
    options = parser.parse_args(words)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    work, mode = workload(options.network, device, quick=options.quick), Mode(options.precision, compiled=True)
    found: dict[str, tuple[float, Tensor, float]] = {}
    for row in dict.fromkeys(("engine", *(options.row or [*ROWS][:-4]))):
        found[row] = measure(work, row, mode, m=options.nodes[0], m_attack=options.nodes[1])
        print(f"{row}: {found[row][0]:.2f} ms", file=sys.stderr, flush=True)
    base, reference, _ = found["engine"]
    rows = [
        [name, f"{ms:.2f}", f"{base / ms:.2f}×", f"{seconds:.1f}", f"{distance(g, reference):.1e}"]
        for name, (ms, g, seconds) in found.items()
    ]
    print(grid(("form", "ms", "of the engine", "compilation, s", "distance"), rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
