"""Kendall's τ-b of attribution maps: SciPy in a loop, SciPy over all cores, the n × n formula, and ours."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from typing import Any

import torch
from torch import Tensor

from robattr._extras import need
from robattr.bench import naive
from robattr.bench.agree import within
from robattr.bench.engine import Work
from robattr.bench.results import Case, Comparison, Side
from robattr.bench.timing import Rates, Times, timed
from robattr.metrics import kendall

WORKERS = 16
EXACT = 1e-9  # largest difference of τ that rounding of the final division explains


def measure(device: torch.device, *, rates: Rates, quick: bool) -> Case:
    """Maps of MNIST's, GTSRB's and Flower's size; a third of the pixels tied at zero, as a black background gives."""
    stats = need("scipy.stats", extra="eval")
    workers = min(WORKERS, os.cpu_count() or 1)
    # 16,384 pixels are Flower's: 136 test images, attacked three times
    sizes = ((784, 64), (4096, 8)) if quick else ((784, 1000), (1024, 1000), (16384, 3 * 136))
    if quick:
        workers = 1
    rows: list[Comparison] = []
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for n, count in sizes:
            made = sized(n, count, device, stats.kendalltau, pool if workers > 1 else None, workers)
            floor = Work(0.0, 2 * 4 * n, 0.0).over(rates, baseline=0.0)  # two float32 maps, read once
            rows += [replace(made[0], roofline=floor), *made[1:]]
    counts = ", ".join(f"{count} pairs of {n:,} pixels" for n, count in sizes)
    return Case("kendall", f"{counts}; a third of each map tied at 0", tuple(rows))


def sized(
    n: int, count: int, device: torch.device, scipy: Callable[..., Any], pool: ProcessPoolExecutor | None, workers: int
) -> list[Comparison]:
    """Every way to compute τ-b of `count` pairs of maps of n pixels, against ours."""
    a, b = maps(n, count)
    # float64, because SciPy 1.18 rounds τ to the type of its arguments
    pairs = [(x, y) for x, y in zip(a.double().numpy(), b.double().numpy(), strict=True)]
    on_device = a.to(device), b.to(device)
    ours = kendall(*on_device)
    engine = Side(f"batched, {device.type}", timed(lambda: kendall(*on_device), device).per(count))
    cpu = torch.device("cpu")
    some = pairs[: max(1, min(count, 200_000 // n))]  # a loop's cost per pair does not depend on how many

    def compare(what: str, times: Times, theirs: Tensor) -> Comparison:
        gap = float((ours[: len(theirs)].cpu() - theirs.cpu()).abs().max())
        agreement = (within(f"τ-b at {n} pixels, {what}", gap, allowed=EXACT),)
        return Comparison(f"Kendall τ-b, {n:,} pixels", Side(what, times), engine, agreement, per="pair of maps")

    def loop() -> list[float]:
        return [float(scipy(x, y).statistic) for x, y in some]

    out = [compare("SciPy in a loop", timed(loop, cpu).per(len(some)), torch.tensor(loop(), dtype=torch.float64))]
    if pool is not None:
        firsts, seconds = [x for x, _ in pairs], [y for _, y in pairs]
        chunk = max(1, count // (2 * workers))

        def spread() -> list[float]:
            return [float(r.statistic) for r in pool.map(scipy, firsts, seconds, chunksize=chunk)]

        found = torch.tensor(spread(), dtype=torch.float64)
        out.append(compare(f"SciPy on {workers} cores", timed(spread, cpu, repeats=5).per(count), found))
    if n <= 4096 or device.type == "cuda":  # three n × n arrays

        def by_pairs() -> Tensor:
            return naive.kendall_by_pairs(on_device[0][0], on_device[1][0])

        out.append(compare(f"n × n formula, {device.type}", timed(by_pairs, device), by_pairs()[None]))
    return out


def maps(n: int, count: int) -> tuple[Tensor, Tensor]:
    """Two correlated maps per example, non-negative, with the same third of their pixels at exactly 0."""
    draws = torch.Generator().manual_seed(n)
    a = torch.randn(count, n, generator=draws).abs()
    b = (a + torch.randn(count, n, generator=draws)).abs()
    shown = torch.rand(count, n, generator=draws) > 1 / 3
    return a * shown, b * shown
