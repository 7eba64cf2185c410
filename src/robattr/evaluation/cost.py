"""How long an evaluation takes, from the time of a few gradients."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from robattr.attacks.ifia import IFIA
from robattr.attacks.maps import COARSE
from robattr.engine.batch_size import rows_that_fit
from robattr.engine.parts import Parts
from robattr.evaluation.protocol import Protocol
from robattr.evaluation.suite import schedule
from robattr.formula.attribution import IG
from robattr.formula.network import bind, gradient, second_order
from robattr.formula.quadrature import midpoint
from robattr.formula.sizes import l1

NODES = 2  # of the gradient that is timed
ENOUGH = 0.25  # seconds for one example above which no batch is timed
BATCH = 256  # examples that are timed on a GPU, at most
RUNS = 20  # of a batch: the fastest counts, because other processes and the start of threads slow some of them
SECOND_ORDER = 4  # forward and backward passes in a second-order one


def attack_passes(protocol: Protocol, attacks: Sequence[IFIA], *, images: bool) -> int:
    """Passes of the protocol's attacks for one example. Of `strict` the first round: most have converged after it."""
    rounds = [0, *(attack.round for attack in schedule(protocol, images=images))]
    return sum(attack.cost for attack, number in zip(attacks, rounds, strict=True) if number == 0)


def seconds_per_pass(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Seconds per example and node of the gradient of ‖IG(x, x')‖₁.

    Where one example is fast, timed on 32 of them; on a GPU, on as many as it takes at once, as an attack does.
    """
    one = _seconds(model, x, y, examples=1, nodes=NODES, runs=2)  # the first one includes what torch sets up
    if one > ENOUGH:
        return one / NODES
    if not x.is_cuda:
        return _seconds(model, x, y, examples=32, nodes=NODES, runs=RUNS) / (32 * NODES)

    def timed() -> float:
        rows = min(BATCH, rows_that_fit(model, x, passes=COARSE))
        return _seconds(model, x, y, examples=rows, nodes=COARSE, runs=3) / (rows * COARSE)

    return Parts().whole(timed)


def _seconds(model: nn.Module, x: Tensor, y: Tensor, *, examples: int, nodes: int, runs: int) -> float:
    """The fastest of some runs."""
    change = l1 @ IG(rule=midpoint(nodes))
    x, y = x[:1].expand(examples, *x.shape[1:]), y[:1].expand(examples)
    times = []
    with second_order(model), torch.no_grad():
        net = bind(model).detach()
        for _ in range(runs):
            began = time.perf_counter()
            gradient(lambda z: change(net, x, z, y), x + 0.01)
            if x.is_cuda:
                torch.cuda.synchronize(x.device)
            times.append(time.perf_counter() - began)
    return min(times)
