"""The forms of operators and layers in `robattr.engine`, timed in whole training steps: `python -m benchmarks.forms`.

    engine      what training does
    operators   the forms of operators alone; pairs of layers are torch's
    kernels     torch's kernels for all operators and layers
    first       torch's kernels, and channels before pixels
    tuned       what training does, and the compiler times many shapes of each kernel (it takes minutes)
    two-shapes  what training does, and the compiler takes the faster of two shapes of each element-wise kernel

The first four differ in bf16 on a GPU alone. The last column is ‖g − g₀‖₂ / ‖g₀‖₂ for the parameter gradients of a row
and of the engine, both in the precision of the run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from benchmarks import engine
from benchmarks.engine import Mode, laid_out, training_step
from benchmarks.measure import distance, timed
from benchmarks.workloads import RECIPES, Workload, workload
from robattr.engine import compiled, forms, layer_pairs
from robattr.formula.quadrature import midpoint
from robattr.reporting.tables import grid

PAIRS: Callable[[], AbstractContextManager[object]] = layer_pairs.LayerPairs
ROWS: dict[str, tuple[dict[Any, Any], Callable[[], AbstractContextManager[object]], bool, dict[str, Any]]] = {
    # operators, pairs of layers, whether channels come first, the compiler's options
    "engine": (forms.TABLE, PAIRS, False, {}),
    "operators": (forms.TABLE, nullcontext, False, {}),
    "kernels": ({}, nullcontext, False, {}),
    "first": ({}, nullcontext, True, {}),
    "tuned": (forms.TABLE, PAIRS, False, {"coordinate_descent_tuning": True}),
    "two-shapes": (forms.TABLE, PAIRS, False, {"triton.autotune_pointwise": True}),
}


def measure(work: Workload, row: str, mode: Mode, *, m: int, m_attack: int) -> tuple[float, Tensor, float]:
    """Milliseconds of a whole step in that form, the gradients of all parameters, and the seconds of the first step."""
    table, pairs, first, options = ROWS[row]
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(forms, "TABLE", table))
        stack.enter_context(mock.patch.object(layer_pairs, "LayerPairs", pairs))
        stack.enter_context(mock.patch.dict(compiled.OPTIONS, options))
        if first:
            stack.enter_context(mock.patch.object(engine, "layout", return_value=torch.contiguous_format))
        ours = laid_out(work, mode)
        run, step = training_step(ours, work.objective(midpoint, m=m, m_attack=m_attack), mode)
        run()
        gradient = torch.cat([p.grad.flatten() for p in ours.model.parameters() if p.grad is not None]).clone()
        (times,) = timed(run, device=work.device)
    return times.ms, gradient, step.seconds


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.forms", description=__doc__.splitlines()[0])
    parser.add_argument("--network", choices=tuple(RECIPES), default="mnist")
    parser.add_argument("--row", choices=tuple(ROWS), action="append", help="default: all but the last two")
    parser.add_argument("--precision", choices=("fp32", "tf32", "bf16"), default="bf16")
    parser.add_argument("--nodes", type=int, nargs=2, default=(6, 3), metavar=("M", "M_ATTACK"))
    parser.add_argument("--quick", action="store_true", help="small batches: a check, not a benchmark")
    options = parser.parse_args(words)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    work, mode = workload(options.network, device, quick=options.quick), Mode(options.precision, compiled=True)
    found: dict[str, tuple[float, Tensor, float]] = {}
    for row in dict.fromkeys(("engine", *(options.row or [*ROWS][:-2]))):
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
