"""Kendall's τ-b of attribution maps: SciPy in a loop, SciPy on all cores, the n × n formula, and robattr."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

import torch
from scipy.stats import kendalltau
from torch import Tensor

from benchmarks import port
from benchmarks.measure import Rates, Work, timed, within
from benchmarks.results import Case, Comparison, Side, Times
from robattr.metrics import kendall

CPU = torch.device("cpu")
EXACT = 1e-9  # both sides compute exact counts; they differ by the rounding of the final division


def measure(device: torch.device, *, rates: Rates, quick: bool) -> Case:
    """Maps as large as MNIST's, GTSRB's and Flower's; a third of the pixels tied at zero, like a black background."""
    workers = 1 if quick else min(16, os.cpu_count() or 1)
    # 16,384 pixels are Flower's: 136 test images, attacked three times
    sizes = ((784, 64), (4096, 8)) if quick else ((784, 1000), (1024, 1000), (16384, 3 * 136))
    rows: list[Comparison] = []
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for n, count in sizes:
            first, *others = compare(n, count, device, pool if workers > 1 else None, workers)
            floor = Work(0.0, 2 * 4 * n, 0.0).roofline(rates, baseline=0.0)  # two float32 maps, read once
            rows += [replace(first, roofline=floor), *others]
    counts = ", ".join(f"{count} pairs of {n:,} pixels" for n, count in sizes)
    return Case("kendall", f"{counts}; a third of each map tied at 0", tuple(rows))


def compare(
    n: int, count: int, device: torch.device, pool: ProcessPoolExecutor | None = None, workers: int = 1
) -> list[Comparison]:
    """Every way to compute τ-b of `count` pairs of maps of n pixels, against robattr."""
    a, b = maps(n, count)
    firsts, seconds = a.double().numpy(), b.double().numpy()  # SciPy 1.18 rounds τ to the type of its arguments
    on_device = a.to(device), b.to(device)
    ours = kendall(*on_device)
    (times,) = timed(lambda: kendall(*on_device), device=device)
    engine = Side(f"batched, {device.type}", times.per(count))
    some = max(1, min(count, 200_000 // n))  # the cost per pair of a loop does not depend on its length

    def row(what: str, times: Times, theirs: Tensor) -> Comparison:
        gap = float((ours[: len(theirs)].cpu() - theirs.cpu()).abs().max())
        agreement = (within(f"τ-b at {n} pixels, {what}", gap, allowed=EXACT),)
        return Comparison(f"Kendall τ-b, {n:,} pixels", Side(what, times), engine, agreement, per="pair of maps")

    def loop() -> Tensor:
        return torch.tensor([kendalltau(*pair).statistic for pair in zip(firsts[:some], seconds, strict=False)])

    rows = [row("SciPy in a loop", timed(loop, device=CPU)[0].per(some), loop())]
    if pool is not None:

        def parallel() -> Tensor:
            chunk = max(1, count // (2 * workers))
            return torch.tensor([r.statistic for r in pool.map(kendalltau, firsts, seconds, chunksize=chunk)])

        (times,) = timed(parallel, device=CPU, repeats=5)
        rows.append(row(f"SciPy on {workers} cores", times.per(count), parallel()))
    if n <= 4096 or device.type == "cuda":  # three n × n arrays

        def by_pairs() -> Tensor:
            return port.kendall_by_pairs(on_device[0][0], on_device[1][0])[None]

        rows.append(row(f"n × n formula, {device.type}", timed(by_pairs, device=device)[0], by_pairs()))
    return rows


def maps(n: int, count: int) -> tuple[Tensor, Tensor]:
    """Two correlated maps per example, non-negative, the same third of their pixels exactly 0."""
    draws = torch.Generator().manual_seed(n)
    a = torch.randn(count, n, generator=draws).abs()
    b = (a + torch.randn(count, n, generator=draws)).abs()
    shown = torch.rand(count, n, generator=draws) > 1 / 3
    return a * shown, b * shown
