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
from robattr.engine.precision import precision
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
COMPILATION = 1.0  # seconds per tensor of parameters: 0.8 to 1.3 on ResNet-50 and ViT-B/16, where nothing is cached
SAVED = 0.5  # of the time of an attack on a GPU, by compiling it: 0.58 of ResNet-50's gradients
PAYS = 1.25  # an attack is compiled where that saves so many times what it takes


def attack_passes(protocol: Protocol, attacks: Sequence[IFIA], *, images: bool) -> int:
    """Passes of the protocol's attacks for one example. Of `strict` the first round: most have converged after it."""
    rounds = [0, *(attack.round for attack in schedule(protocol, images=images))]
    return sum(attack.cost for attack, number in zip(attacks, rounds, strict=True) if number == 0)


def pace(attack: IFIA, x: Tensor, y: Tensor) -> float:
    """`seconds_per_pass` of an attack; its directions and coarse scores may be in a lower precision."""
    source = attack.source or attack.model
    own = seconds_per_pass(source, x, y)
    if attack.directions is None:
        return own
    with precision(attack.directions, x.device.type):
        leading = seconds_per_pass(source, x, y)
    return attack.leading * leading + (1 - attack.leading) * own


def compilation_pays(model: nn.Module, seconds: float) -> bool:
    """Whether an attack that takes so long uncompiled on a GPU is faster compiled, compilation included."""
    return SAVED * seconds > PAYS * _compilation(model)


def compiled_seconds(model: nn.Module, seconds: float) -> float:
    """How long an attack takes compiled that takes `seconds` uncompiled."""
    return _compilation(model) + (1 - SAVED) * seconds


def _compilation(model: nn.Module) -> float:
    return COMPILATION * len(list(model.parameters()))


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
