"""How long an evaluation takes, from the time of a few gradients."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any

import torch
from torch import Tensor, nn

from robattr.attacks.ifia import IFIA
from robattr.attacks.maps import COARSE
from robattr.attacks.passes import map_and_logits
from robattr.engine.batch_size import rows_that_fit
from robattr.engine.parts import Parts
from robattr.engine.precision import precision
from robattr.evaluation.protocol import Protocol
from robattr.evaluation.suite import noise_control, schedule
from robattr.formula.attribution import IG
from robattr.formula.network import bind, gradient, second_order
from robattr.formula.quadrature import midpoint
from robattr.formula.sizes import l1

NODES = 2  # of the gradient that is timed
ENOUGH = 0.25  # seconds for one example on a GPU above which no batch is timed
BATCH = 256  # examples that are timed on a GPU, at most
FEW = 32  # examples that are timed on a CPU, at most
RUNS = 20  # of a batch: the fastest counts, because other processes and the start of threads slow some of them
WITHIN = 2.0  # seconds after which a batch on a CPU is run no more
SECOND_ORDER = 4  # forward and backward passes in a second-order one
COMPILATION = 0.7  # seconds per tensor of parameters where nothing is cached: of ResNet-50, in `paper` and in `strict`
SAVED = 0.55  # of the time of an attack on a GPU, by compiling it: 45 s instead of 103 s for 27 images, ResNet-50
PAYS = 1.25  # an attack is compiled where that saves so many times what it takes


def attack_passes(protocol: Protocol, attacks: Sequence[IFIA], *, images: bool) -> int:
    """Passes of the protocol's attacks and of random noise for one example.

    Of `strict`, which has the noise among its attacks, the first two rounds: most have converged after them.
    """
    rounds = [0, *(attack.round for attack in schedule(protocol, images=images))]
    passes = sum(attack.cost for attack, number in zip(attacks, rounds, strict=True) if number < 2)
    return passes if protocol.strict else passes + noise_control(attacks[0]).cost


def shared_passes(paper: IFIA) -> int:
    """Passes on one example that `strict` does not make again after `paper`: of the paper's attack and of the noise."""
    return paper.cost + noise_control(paper).cost


def pace(attack: IFIA, x: Tensor, y: Tensor, *, known: float | None = None) -> float:
    """Seconds of a second-order pass in an attack that is not compiled; on a GPU from its own gradients and maps.

    Elsewhere it is `seconds_per_pass`; `known`, where that was measured before.
    """
    if x.is_cuda:
        return Parts().whole(lambda: attack_pace(attack, x, y))
    return seconds_per_pass(attack.source or attack.model, x, y) if known is None else known


def attack_pace(attack: IFIA, x: Tensor, y: Tensor) -> float:
    """`pace`, measured on as many examples as the attack takes at once, with maps of few nodes."""
    few = replace(attack, map=attack.guide, window=1, batch=None)
    rows, kind = min(BATCH, attack.rows(x)), x.device.type
    x, y = x[:1].expand(rows, *x.shape[1:]), y[:1].expand(rows)
    with second_order(attack.model), second_order(attack.source or attack.model), torch.no_grad():
        walk, start = few.begun(x, y)  # whose random numbers take longer than a gradient of a small network
        score = _fastest(lambda: few.map_and_label(x, y), kind)
        climb = _fastest(lambda: walk.gradient()(start), kind)
        with precision(attack.directions, kind) if attack.directions else nullcontext():
            look = partial(map_and_logits(few.model, few.map), x, y)
            screen = 0.0 if attack.shows_coarse(x) else _fastest(look, kind)
    nodes, costs = few.map.nodes, attack.costs
    gradients, maps = costs.gradients / (4 * nodes), (costs.screens * screen + costs.scores * score) / (2 * nodes + 1)
    return SECOND_ORDER * (gradients * climb + maps) / rows / attack.cost


def _fastest(run: Callable[[], Any], kind: str, *, runs: int = 3, within: float = inf) -> float:
    """Seconds of the fastest of some runs, two or more; the first includes what torch sets up."""
    times: list[float] = []
    while len(times) < 2 or (len(times) < runs and sum(times) < within):
        began = time.perf_counter()
        run()
        if kind == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return min(times)


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

    Timed on examples that fit at once, as in an attack: on a busy machine small operations take as long as large ones.
    """
    if not x.is_cuda:
        few = min(FEW, rows_that_fit(model, x, passes=NODES))
        return _seconds(model, x, y, examples=few, nodes=NODES, runs=RUNS, within=WITHIN) / (few * NODES)
    one = _seconds(model, x, y, examples=1, nodes=NODES, runs=2)
    if one > ENOUGH:
        return one / NODES

    def timed() -> float:
        rows = min(BATCH, rows_that_fit(model, x, passes=COARSE))
        return _seconds(model, x, y, examples=rows, nodes=COARSE, runs=3) / (rows * COARSE)

    return Parts().whole(timed)


def _seconds(
    model: nn.Module, x: Tensor, y: Tensor, *, examples: int, nodes: int, runs: int, within: float = inf
) -> float:
    """The fastest of some runs."""
    change = l1 @ IG(rule=midpoint(nodes))
    x, y = x[:1].expand(examples, *x.shape[1:]), y[:1].expand(examples)
    with second_order(model), torch.no_grad():
        net = bind(model).detach()
        run = partial(gradient, lambda z: change(net, x, z, y), x + 0.01)
        return _fastest(run, x.device.type, runs=runs, within=within)
