"""Other forms of a step's operators, timed in whole training steps: `python -m benchmarks.forms --network mnist`.

A form is an equal formula of an operator that generated code may run faster than torch's kernel, or a memory layout:

    last        weights and images in channels-last, also where an image has one channel
    pool        the gradient of a max-pool without overlap as a comparison with the index of each window's largest
                element; the compiler calls torch's kernel for it where channels come last
    products    a convolution of one input channel, and its input gradient, as a matrix product with its patches
    tuned       the compiler times several shapes of each kernel that it generates

`engine` is what training does. The last column is ‖g − g₀‖₂ / ‖g₀‖₂ for the parameter gradients of a form and of the
engine, both in the precision of the run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._inductor import config
from torch.fx.experimental.proxy_tensor import make_fx

from benchmarks.engine import Mode, laid_out, training_step
from benchmarks.measure import distance, timed
from benchmarks.workloads import RECIPES, Workload, workload
from robattr.engine import traced_graph
from robattr.formula.quadrature import midpoint
from robattr.reporting.tables import grid

aten = torch.ops.aten
Table = dict[Any, Callable[..., Any]]


def pool_gradient(
    grad: Tensor, x: Tensor, kernel: list[int], stride: list[int], padding: list[int], dilation: list[int],
    ceil_mode: bool, indices: Tensor,
) -> Tensor:  # fmt: skip
    """∂ of a max-pool: each element that is the largest of its window has the window's gradient, the others 0."""
    n, c, h, w = x.shape
    by_h, by_w = kernel[0], kernel[-1]
    if list(stride) not in ([], [by_h, by_w]) or any(padding) or {*dilation} != {1} or h % by_h or w % by_w:
        return NotImplemented  # type: ignore[no-any-return]

    def of_window(t: Tensor) -> Tensor:
        windows = t[:, :, :, None, :, None].expand(n, c, h // by_h, by_h, w // by_w, by_w)
        return windows.reshape(n, c, h, w)

    place = torch.arange(h * w, device=x.device).view(h, w)
    out = torch.where(of_window(indices) == place, of_window(grad), 0)
    last = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    return out.contiguous(memory_format=torch.channels_last) if last else out


def convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: list[int], padding: list[int], dilation: list[int],
    transposed: bool, output_padding: list[int], groups: int,
) -> Tensor:  # fmt: skip
    """Σ_j w_j x_{i+j} of one input channel: patches of x (N·H·W, k²) times w (k², C), with channels last."""
    if not _same_size(weight, stride, padding, dilation, transposed):
        return NotImplemented  # type: ignore[no-any-return]
    n, _, h, w = x.shape
    c, taps = len(weight), weight[0].numel()
    patches = aten.im2col(x, list(weight.shape[2:]), dilation, padding, stride).transpose(1, 2).reshape(-1, taps)
    out = _padded(patches) @ _padded(weight.reshape(c, taps)).t()
    return (out if bias is None else out + bias).view(n, h, w, c).permute(0, 3, 1, 2)


def convolution_backward(
    grad: Tensor, x: Tensor, weight: Tensor, bias_sizes: list[int] | None, stride: list[int], padding: list[int],
    dilation: list[int], transposed: bool, output_padding: list[int], groups: int, mask: list[bool],
) -> tuple[Tensor, None, None]:  # fmt: skip
    """The input gradient of `convolution`: g (N·H·W, C) times w (C, k²), and each patch added where it was taken."""
    if list(mask) != [True, False, False] or not _same_size(weight, stride, padding, dilation, transposed):
        return NotImplemented  # type: ignore[no-any-return]
    n, c, h, w = grad.shape
    high, wide = weight.shape[2:]
    patches = grad.permute(0, 2, 3, 1).reshape(-1, c) @ _padded(weight.reshape(c, -1))
    summed = torch.promote_types(grad.dtype, torch.float32)
    around = F.pad(patches.view(n, h, w, -1), (0, 0, wide // 2, wide // 2, high // 2, high // 2)).to(summed)
    taps = [(i, j) for i in range(high) for j in range(wide)]
    out = sum(
        around[:, high - 1 - i : high - 1 - i + h, wide - 1 - j : wide - 1 - j + w, i * wide + j] for i, j in taps
    )
    return torch.as_tensor(out).to(grad.dtype)[:, None], None, None


def _same_size(weight: Tensor, stride: list[int], padding: list[int], dilation: list[int], transposed: bool) -> bool:
    """Whether a convolution of one input channel keeps the size of its images."""
    plain = weight.dim() == 4 and weight.shape[1] == 1 and not transposed and {*stride, *dilation} == {1}
    return plain and [2 * p + 1 for p in padding] == list(weight.shape[2:])


def _padded(matrix: Tensor) -> Tensor:
    """With columns of 0 up to a multiple of 8, as the units for bf16 take them."""
    return F.pad(matrix, (0, -matrix.shape[1] % 8))


POOL: Table = {aten.max_pool2d_with_indices_backward.default: pool_gradient}
PRODUCTS: Table = {aten.convolution.default: convolution, aten.convolution_backward.default: convolution_backward}
FORMS: dict[str, tuple[Table, bool, bool]] = {  # operators, channels last, tuned
    "engine": ({}, False, False),
    "tuned": ({}, False, True),
    "last": ({}, True, False),
    "last + pool": (POOL, True, False),
    "last + tuned": ({}, True, True),
    "last + pool + products": ({**POOL, **PRODUCTS}, True, False),
    "last + pool + products + tuned": ({**POOL, **PRODUCTS}, True, True),
}


def measure(work: Workload, form: str, mode: Mode, *, m: int, m_attack: int) -> tuple[float, Tensor]:
    """Milliseconds of a whole step in that form, and the gradients of all parameters."""
    table, last, tuned = FORMS[form]
    ours = laid_out(work, mode)
    if last:
        x, start = (t.contiguous(memory_format=torch.channels_last) for t in (work.x, work.start))
        model = ours.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        ours = replace(ours, model=model, x=x, start=start)
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(traced_graph, "make_fx", partial(make_fx, decomposition_table=table)))
        stack.enter_context(config.patch(coordinate_descent_tuning=tuned))
        run, _ = training_step(ours, work.objective(midpoint, m=m, m_attack=m_attack), mode)
        run()
        gradient = torch.cat([p.grad.flatten() for p in ours.model.parameters() if p.grad is not None])
        (times,) = timed(run, device=work.device)
    return times.ms, gradient.clone()


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.forms", description=__doc__.splitlines()[0])
    parser.add_argument("--network", choices=tuple(RECIPES), default="mnist")
    parser.add_argument("--form", choices=tuple(FORMS), action="append", help="default: all of them")
    parser.add_argument("--precision", choices=("fp32", "tf32", "bf16"), default="bf16")
    parser.add_argument("--nodes", type=int, nargs=2, default=(6, 3), metavar=("M", "M_ATTACK"))
    parser.add_argument("--quick", action="store_true", help="small batches: a check, not a benchmark")
    options = parser.parse_args(words)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    work, mode = workload(options.network, device, quick=options.quick), Mode(options.precision, compiled=True)
    found: dict[str, tuple[float, Tensor]] = {}
    for form in dict.fromkeys(("engine", *(options.form or FORMS))):
        found[form] = measure(work, form, mode, m=options.nodes[0], m_attack=options.nodes[1])
        print(f"{form}: {found[form][0]:.2f} ms", file=sys.stderr, flush=True)
    base, reference = found["engine"]
    rows = [
        [name, f"{ms:.2f}", f"{base / ms:.2f}×", f"{distance(g, reference):.1e}"] for name, (ms, g) in found.items()
    ]
    print(grid(("form", "ms", "of the engine", "distance"), rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
