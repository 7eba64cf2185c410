"""What a training step and an audit will cost, extrapolated from a few examples.

second-order passes per example and step = attack_steps · m_attack + m
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from robattr.attacks.maps import integrated_gradients
from robattr.auditing.wrapped_model import WrappedModel
from robattr.engine.batch_size import bytes_per_row
from robattr.evaluation import protocol as protocols
from robattr.evaluation.suite import attribution_attacks
from robattr.formula.attribution import IG
from robattr.formula.network import bind, gradient, second_order
from robattr.formula.quadrature import midpoint
from robattr.formula.sizes import l1

SHARE = 0.6  # of the memory, for the nodes of the path
NODES = 2  # of the gradient that is timed
ENOUGH = 0.25  # seconds for one example above which no batch is timed
SECOND_ORDER = 4  # forward and backward passes in a second-order one


@dataclass(frozen=True)
class Plan:
    """The training step whose cost is estimated."""

    m: int = 10
    m_attack: int = 5
    attack_steps: int = 7
    batch: int = 16

    @property
    def passes(self) -> int:
        """Second-order passes of one step. A large batch on a GPU takes less than as many single ones."""
        return (self.attack_steps * self.m_attack + self.m) * self.batch


def peak_bytes(model: WrappedModel, x: Tensor, plan: Plan) -> int:
    """Bytes of memory of one training step."""
    fixed = 4 * sum(p.numel() * p.element_size() for p in model.parameters())  # weights, gradient, Adam's two moments
    return fixed + bytes_per_row(model, x) * plan.batch * max(plan.m, plan.m_attack)


def audit_seconds(per_pass: float, *, examples: int, bounds: tuple[float, float]) -> tuple[float, float]:
    """Seconds of an audit with the default settings: the paper's protocol alone, and both protocols.

    Of `strict` the first round: most examples have converged after it.
    """
    paper = protocols.scaled("", pixels=10, bounds=bounds)
    strict, map = protocols.strict(paper), integrated_gradients(paper.N)
    attacks = attribution_attacks(strict, torch.nn.Flatten(), map, images=True)
    first, *others = (per_pass / SECOND_ORDER * examples * attack.cost for attack in attacks)
    round_0 = (seconds for seconds, a in zip(others, strict.attacks, strict=True) if a.round == 0)
    return first, 2 * first + sum(round_0)


def chunk_that_fits(model: WrappedModel, x: Tensor, *, m: int, batch: int) -> int | None:
    """How many nodes of a batch fit in memory together; None where all m do."""
    fits = int(SHARE * memory(x.device)) // (bytes_per_row(model, x) * batch)
    return None if fits >= m else max(1, fits)


def memory(device: torch.device) -> int:
    """Bytes of memory of the device."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not a POSIX system
        return 8 * 2**30


def seconds_per_pass(model: WrappedModel, x: Tensor, y: Tensor) -> float:
    """Seconds per example and node of the gradient of ‖IG(x, x')‖₁; where one example is fast, timed on 32 of them."""
    one = _seconds(model, x, y, examples=1)
    return one / NODES if one > ENOUGH else _seconds(model, x, y, examples=32) / (32 * NODES)


def _seconds(model: WrappedModel, x: Tensor, y: Tensor, *, examples: int) -> float:
    """The faster of two runs: the first one includes what torch sets up."""
    change = l1 @ IG(rule=midpoint(NODES))
    x, y = x[:1].expand(examples, *x.shape[1:]), y[:1].expand(examples)
    times = []
    with second_order(model), torch.no_grad():
        net = bind(model).detach()
        for _ in range(2):
            began = time.perf_counter()
            gradient(lambda z: change(net, x, z, y), x + 0.01)
            if x.is_cuda:
                torch.cuda.synchronize(x.device)
            times.append(time.perf_counter() - began)
    return min(times)
